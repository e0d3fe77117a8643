"""The model inside the package: its vectors, batches of texts, and invalid files."""

import asyncio
import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from almanac.ai.bundled import DEFAULT, BundledEmbedder
from almanac.ai.embedder import Vectors
from almanac.ai.encoder import (
    DESCRIPTION,
    MAX_BATCH_TOKENS,
    MODEL,
    TOKENIZER,
    Encoder,
    ModelDescription,
    ModelFolder,
    batch,
)
from almanac.ai.errors import BadModel, WrongDimension
from tests.waiting import until

SENTENCES = [
    "How many days of annual leave do I have?",
    "Employees are entitled to 28 days of paid holiday a year.",
    "The turbine blade failed at high temperature.",
    "Heat caused the rotor vane to break.",
    "Invoice 4711 is overdue since March.",
]
# Cosines of the sentences with the first one: for the published model in 32 bits, and for ours.
PUBLISHED = [1.0, 0.6895, 0.3641, 0.3874, 0.5303]
OURS = [1.0, 0.6875, 0.3593, 0.3815, 0.5358]
# The first numbers of the first sentence's vector, as published.
BEGINNING = [-0.0328, -0.0499, 0.0300, -0.0319, 0.0160, -0.0153, 0.0247, -0.0321]

HOSTILE = ["", " ", "\n\t\u3000", "\x00", "a\x00b", "\ud800", "x\udfffy", "\u202e\u200b\ufeff", "😀" * 300, "﷽" * 900,
           "[CLS] [SEP] [PAD] [MASK]", "a" * 1_000_000, "word " * 200_000, "-" * 100_000]  # fmt: skip


@pytest.fixture
async def embedder() -> AsyncIterator[BundledEmbedder]:
    opened = BundledEmbedder(threads=2)
    yield opened
    await opened.close()


def copy_model(to: Path) -> Path:
    shutil.copytree(DEFAULT.path, to)
    return to


def describe_anew(folder: Path, **changes: object) -> None:
    given = json.loads((folder / DESCRIPTION).read_bytes())
    (folder / DESCRIPTION).write_text(json.dumps({**given, **changes}))


# Vectors


async def test_cosines_are_those_of_the_published_model(embedder: BundledEmbedder):
    vectors = await embedder.passages(SENTENCES)
    assert vectors.dtype == np.float32
    assert vectors.shape == (5, embedder.dimension)
    assert vectors @ vectors[0] == pytest.approx(PUBLISHED, abs=0.015)
    assert vectors[0, :8] == pytest.approx(BEGINNING, abs=0.01)


async def test_cosines_are_the_same_on_every_machine(embedder: BundledEmbedder):
    vectors = await embedder.passages(SENTENCES)
    assert vectors @ vectors[0] == pytest.approx(OURS, abs=0.001)


async def test_vectors_have_length_one(embedder: BundledEmbedder):
    vectors = await embedder.passages(SENTENCES + HOSTILE)
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(1, abs=1e-5)


async def test_a_query_is_embedded_as_a_passage_is(embedder: BundledEmbedder):
    vectors = await embedder.passages(SENTENCES)
    assert await embedder.query(SENTENCES[1]) == pytest.approx(vectors[1], abs=1e-5)


async def test_a_text_gets_the_same_vector_alone_and_among_others_in_any_order(embedder: BundledEmbedder):
    texts = [" ".join(SENTENCES[:count]) * times for count in range(1, 6) for times in (1, 2, 5)] + [""]
    alone = np.concatenate([await embedder.passages([text]) for text in texts])
    assert await embedder.passages(texts) == pytest.approx(alone, abs=1e-5)
    assert await embedder.passages(texts[::-1]) == pytest.approx(alone[::-1], abs=1e-5)


async def test_more_texts_than_are_tokenised_at_once_keep_their_order(embedder: BundledEmbedder):
    texts = [f"{number} {'apple' if number % 3 else 'quantum field'}" for number in range(150)]
    vectors = await embedder.passages(texts)
    for place in (0, 1, 127, 128, 149):
        assert vectors[place] == pytest.approx((await embedder.passages([texts[place]]))[0], abs=1e-5)


async def test_no_texts_give_no_vectors(embedder: BundledEmbedder):
    assert (await embedder.passages([])).shape == (0, 384)


async def test_what_is_beyond_the_limit_is_not_seen(embedder: BundledEmbedder):
    beginning = "leave " * 600
    vectors = await embedder.passages([beginning, beginning + "turbine " * 100, "turbine " * 5 + beginning])
    assert vectors[0] == pytest.approx(vectors[1], abs=1e-6)
    assert vectors[0] @ vectors[2] < 0.99


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: ascii(text[:12]))
async def test_any_text_is_a_query(embedder: BundledEmbedder, text: str):
    assert np.linalg.norm(await embedder.query(text)) == pytest.approx(1, abs=1e-5)


async def test_it_says_what_it_is(embedder: BundledEmbedder):
    assert embedder.name == "bge-small-en-v1.5/int8-cls"
    assert embedder.dimension == 384
    assert embedder.languages == {"en"}


# Together


async def test_a_query_that_was_asked_before_is_not_computed_again(embedder: BundledEmbedder):
    first, again = await embedder.query("leave"), await embedder.query("leave")
    assert np.shares_memory(first, again)


async def test_nobody_can_spoil_a_remembered_query(embedder: BundledEmbedder):
    with pytest.raises(ValueError, match="read-only"):
        (await embedder.query("leave"))[0] = 1


