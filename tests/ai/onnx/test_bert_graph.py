"""The graph in 8 bits against the same small transformer in plain numpy."""

import math
from typing import Any

import numpy as np
import onnxruntime  # pyright: ignore[reportMissingTypeStubs]
import pytest

from almanac.ai.onnx.bert_graph import Floats, Weights, tabulate, write

HIDDEN, HEADS, LAYERS, WIDE, WORDS, PLACES = 128, 4, 2, 256, 50, 40
LOUD = 5  # a channel that is forty times as large as the others


def make(*, takes_mean: bool) -> tuple[Weights, Floats]:
    dice = np.random.default_rng(7)

    def draw(*shape: int, scale: float = 0.08) -> Floats:
        return (dice.standard_normal(shape) * scale).astype(np.float32)

    arrays = {"positions": draw(PLACES, HIDDEN), "first.norm.w": 1 + draw(HIDDEN), "first.norm.b": draw(HIDDEN)}
    for layer in range(LAYERS):
        shapes = {
            "qkv": (3 * HIDDEN, HIDDEN),
            "attended": (HIDDEN, HIDDEN),
            "in": (WIDE, HIDDEN),
            "out": (HIDDEN, WIDE),
        }
        for name, shape in shapes.items():
            arrays[f"{layer}.{name}.w"], arrays[f"{layer}.{name}.b"] = draw(*shape), draw(shape[0])
        for name in ("attended", "out"):
            arrays[f"{layer}.{name}.norm.w"], arrays[f"{layer}.{name}.norm.b"] = 1 + draw(HIDDEN), draw(HIDDEN)
            arrays[f"{layer}.{name}.norm.w"][LOUD] = 40
        for name in ("qkv", "in"):  # with small weights for it, as in trained models
            arrays[f"{layer}.{name}.w"][:, LOUD] /= 40
    words = draw(WORDS, HIDDEN, scale=1)
    return Weights(LAYERS, HEADS, 1e-12, tabulate(words), arrays, takes_mean), words


def normalise(rows: Any, arrays: dict[str, Any], name: str) -> Any:
    centred = rows - rows.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True)) * arrays[f"{name}.norm.w"] + arrays[f"{name}.norm.b"]


def attend(rows: Any, arrays: dict[str, Any], layer: int) -> Any:
    mixed = rows @ arrays[f"{layer}.qkv.w"].T + arrays[f"{layer}.qkv.b"]
    queries, keys, values = (part.reshape(len(rows), HEADS, -1).swapaxes(0, 1) for part in np.split(mixed, 3, axis=-1))
    scores = np.exp(queries @ keys.swapaxes(1, 2) / math.sqrt(HIDDEN // HEADS))
    return (scores / scores.sum(-1, keepdims=True) @ values).swapaxes(0, 1).reshape(len(rows), HIDDEN)


def compute(weights: Weights, words: Floats, tokens: list[int]) -> Any:
    """The vector of a text in floating point."""
    arrays: dict[str, Any] = {name: array.astype(np.float64) for name, array in weights.arrays.items()}
    rows = normalise(words[tokens] + arrays["positions"][: len(tokens)], arrays, "first")
    error = np.vectorize(math.erf)
    for layer in range(LAYERS):
        heard = attend(rows, arrays, layer) @ arrays[f"{layer}.attended.w"].T + arrays[f"{layer}.attended.b"]
        rows = normalise(rows + heard, arrays, f"{layer}.attended")
        wide = rows @ arrays[f"{layer}.in.w"].T + arrays[f"{layer}.in.b"]
        wide = wide * (1 + error(wide / math.sqrt(2))) / 2
        rows = normalise(rows + wide @ arrays[f"{layer}.out.w"].T + arrays[f"{layer}.out.b"], arrays, f"{layer}.out")
    pooled = rows.mean(0) if weights.takes_mean else rows[0]
    return pooled / np.linalg.norm(pooled)


def run(model: bytes, texts: list[list[int]], padding: int = 0) -> Any:
    session: Any = onnxruntime.InferenceSession(model)
    longest = max(map(len, texts))
    ids = np.array([text + [padding] * (longest - len(text)) for text in texts], np.int32)
    return session.run(None, {"ids": ids, "lengths": np.array([len(text) for text in texts], np.int32)})[0]


TEXTS = [[1, 7, 9, 2], [1, 2], [1, *range(3, 40)], [1, 49, 49, 49, 30, 2]]


@pytest.mark.parametrize("takes_mean", [True, False])
def test_vectors_are_those_of_floating_point(takes_mean: bool):
    weights, words = make(takes_mean=takes_mean)
    expected = np.array([compute(weights, words, text) for text in TEXTS])
    assert (run(write(weights), TEXTS) * expected).sum(1).min() > 0.999


@pytest.mark.parametrize("takes_mean", [True, False])
def test_a_vector_does_not_depend_on_what_else_is_in_the_batch_nor_on_what_fills_it_up(takes_mean: bool):
    model = write(make(takes_mean=takes_mean)[0])
    alone = np.concatenate([run(model, [text]) for text in TEXTS])
    for padding in (0, 33):
        assert run(model, TEXTS, padding) == pytest.approx(alone, abs=1e-5)


def test_the_same_weights_give_the_same_bytes():
    assert write(make(takes_mean=True)[0]) == write(make(takes_mean=True)[0])
