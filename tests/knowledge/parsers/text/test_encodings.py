"""Text encodings: detection and decoding."""

from time import process_time

import pytest

from almanac.knowledge.parsers.text import encodings

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
def test_the_encoding_of_a_text_is_detected(encoding: str):
    assert encodings.decode(SAMPLES[encoding].encode(encoding))[0] == SAMPLES[encoding]


def test_letters_far_into_a_text_decide_its_encoding():
    text = "plain english line\n" * 50_000 + SAMPLES["cp1251"]
    assert encodings.decode(text.encode("cp1251"))[0] == text


def test_the_encoding_of_a_large_text_is_guessed_from_a_sample():
    content = (SAMPLES["cp1251"] + "\n").encode("cp1251") * 100_000
    before = process_time()
    assert encodings.decode(content)[1] == "cp1251"
    assert process_time() - before < 3


def test_a_damaged_utf_8_text_is_still_utf_8():
    content = ("Проверьте температуру. " * 100).encode() + b"\xff and on " + ("Запишите её. " * 100).encode()
    text, encoding = encodings.decode(content)
    assert (encoding, text.count("\ufffd")) == ("utf-8", 1)


def test_line_ends_are_unified_and_the_byte_order_mark_is_removed():
    assert encodings.decode("\ufeffa\r\nb\rc\nd".encode())[0] == "a\nb\nc\nd"
