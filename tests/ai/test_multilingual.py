"""The multilingual model, read from a package's data without running its code."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

from almanac.ai import multilingual
from almanac.ai.encoder import Encoder
from almanac.ai.errors import BadModel
from almanac.ai.multilingual import FILE, PACKAGE, PackagedModel

QUESTION = "what is the capital of France?"
PASSAGES = [
    "Paris is the capital city of France.",
    "Die Hauptstadt von Frankreich ist Paris.",
    "巴黎是法国的首都。",
    "باريس هي عاصمة فرنسا",
    "バナナはカリウムが豊富です。",
    "Bananas are rich in potassium.",
]

# Cosines with the question, by the engine that the package has for its weights.
EXPECTED = [0.9131, 0.8727, 0.8367, 0.8662, 0.7392, 0.7208]

needs_extra = pytest.mark.skipif(importlib.util.find_spec(PACKAGE) is None, reason="the [multilingual] extra is absent")


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return PackagedModel().load()


@needs_extra
def test_a_question_finds_its_answer_in_any_language(encoder: Encoder):
    found = encoder.embed(PASSAGES, "passage: ") @ encoder.embed([QUESTION], "query: ")[0]
    assert found[:4].min() > found[4:].max() + 0.05


@needs_extra
def test_cosines_are_those_of_the_package_s_own_engine(encoder: Encoder):
    found = encoder.embed(PASSAGES, "passage: ") @ encoder.embed([QUESTION], "query: ")[0]
    assert found == pytest.approx(EXPECTED, abs=0.012)


@needs_extra
def test_tokens_are_those_of_the_published_tokeniser(encoder: Encoder):
    texts = [*PASSAGES, "  two   spaces\tand ﬁ ligature", ""]
    assert [len(row) for row in encoder.tokenise(texts, "passage: ")] == [12, 11, 11, 9, 17, 14, 11, 5]


@needs_extra
def test_a_text_gets_the_same_vector_alone_and_among_others(encoder: Encoder):
    alone = np.concatenate([encoder.embed([text], "passage: ") for text in PASSAGES])
    assert encoder.embed(PASSAGES, "passage: ") == pytest.approx(alone, abs=1e-5)


def test_a_file_that_is_not_the_known_one_is_refused_and_no_code_of_the_package_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    package = tmp_path / "strange_package"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit('ran')")
    (package / FILE).write_bytes(b"E5S1" + bytes(100))
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(multilingual, "PACKAGE", package.name)
    with pytest.raises(BadModel, match="does not match its hash"):
        PackagedModel().load()


def test_a_package_without_the_file_counts_as_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "hollow_package").mkdir()
    (tmp_path / "hollow_package" / "__init__.py").touch()
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(multilingual, "PACKAGE", "hollow_package")
    with pytest.raises(BadModel, match="not installed"):
        PackagedModel().describe()
