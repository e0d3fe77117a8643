"""The encoding of a text that does not name it, guessed from its letters.

Each encoding is tried. What comes out is scored by how common its letters are in the languages written in that
encoding: in the right one most of them are, in a wrong one they are letters nobody uses, or signs in the middle of
words. A few words are enough.
"""

import re
from dataclasses import dataclass

_COMMON, _EVERYDAY, _USED, _RARE, _MISPLACED = 1.0, 0.5, 0.3, -0.5, -2.0

_WEST = "éèàêçäöüßñáíóúãõåæøôîâûïëùòìœÉÈÀÇÄÖÜÑÁÍÓÚÅÆØ’‘“”«»–—…€¿¡"
_SIGNS = "°²³§©®ºª·•£"
_HANZI = (
    "的一是不了在人有我他个大中来上国到说们为子和你地出道也时年得就那要下以生会自着去之过家学对可她里后小么心多天而能好都然没日于起"
    "还发成事只作当想看文无开手十用主行方又如前所本见经头面公同三已老从动两长知样现分将外但身些与高意进把法此实回二理美点月明其种"
    "每六七八五四九百千请先再早晚门度温并且通所必须工班员第一到达检查记录库存日期部件名号码表单位年月"
)
_HANJI = (
    "的一是不了在人有我他這個們中來上大為和國地到以說時要就出會可也你對生能而子那得于著下自之年過發後作裡用道行所然家種事成方多經"
    "麼去法學如都同現當沒動面起看定天分還進好小部其些主樣理心她本前開但因只從想實每六七早點門第員先再請錄寫溫度並且"
)
_KANA = "".join(map(chr, range(0x3041, 0x3097))) + (
    "アイウエオカキクケコサシスセソタチツテトナニネノハヒフヘホマミムメモラリルレロワンーッャュョドデプグジバ、。「」・"
)
_WIDE = "\u3000，。、；：？！“”（）《》「」〇・"
_HANGUL = (
    "이다는을의에하고가로은지한를기시어사리도인아나그니서있자여적일들정만것과수대해전부으라오게보면제소주스상장원습세"
)


@dataclass(frozen=True, slots=True)
class Alphabet:
    """What texts in an encoding are made of."""

    encoding: str
    common: str
    used: str = ""
    ranges: str = ""  # more that are used, as a pattern
    final: str = ""  # letters only at the end of a word
    odd: str = ""  # a pattern that none of these languages has
    is_latin: bool = False  # such letters then stand alone among plain ones, and otherwise never beside them


_CYRILLIC = ("оеаинтсрвлкмдпу", "яыьгзбчйхжшюцщэфъёіїєґОАСПНВИКТДМРЕЛБЗГ«»–—№„“”…’")
_GREEK = ("αοιετσνηυρπκμλς", "ωάέήίόύώδγχθφβξζψϊΑΤΗΟΣΠΕΜΚΝΔ«»’–΄")
_ARABIC = ("اليمنروتبةعدسفهك", "قحجشصطخضذثىأإآءئؤغظ؟،؛«»ًٌَُِّْـپچگژ\u200c")
_HEBREW = ("יוהלארתבשמנ", "דקחעפכטסגצזםןךףץ״׳–—’“”")
_THAI = ("านรกอเงมยลวดทตสคบปหพ่้ัีิ", "ะขจชซณถธนผฝภศษโใไฉฎฏฐฑฒญฬฮฤๆ์ุูืึ็ำแฯ๐๑๒๓๔๕๖๗๘๙")
_CENTRAL = "ąćęłńóśźżáčďéěíňřšťúůýžőűöüäâăîđşŞŁŚŻĆÁČÉŘŠŽÖÜ’„”“–—…»«°§"

