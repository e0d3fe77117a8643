"""Plain text: any bytes at all, in whatever encoding."""

from pathlib import Path
from time import process_time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from almanac.knowledge.parsers.text import plain_text
from tests.knowledge.parsers.test_parse_file import assert_sound

FRENCH = "L’entrepôt ouvre à six heures. Où est la clé ? Près de l’entrée, là-bas. Ça suffit, dit-il, très fâché."
SAMPLES = {
    "gb18030": "冷库每天早上六点开门，温度必须保持在二到八度之间，所有人都要签字。",
    "big5": "倉庫每天早上六點開門，第一班員工在七點以前到達，請先檢查溫度，再把記錄寫進日誌裡。",
    "shift_jis": "倉庫は毎朝六時に開きます。まず冷蔵室の温度を確認してください。ドアのカギは事務所です。",
    "euc_kr": "창고는 매일 아침 여섯 시에 문을 엽니다. 먼저 냉장실의 온도를 확인하고 기록부에 적으십시오.",
    "cp1251": "Склад открывается каждое утро в шесть часов. Сначала проверьте температуру в камере.",
    "cp1252": FRENCH,
    "cp1253": "Η αποθήκη ανοίγει κάθε πρωί στις έξι. Πρώτα ελέγξτε τη θερμοκρασία του θαλάμου.",
    "cp1254": "Depo her sabah saat altıda açılır. İlk vardiya yediden önce gelir. Şimdi sıcaklığı ölçün, ğüzel.",
    "cp1255": "המחסן נפתח בכל בוקר בשעה שש. תחילה בדקו את הטמפרטורה בחדר הקירור ורשמו אותה ביומן.",
    "cp1256": "يفتح المستودع أبوابه كل صباح في الساعة السادسة. افحص أولا درجة حرارة غرفة التبريد.",
    "iso2022_jp": "倉庫は毎朝六時に開きます。",
    "utf-16": "Any text, даже русский.",
    "utf-32": "Any text, даже русский.",
    "utf-8": "Any text, даже русский 中文 🧊.",
}


@pytest.mark.parametrize("encoding", SAMPLES)
def test_a_text_is_read_in_the_encoding_it_is_in(encoding: str):
    assert plain_text.decode(SAMPLES[encoding].encode(encoding))[0] == SAMPLES[encoding]


def test_the_letters_that_tell_the_encoding_may_come_late():
    text = "plain english line\n" * 50_000 + SAMPLES["cp1251"]
    assert plain_text.decode(text.encode("cp1251"))[0] == text


def test_a_large_text_is_guessed_from_a_sample():
    content = (SAMPLES["cp1251"] + "\n").encode("cp1251") * 100_000
    before = process_time()
    assert plain_text.decode(content)[1] == "cp1251"
    assert process_time() - before < 3


def test_a_damaged_text_in_utf_8_stays_in_utf_8():
    content = ("Проверьте температуру. " * 100).encode() + b"\xff and on " + ("Запишите её. " * 100).encode()
    text, encoding = plain_text.decode(content)
    assert (encoding, text.count("\ufffd")) == ("utf-8", 1)


def test_lines_end_one_way_and_the_mark_is_no_text():
    assert plain_text.decode("\ufeffa\r\nb\rc\nd".encode())[0] == "a\nb\nc\nd"


def test_paragraphs_and_underlined_headings_are_found(tmp_path: Path):
    file = tmp_path / "x.rst"
    file.write_text("Tides\n=====\n\nFirst\nparagraph.\n \n\nLow water\n---------\nSecond one.\n", "utf-8")
    found = plain_text.parse(file, "x.rst")
    assert [(b.kind, b.level, found.text[b.start : b.end]) for b in found.blocks] == [
        ("heading", 1, "Tides\n====="),
        ("text", 0, "First\nparagraph."),
        ("heading", 2, "Low water\n---------"),
        ("text", 0, "Second one."),
    ]
    assert found.title == "Tides"


@given(st.binary(max_size=400))
def test_any_bytes_are_a_text(content: bytes):
    text, _ = plain_text.decode(content)
    assert_sound(plain_text.ParsedFile(text, tuple(plain_text.sections(text))))


@given(st.text(alphabet="ab =-#\n\t\u3000*~", max_size=200))
def test_blocks_hold_all_of_any_text(text: str):
    assert_sound(plain_text.ParsedFile(text, tuple(plain_text.sections(text))))
