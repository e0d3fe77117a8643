"""Text encodings: detect the encoding of some bytes and decode them.

An encoding is recognised by a mark at the beginning, by the positions of NUL bytes, or as valid UTF-8. Otherwise it is
guessed from the letters of the text: each encoding is tried and scored by the frequency of its letters in the languages
that use it. In the right encoding most letters are common; in a wrong one they are rare, or symbols within words. A few
words are enough.
"""

import re
from collections import Counter
from dataclasses import dataclass

GUESS_SAMPLE_BYTES = 16 * 1024
MAX_BROKEN_SHARE = 0.001  # of the characters of a text that still counts as UTF-8

# Byte order marks
_MARKS = (
    (b"\xef\xbb\xbf", "utf-8-sig"),
    (b"\xff\xfe\x00\x00", "utf-32"),
    (b"\x00\x00\xfe\xff", "utf-32"),
    (b"\xff\xfe", "utf-16"),
    (b"\xfe\xff", "utf-16"),
    (b"+/v8", "utf-7"),
    (b"+/v9", "utf-7"),
    (b"\x84\x31\x95\x33", "gb18030"),
)
_NUL_SAMPLE_BYTES = 4096
_MIN_EQUAL_SHARE = 0.85  # of the high bytes of UTF-16 text
_MAX_CONTROL_SHARE = 0.005  # of a damaged text
_TEXT_BYTES = bytes({*range(0x20, 0x7F), *range(0x80, 0x100), 7, 8, 9, 10, 11, 12, 13, 26, 27})
_ISO_2022_JP = re.compile(rb"\x1b\$[@B]|\x1b\([IJ]")

# Scores of a letter: in the text's languages it is common, in daily use, used, or rare; or it cannot be at this place.
_COMMON, _DAILY, _USED, _RARE, _MISPLACED = 1.0, 0.5, 0.3, -0.5, -2.0

_WESTERN = "éèàêçäöüßñáíóúãõåæøôîâûïëùòìœÉÈÀÇÄÖÜÑÁÍÓÚÅÆØ’‘“”«»–—…€¿¡"
_SYMBOLS = "°²³§©®ºª·•£"
_SIMPLIFIED_CHINESE = (
    "的一是不了在人有我他个大中来上国到说们为子和你地出道也时年得就那要下以生会自着去之过家学对可她里后小么心多天而能好都然没日于起"
    "还发成事只作当想看文无开手十用主行方又如前所本见经头面公同三已老从动两长知样现分将外但身些与高意进把法此实回二理美点月明其种"
    "每六七八五四九百千请先再早晚门度温并且通所必须工班员第一到达检查记录库存日期部件名号码表单位年月"
)
_TRADITIONAL_CHINESE = (
    "的一是不了在人有我他這個們中來上大為和國地到以說時要就出會可也你對生能而子那得于著下自之年過發後作裡用道行所然家種事成方多經"
    "麼去法學如都同現當沒動面起看定天分還進好小部其些主樣理心她本前開但因只從想實每六七早點門第員先再請錄寫溫度並且"
)
_KANA = "".join(map(chr, range(0x3041, 0x3097))) + (
    "アイウエオカキクケコサシスセソタチツテトナニネノハヒフヘホマミムメモラリルレロワンーッャュョドデプグジバ、。「」・"
)
_WIDE_PUNCTUATION = "\u3000，。、；：？！“”（）《》「」〇・"
_HANGUL = (
    "이다는을의에하고가로은지한를기시어사리도인아나그니서있자여적일들정만것과수대해전부으라오게보면제소주스상장원습세"
)


@dataclass(frozen=True, slots=True)
class Alphabet:
    """The letters beyond ASCII of the languages that use an encoding."""

    encoding: str
    common: str
    used: str = ""
    ranges: str = ""  # a pattern of further letters in use
    final: str = ""  # letters that occur only at the end of a word
    impossible: str = ""  # a pattern that does not occur in these languages
    is_latin: bool = False  # its letters occur alone among ASCII letters; letters of other scripts never next to them


_CYRILLIC = ("оеаинтсрвлкмдпу", "яыьгзбчйхжшюцщэфъёіїєґОАСПНВИКТДМРЕЛБЗГ«»–—№„“”…’")
_GREEK = ("αοιετσνηυρπκμλς", "ωάέήίόύώδγχθφβξζψϊΑΤΗΟΣΠΕΜΚΝΔ«»’–΄")
_ARABIC = ("اليمنروتبةعدسفهك", "قحجشصطخضذثىأإآءئؤغظ؟،؛«»ًٌَُِّْـپچگژ\u200c")
_HEBREW = ("יוהלארתבשמנ", "דקחעפכטסגצזםןךףץ״׳–—’“”")
_THAI = ("านรกอเงมยลวดทตสคบปหพ่้ัีิ", "ะขจชซณถธนผฝภศษโใไฉฎฏฐฑฒญฬฮฤๆ์ุูืึ็ำแฯ๐๑๒๓๔๕๖๗๘๙")
_CENTRAL = "ąćęłńóśźżáčďéěíňřšťúůýžőűöüäâăîđşŞŁŚŻĆÁČÉŘŠŽÖÜ’„”“–—…»«°§"

