"""Analysis: forms of one word are one term, in every language."""

import unicodedata

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from almanac.search.analysis import analyser, languages
from almanac.search.analysis.analyser import terms_of, words_of
from almanac.search.passage import Passage


def meets(question: str, text: str) -> bool:
    return bool(set(terms_of(question)) & set(terms_of(text)))


@pytest.mark.parametrize(
    ("question", "text"),
    [
        ("pumps", "The pump was replaced."),
        ("replacing", "It has been replaced twice."),
        ("NAÏVE", "a naive guess"),
        ("cafe", "Le café est fermé pour les vacances."),
        ("ＡＢＣ", "abc in full width"),
        ("client", "class HTTP2Client:"),
        ("HTTP2Client", "an http2client is needed"),
        ("SKU-9931", "order sku-9931 today"),
        ("9931", "order SKU-9931 today"),
        ("v1.2.3", "fixed in v1.2.3"),
        ("parse_config", "def parse_config(path):"),
        ("config", "def parse_config(path):"),
        ("C++", "written in C++ and C#"),
        ("天气", "今天天气很好"),
        ("図書館", "市立図書館は月曜日に休みます。"),
        ("도서관", "시립도서관은 월요일에 쉽니다."),
        ("ห้องสมุด", "ห้องสมุดปิดวันจันทร์"),
        ("المكتبات", "المكتبة مغلقة يوم الاثنين"),
        ("كتاب", "قرأت الكتاب أمس"),
        ("библиотеки", "Городская библиотека закрыта."),
        ("Häuser", "Das Haus ist alt und die Straße ist neu."),
        ("haeuser haus", "Die Häuser sind alt."),
        ("Versicherung", "Die Krankenversicherung zahlt nicht für den Zahnersatz."),
        ("Krankenversicherungskarte", "Die Karte der Krankenversicherung ist verloren."),
        ("Dampfschiff", "Die Dampfschifffahrtsgesellschaft wurde 1829 gegründet."),
        ("chevaux", "Les chevaux sont dans le pré."),
        ("bibliotecas", "La biblioteca está cerrada los lunes."),
        ("libros", "Los libros de la biblioteca están en las casas antiguas."),
        ("trabalhadores", "Os trabalhadores têm direito a férias e não pagam taxas."),
        ("roulements", "Les roulements doivent être graissés avec de l'huile."),
        ("werknemers", "De werknemers hebben recht op vakantie en een pauze."),
        ("die castings", "The process of die castings is supervised by two engineers."),
        ("van leasing companies", "The policy on rentals is that the company has to agree."),
        ("पुस्तकालय", "पुस्तकालय सोमवार को खुला रहता है।"),
        ("நூலகம்", "நகர நூலகம் திங்கட்கிழமை மூடப்படும்"),
        ("المعلم", "كَتَبَ المُعَلِّمُ الدَّرسَ"),
        ("كَتَبَ", "كتب المعلم"),
        ("השמים", "בְּרֵאשִׁית בָּרָא אֱלֹהִים אֵת הַשָּׁמַיִם"),
        (unicodedata.normalize("NFD", "Prüfgeräte"), "Die Prüfgeräte werden geprüft."),
        ("Prüfgeräte", unicodedata.normalize("NFD", "Die Prüfgeräte werden geprüft.")),
        ("élèves", unicodedata.normalize("NFD", "Les élèves étudient.")),
        ("Versicherung", "Die Versiche\u00adrung zahlt nicht."),
        ("oeuf", "Deux œufs sur le plat."),
        ("Lodz", "Z Łodzi do Łódź."),
        ("ışık", "Işık evi"),
        ("Malmo", "Malmø og København"),
    ],
)
def test_a_query_shares_terms_with_the_expected_text(question: str, text: str):
    assert meets(question, text)


@pytest.mark.parametrize(
    ("question", "text"),
    [
        ("what is the", "what is the"),  # only common words
        ("C++", "written in C"),
        ("天气", "空前"),
        ("art", "Die Karte ist hier."),
        ("stars", "a college in Leeds"),
        ("पानी", "हर वसंत में बेयरिंग में तेल डालें। पुस्तकालय खुला रहता है।"),
        ("किताब", "हर वसंत में बेयरिंग में तेल डालें।"),
    ],
)
def test_similar_spellings_share_no_terms(question: str, text: str):
    assert not meets(question, text)