ALPHABETS = (
    Alphabet("cp1252", _WEST, _SIGNS + "ðþýÐÞÝ™½¼¾±×„š", odd="õ(?!e)", is_latin=True),  # Portuguese õ, not Hungarian ő
    Alphabet("gb18030", _HANZI + _WIDE, ranges="[\u4e00-\u9fff]"),
    Alphabet("big5", _HANJI + _WIDE, ranges="[\u4e00-\u9fff]"),
    Alphabet("cp932", _KANA + _WIDE, ranges="[\u4e00-\u9fff\u30a0-\u30ff\uff01-\uff5e]"),
    Alphabet("euc_jp", _KANA + _WIDE, ranges="[\u4e00-\u9fff\u30a0-\u30ff\uff01-\uff5e]"),
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
    Alphabet("cp1252", "áæöíúóéðþýÁÆÖÍÚÓÉÐÞÝ’“”„–", is_latin=True),  # Icelandic, which Turkish would hide
    Alphabet("cp1255", *_HEBREW, final="םןךףץ"),
    Alphabet("cp1256", *_ARABIC),
    Alphabet("iso8859_6", *_ARABIC),
    Alphabet("cp874", *_THAI),
    Alphabet("cp1257", "āčēģīķļņšūžėįųąęöäüõŠŽ’„”“–", "ćńóśźżÄÖÜÕ", is_latin=True),
    Alphabet("mac_roman", _WEST, _SIGNS + "ðþý", is_latin=True),
)

_BEYOND = re.compile(r"[^\x00-\x7f]")
_SIGN_INSIDE = re.compile(
    r"(?<=[^\W\d_])[^\w\s\x00-\x7f’‘'·\u0591-\u05c7\u0e31-\u0e4e\u064b-\u0652\u200c-](?=[^\W\d_])"
)
_FLIPPED = re.compile(r"[a-zß-öø-ÿα-ώа-џ](?=[А-ЯΑ-ΩÀ-ÖØ-Þ])")
_CROWDED = re.compile(r"(?<=[^\W\d_a-zA-Z]{2})[^\W\d_a-zA-Z]")
_MIXED = re.compile(r"[a-zA-Z](?=[^\W\d_a-zA-Z])|[^\W\d_a-zA-Z](?=[a-zA-Z])")


def guess(sample: bytes) -> str:
    """The encoding in which a text makes most sense; the earlier of two equals."""
    return max(ALPHABETS, key=lambda alphabet: score(sample, alphabet)).encoding


def score(sample: bytes, alphabet: Alphabet) -> float:
    """How much sense bytes make in an encoding: at most 1."""
    text = sample.decode(alphabet.encoding, "replace")
    beyond = _BEYOND.findall(text)
    if not beyond:
        return _MISPLACED
    common, used = set(alphabet.common), set(alphabet.used)
    total = sum(_COMMON if each in common else _USED if each in used else _RARE for each in beyond)
    if alphabet.ranges:
        total += (_EVERYDAY - _RARE) * len(_everyday(re.findall(alphabet.ranges, text), common, alphabet.encoding))
    return (total + _MISPLACED * _misplaced(text, alphabet)) / len(beyond)


def _misplaced(text: str, alphabet: Alphabet) -> int:
    """Letters where none of their kind can be, and bytes that are none."""
    strange = () if alphabet.ranges else (_CROWDED,) if alphabet.is_latin else (_MIXED,)
    patterns = (_SIGN_INSIDE, _FLIPPED, *strange)
    own = [alphabet.odd] if alphabet.odd else [rf"[{alphabet.final}](?=\w)"] if alphabet.final else []
    return text.count("\ufffd") + sum(len(re.findall(each, text)) for each in (*patterns, *own))


def _everyday(found: list[str], common: set[str], encoding: str) -> list[str]:
    """Letters that are used, if not the commonest."""
    everyday = {"gb18030": "gb2312", "cp949": "euc_kr", "cp932": "shift_jis"}.get(encoding, encoding)
    return [each for each in found if each not in common and _is_everyday(each, everyday)]


def _is_everyday(letter: str, encoding: str) -> bool:
    """Standards put the characters of daily use first: what comes after is for names and dictionaries."""
    content = letter.encode(encoding, "ignore")
    last = {"gb2312": b"\xd7\xff", "big5": b"\xc6\x7e", "shift_jis": b"\x98\x72", "euc_jp": b"\xcf\xfe"}.get(encoding)
    return len(content) == 2 and (last is None or content <= last)