ALPHABETS = (
    # Portuguese õ stands only before e; otherwise the byte is Hungarian ő.
    Alphabet("cp1252", _WESTERN, _SYMBOLS + "ðþýÐÞÝ™½¼¾±×„š", impossible="õ(?!e)", is_latin=True),
    Alphabet("gb18030", _SIMPLIFIED_CHINESE + _WIDE_PUNCTUATION, ranges="[\u4e00-\u9fff]"),
    Alphabet("big5", _TRADITIONAL_CHINESE + _WIDE_PUNCTUATION, ranges="[\u4e00-\u9fff]"),
    Alphabet("cp932", _KANA + _WIDE_PUNCTUATION, ranges="[\u4e00-\u9fff\u30a0-\u30ff\uff01-\uff5e]"),
    Alphabet("euc_jp", _KANA + _WIDE_PUNCTUATION, ranges="[\u4e00-\u9fff\u30a0-\u30ff\uff01-\uff5e]"),
    Alphabet("cp949", _HANGUL, ranges="[\uac00-\ud7a3]"),
    Alphabet("cp1251", *_CYRILLIC),
    Alphabet("koi8_r", *_CYRILLIC),
    Alphabet("koi8_u", *_CYRILLIC),
    Alphabet("cp866", *_CYRILLIC),
    Alphabet("iso8859_5", *_CYRILLIC),
    Alphabet("cp1250", _CENTRAL, "ţŢĄĘŃŹÓĎŤŇĚŮÝŐŰĂÂÎĐ", is_latin=True),
    Alphabet("iso8859_2", _CENTRAL, "ţŢĄĘŃŹÓĎŤŇĚŮÝŐŰĂÂÎĐ", is_latin=True),
    Alphabet("cp1253", *_GREEK),
    Alphabet("iso8859_7", *_GREEK),
    Alphabet("cp1254", "ğışöüçİŞÖÜÇĞ’“”–—…", "âîû", is_latin=True),
    Alphabet("cp1252", "áæöíúóéðþýÁÆÖÍÚÓÉÐÞÝ’“”„–", is_latin=True),  # Icelandic; else it would be taken for Turkish
    Alphabet("cp1255", *_HEBREW, final="םןךףץ"),
    Alphabet("cp1256", *_ARABIC),
    Alphabet("iso8859_6", *_ARABIC),
    Alphabet("cp874", *_THAI),
    Alphabet("cp1257", "āčēģīķļņšūžėįųąęöäüõŠŽ’„”“–", "ćńóśźżÄÖÜÕ", is_latin=True),
    Alphabet("mac_roman", _WESTERN, _SYMBOLS + "ðþý", is_latin=True),
)

_BEYOND_ASCII = re.compile(r"[^\x00-\x7f]")
_SYMBOL_IN_WORD = re.compile(
    r"(?<=[^\W\d_])[^\w\s\x00-\x7f’‘'·\u0591-\u05c7\u0e31-\u0e4e\u064b-\u0652\u200c-](?=[^\W\d_])"
)
_UPPER_AFTER_LOWER = re.compile(r"[a-zß-öø-ÿα-ώа-џ](?=[А-ЯΑ-ΩÀ-ÖØ-Þ])")
_CROWDED = re.compile(r"(?<=[^\W\d_a-zA-Z]{2})[^\W\d_a-zA-Z]")
_MIXED = re.compile(r"[a-zA-Z](?=[^\W\d_a-zA-Z])|[^\W\d_a-zA-Z](?=[a-zA-Z])")


def decode(content: bytes) -> tuple[str, str]:
    """The text of some bytes, with lines that end in `\\n`, and the name of its encoding."""
    encoding = marked_encoding(content) or _guess(content)
    text = content.decode(encoding, "replace").replace("\r\n", "\n").replace("\r", "\n")
    return text.removeprefix("\ufeff").replace("\x00", " "), encoding.removesuffix("-sig")


def decode_declared(content: bytes, encoding: str) -> str:
    """The text of some bytes in their declared encoding if that fits."""
    try:
        return content.decode(encoding).removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    except (LookupError, ValueError):
        return decode(content)[0]


def is_text(head: bytes) -> bool:
    """Whether the bytes can be text: in an encoding without NUL bytes, or in one that the bytes show."""
    return bool(marked_encoding(head)) or len(head.translate(None, _TEXT_BYTES)) <= len(head) * _MAX_CONTROL_SHARE