def test_words_have_their_spans():
    text = "In v1.2.3 the naïve parse_config(天气) failed"
    found = [text[start:end] for start, end, _ in words_of(text)]
    assert found == ["v1.2.3", "naïve", "parse_config", "天气", "failed"]


def test_common_words_are_left_out_in_the_language_of_the_text():
    assert terms_of("the pump of the ship") == ["pump", "ship"]
    assert "die" not in terms_of("die Pumpe und der Motor sind alt")
    assert "die" in terms_of("they die when the pump stops")


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("The pump is in the cellar of the house.", "english"),
        ("Die Pumpe steht im Keller und ist nicht neu.", "german"),
        ("La pompe est dans la cave et ne marche pas.", "french"),
        ("La bomba está en el sótano y no funciona.", "spanish"),
        ("La pompa è nella cantina e non funziona.", "italian"),
        ("De pomp staat in de kelder en werkt niet.", "dutch"),
        ("Pumpen är i källaren och fungerar inte.", "swedish"),
        ("A bomba está na adega e não funciona.", "portuguese"),
        ("pump", None),
        ("", None),
        ("今天天气很好", None),
    ],
)
def test_languages_are_detected_by_their_common_words(text: str, language: str | None):
    assert languages.detect(text) == language


def test_a_passage_is_found_by_its_title_and_headings_too():
    hashes, counts = analyser.decode_terms(analyser.encode_terms("Pumps", ("Care", "Oil"), "Oil the pump."))
    found = dict(zip(hashes.tolist(), counts.tolist(), strict=True))
    assert found == {analyser.term_hash("pump"): 25, analyser.term_hash("care"): 15, analyser.term_hash("oil"): 25}


def test_the_surrounding_text_of_a_short_passage_counts_a_little():
    short, long = Passage(0, 9, "Yes, tea."), Passage(9, 900, "x " * 400)
    first, second, third = analyser.count("", [Passage(0, 9, "Coffee?"), short, long])
    assert analyser.term_hash("coffe") in analyser.decode_terms(second)[0].tolist()
    assert analyser.term_hash("tea") in analyser.decode_terms(first)[0].tolist()
    assert analyser.term_hash("tea") not in analyser.decode_terms(third)[0].tolist()
    other = Passage(0, 9, "Coffee?", headings=("Another day",))
    assert analyser.term_hash("coffe") not in analyser.decode_terms(analyser.count("", [other, short])[1])[0].tolist()


def test_counts_stop_at_the_maximum_of_a_byte():
    _, counts = analyser.decode_terms(analyser.encode_terms("", (), "pump " * 1000))
    assert counts.tolist() == [255]


@given(st.text(max_size=300), st.text(max_size=300))
def test_encoded_terms_of_any_text_are_sorted_and_complete(title: str, text: str):
    hashes, counts = analyser.decode_terms(analyser.encode_terms(title, (), text))
    assert np.all(np.diff(hashes.astype(object)) > 0)
    assert set(hashes.tolist()) == {analyser.term_hash(term) for part in (title, text) for term in terms_of(part)}
    assert np.all(counts >= 1)


@given(st.text(max_size=300))
def test_words_are_in_order_and_do_not_overlap(text: str):
    last = 0
    for start, end, terms in words_of(text):
        assert last <= start < end <= len(text)
        assert terms
        last = end


@given(
    st.lists(st.text(st.sampled_from("ab c"), max_size=12), max_size=6), st.text(st.sampled_from("ab cd"), max_size=12)
)
def test_shared_terms_are_counted_as_one_passage_after_the_other(texts: list[str], question: str):
    passages = [analyser.encode_terms("a title", (), text, "b around") for text in texts]
    wanted = np.array(sorted({analyser.term_hash(term) for term in terms_of(question)}), np.int64)
    expected = [int(np.isin(wanted, analyser.own(words)).sum()) for words in passages]
    assert analyser.count_shared(passages, wanted).tolist() == expected