async def test_many_callers_at_once_get_what_each_asked_for(embedder: BundledEmbedder):
    asked = [f"question {number} about {SENTENCES[number % 5]}" for number in range(40)]
    *answers, vectors = await asyncio.gather(*map(embedder.query, asked), embedder.passages(asked))
    assert np.array(answers) == pytest.approx(vectors, abs=1e-5)


async def test_the_event_loop_runs_on_while_passages_are_embedded(embedder: BundledEmbedder):
    await embedder.query("loaded")
    work, turns = asyncio.create_task(embedder.passages(SENTENCES * 20)), 0
    while not work.done():
        await asyncio.sleep(0)
        turns += 1
    assert turns > 100


class HeldUp(Encoder):
    """An encoder that returns zeros when the test allows it."""

    def __init__(self) -> None:
        self.may, self.runs = threading.Event(), 0

    def describe(self) -> ModelDescription:
        return DEFAULT.describe()

    def load(self) -> Encoder:
        return self

    def tokenise(self, texts: Sequence[str], prefix: str) -> list[list[int]]:
        return [[0] * MAX_BATCH_TOKENS for _ in texts]

    def run(self, rows: Sequence[list[int]]) -> Vectors:
        self.runs += 1
        assert self.may.wait(60)
        return np.zeros((len(rows), 384), np.float32)


async def test_who_gives_up_leaves_no_work_behind():
    encoder = HeldUp()
    embedder = BundledEmbedder(encoder, threads=2)
    work = asyncio.create_task(embedder.passages(["x"] * 50))
    await until(lambda: encoder.runs >= 2)
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    encoder.may.set()
    assert len(await embedder.passages(["y"])) == 1
    await embedder.close()
    assert encoder.runs == 3


# Files


def test_the_model_is_small_enough_to_ship_and_says_where_it_is_from():
    assert sum(file.stat().st_size for file in DEFAULT.path.iterdir()) <= 35_000_000
    assert "MIT License" in (DEFAULT.path / "LICENSE").read_text()
    assert DEFAULT.describe().sha256[TOKENIZER] in (DEFAULT.path / "SOURCE.md").read_text()


@pytest.mark.parametrize("name", [MODEL, TOKENIZER])
async def test_a_file_that_was_tampered_with_is_never_loaded(tmp_path: Path, name: str):
    folder = copy_model(tmp_path / "model")
    with (folder / name).open("r+b") as file:
        file.seek(200_000)
        byte = file.read(1)
        file.seek(200_000)
        file.write(bytes([byte[0] ^ 1]))
    for ask in (BundledEmbedder(ModelFolder(folder)).query, BundledEmbedder(ModelFolder(folder)).passages):
        with pytest.raises(BadModel, match="does not match its hash") as caught:
            await ask("x")
        assert str(tmp_path) not in caught.value.text


async def test_a_file_that_is_missing_is_named_as_the_problem(tmp_path: Path):
    folder = copy_model(tmp_path / "model")
    (folder / MODEL).unlink()
    with pytest.raises(BadModel, match="missing"):
        await BundledEmbedder(ModelFolder(folder)).query("x")


def test_a_folder_without_a_description_is_no_model(tmp_path: Path):
    with pytest.raises(BadModel, match="no embedding model of this name"):
        BundledEmbedder(ModelFolder(tmp_path))


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"languages": []}', '{"languages": [], "colour": 1}'])
def test_a_description_that_cannot_be_read_is_refused(tmp_path: Path, content: str):
    (tmp_path / DESCRIPTION).write_text(content)
    with pytest.raises(BadModel, match="cannot be read"):
        BundledEmbedder(ModelFolder(tmp_path))


async def test_a_file_that_is_no_model_is_refused(tmp_path: Path):
    folder = copy_model(tmp_path / "model")
    (folder / MODEL).write_bytes(b"nothing of the kind")
    digest = hashlib.sha256((folder / MODEL).read_bytes()).hexdigest()
    describe_anew(folder, sha256={**DEFAULT.describe().sha256, MODEL: digest})
    with pytest.raises(BadModel, match="ONNX Runtime cannot run"):
        await BundledEmbedder(ModelFolder(folder)).query("x")


async def test_a_model_of_another_dimension_than_described_is_refused_with_the_fix(tmp_path: Path):
    folder = copy_model(tmp_path / "model")
    describe_anew(folder, dimension=512)
    with pytest.raises(WrongDimension, match="384 dimensions, not 512") as caught:
        await BundledEmbedder(ModelFolder(folder)).query("x")
    assert "ALMANAC_EMBEDDING_MODEL" in caught.value.text


def test_what_would_report_home_is_switched_off_before_it_is_imported():
    program = "import sys, almanac.ai, os; print('onnxruntime' in sys.modules, os.environ['ORT_DISABLE_TELEMETRY'])"
    environment = {name: value for name, value in os.environ.items() if name != "ORT_DISABLE_TELEMETRY"}
    found = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["False", "1"]


# Batches


def test_batches_hold_every_text_once_and_little_padding():
    lengths = [int(n) for n in np.random.default_rng(1).integers(3, 513, 500)]
    batches = batch(lengths)
    assert sorted(place for places in batches for place in places) == list(range(500))
    filled = [len(places) * max(lengths[place] for place in places) for places in batches]
    assert max(filled) <= MAX_BATCH_TOKENS
    assert sum(filled) < 1.05 * sum(lengths)


def test_the_longest_texts_go_first_so_that_no_thread_is_left_with_them_at_the_end():
    assert batch([5, 512, 7, 300]) == [[1], [3], [2, 0]]