def marked_encoding(head: bytes) -> str:
    """The encoding that the first bytes show by a mark or by their NUL bytes; empty if they show none."""
    for mark, encoding in _MARKS:
        if head.startswith(mark):
            return encoding
    return _encoding_by_nuls(head[:_NUL_SAMPLE_BYTES])


def _encoding_by_nuls(sample: bytes) -> str:
    """UTF-16 or UTF-32 without a mark: each character has NUL bytes, or the same high byte as its neighbours."""
    if 0 not in sample or len(sample) < 8:
        return ""
    nuls = [sample[offset::4].count(0) * 4 / len(sample) > 0.5 for offset in range(4)]
    if nuls in ([False, True, True, True], [True, True, True, False]):
        return "utf-32-le" if nuls[3] else "utf-32-be"
    even, odd = _equal_share(sample[::2]), _equal_share(sample[1::2])
    if odd > _MIN_EQUAL_SHARE > even + 0.2:
        return "utf-16-le"
    return "utf-16-be" if even > _MIN_EQUAL_SHARE > odd + 0.2 else ""


def _equal_share(sample: bytes) -> float:
    """The share of the two most common bytes: one for the letters of a script, one for the spaces between words."""
    return sum(count for _, count in Counter(sample).most_common(2)) / len(sample)


def _guess(content: bytes) -> str:
    if _ISO_2022_JP.search(content[:GUESS_SAMPLE_BYTES]):
        return "iso2022_jp"
    try:
        content.decode()
    except UnicodeDecodeError:
        if _is_damaged_utf8(content[:GUESS_SAMPLE_BYTES]):
            return "utf-8"
        sample = _sample(content)
        return max(ALPHABETS, key=lambda alphabet: score(sample, alphabet)).encoding  # the first of equal scores
    return "utf-8"


def _is_damaged_utf8(sample: bytes) -> bool:
    """Whether the bytes are UTF-8 except for a few. No text in another encoding looks like that by chance."""
    text = sample.decode("utf-8", "replace")
    valid = sum(map(len, re.findall("[^\x00-\x7f\ufffd]+", text)))
    return text.count("\ufffd") <= max(1, len(text) * MAX_BROKEN_SHARE) and valid > 4 * text.count("\ufffd")


def _sample(content: bytes) -> bytes:
    """Lines with letters beyond ASCII: other lines show nothing, and scoring all lines would be slow."""
    lines: list[bytes] = []
    size = 0
    for line in content[: GUESS_SAMPLE_BYTES * 1000].split(b"\n"):
        if not line.isascii():
            lines.append(line[:GUESS_SAMPLE_BYTES])
            size += len(line)
        if size > GUESS_SAMPLE_BYTES:
            break
    return b"\n".join(lines) or content[:GUESS_SAMPLE_BYTES]


def score(sample: bytes, alphabet: Alphabet) -> float:
    """How well the bytes fit an alphabet: at most 1."""
    text = sample.decode(alphabet.encoding, "replace")
    letters = _BEYOND_ASCII.findall(text)
    if not letters:
        return _MISPLACED
    common, used = set(alphabet.common), set(alphabet.used)
    total = sum(_COMMON if letter in common else _USED if letter in used else _RARE for letter in letters)
    if alphabet.ranges:
        in_ranges = re.findall(alphabet.ranges, text)
        total += (_DAILY - _RARE) * len(_letters_in_daily_use(in_ranges, common, alphabet.encoding))
    return (total + _MISPLACED * _count_misplaced(text, alphabet)) / len(letters)


def _count_misplaced(text: str, alphabet: Alphabet) -> int:
    """The number of letters at places where such letters cannot occur, and of bytes that are no letter."""
    by_script = () if alphabet.ranges else (_CROWDED,) if alphabet.is_latin else (_MIXED,)
    patterns = (_SYMBOL_IN_WORD, _UPPER_AFTER_LOWER, *by_script)
    own = [alphabet.impossible] if alphabet.impossible else [rf"[{alphabet.final}](?=\w)"] if alphabet.final else []
    return text.count("\ufffd") + sum(len(re.findall(pattern, text)) for pattern in (*patterns, *own))


def _letters_in_daily_use(letters: list[str], common: set[str], encoding: str) -> list[str]:
    """The letters that are in daily use, except the most common."""
    basic = {"gb18030": "gb2312", "cp949": "euc_kr", "cp932": "shift_jis"}.get(encoding, encoding)
    return [letter for letter in letters if letter not in common and _is_in_daily_use(letter, basic)]


def _is_in_daily_use(letter: str, encoding: str) -> bool:
    """The standards list characters of daily use first, and those for names and dictionaries after them."""
    content = letter.encode(encoding, "ignore")
    last = {"gb2312": b"\xd7\xff", "big5": b"\xc6\x7e", "shift_jis": b"\x98\x72", "euc_jp": b"\xcf\xfe"}.get(encoding)
    return len(content) == 2 and (last is None or content <= last)
