"""Writes a transformer of the BERT family as an ONNX graph with 8-bit integers, from its weights.

Both factors of every product are 8-bit integers. Usual quantisation has one scale for all activations of a batch, and a
few very large channels determine it: vectors turn by 16° on average, and depend on the other texts of the batch. Here

- each token has its own scale, so a vector does not depend on the other texts of a batch;
- large channels are reduced and their weights increased (SmoothQuant). The range of a channel is estimated from the
  weights before it, so the result does not depend on a choice of sample texts;
- weights stay within ±64, so that the 16-bit sums of no processor overflow: every machine computes the same vectors.

The output is pooled and has length one. Of the last layer, only the part that pooling needs is computed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from almanac.ai.onnx.writer import Graph

MAX_WEIGHT = 64
SPREAD = 4.0  # assumed range of a channel, in standard deviations from its mean
MIN_CHANNEL_RANGE = 1e-3
BLOCK_NUMBERS = 128  # the numbers of a block share a scale

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Table:
    """Vectors by index: unsigned integers of 4 or 8 bits in blocks with one scale each.

    The channels of a stored row may have another order; `order` then holds the position of each channel.
    """

    codes: NDArray[np.uint8]
    scales: Floats
    bits: int
    order: NDArray[np.int64] | None = None


@dataclass(frozen=True, slots=True)
class Weights:
    """All weights. Arrays are `positions`, `first.norm.w` and `.b`, and of each layer `0.qkv.w`, `0.attended.w`, …"""

    layers: int
    heads: int
    epsilon: float
    words: Table
    arrays: Mapping[str, Floats]
    takes_mean: bool  # pooling: the mean of all tokens, or the first token


def write(weights: Weights) -> bytes:
    """The ONNX file."""
    writer = _GraphWriter(weights)
    return writer.graph.write({"ids": ("int32", 2), "lengths": ("int32", 1)}, writer.write())


class _GraphWriter:
    def __init__(self, weights: Weights) -> None:
        self.weights = weights
        self.graph = Graph()

    def write(self) -> str:
        state = self._embed_tokens()
        for layer in range(self.weights.layers):
            is_last = layer == self.weights.layers - 1
            state = self._attend(layer, state, only_first=is_last and not self.weights.takes_mean)
            state = self._feed_forward(layer, state)
        return self.graph.apply("LpNormalization", self._pool(state), axis=-1, p=2)

    def _embed_tokens(self) -> str:
        """The sum of the word, position and segment embeddings of each token."""
        graph = self.graph
        words = self._gather("words", self.weights.words, "ids")
        places = self._gather("positions", tabulate(self.weights.arrays["positions"]), self._count_places())
        return graph.apply("LayerNormalization", graph.apply("Add", words, places), *self._norm("first"),
                           axis=-1, epsilon=self.weights.epsilon)  # fmt: skip

    def _gather(self, name: str, table: Table, which: str) -> str:
        graph = self.graph
        size = table.codes.shape[1] * 8 // table.bits // table.scales.shape[1]
        codes, scales = graph.hold(f"{name}.codes", table.codes), graph.hold(f"{name}.scales", table.scales)
        rows = graph.fuse("GatherBlockQuantized", codes, which, scales,
                          gather_axis=0, quantize_axis=1, block_size=size, bits=table.bits)  # fmt: skip
        if table.order is None:
            return rows
        return graph.apply("Gather", rows, graph.hold(f"{name}.order", table.order), axis=-1)

    def _count_places(self) -> str:
        """0, 1, 2, … to the last position of the longest text."""
        count = self.graph.apply("Squeeze", self.graph.apply("Shape", "ids", start=1, end=2))
        zero, one = self.graph.hold("zero", np.int64(0)), self.graph.hold("one", np.int64(1))
        return self.graph.apply("Range", zero, count, one)

    def _attend(self, layer: int, state: str, *, only_first: bool) -> str:
        before = "first" if layer == 0 else f"{layer - 1}.out"
        name, weights = f"{layer}.qkv", self.weights.arrays[f"{layer}.qkv.w"]
        maxima = self._maxima_of_norm(before)
        if only_first:
            own = len(weights) // 3
            keys, values = self.graph.split(self._multiply(state, f"{name}.rest", weights[own:], maxima), 2)
            state = self._take_first(state)
            queries = self._multiply(state, f"{name}.own", weights[:own], maxima)
        else:
            queries, keys, values = self.graph.split(self._multiply(state, name, weights, maxima), 3)
        attended = self.graph.fuse("MultiHeadAttention", queries, keys, values, self._array(f"{name}.b"), "lengths",
                                num_heads=self.weights.heads)  # fmt: skip
        name = f"{layer}.attended"
        weights = self.weights.arrays[f"{name}.w"]
        return self._add(state, self._multiply(attended, name, weights, np.ones(len(weights), np.float32)), name)

    def _feed_forward(self, layer: int, state: str) -> str:
        arrays = self.weights.arrays
        wide = self._multiply(state, f"{layer}.in", arrays[f"{layer}.in.w"], self._maxima_of_norm(f"{layer}.attended"))
        wide = self.graph.fuse("BiasGelu", wide, self._array(f"{layer}.in.b"))
        maxima = self._maxima_of_product(f"{layer}.in", f"{layer}.attended")
        return self._add(state, self._multiply(wide, f"{layer}.out", arrays[f"{layer}.out.w"], maxima), f"{layer}.out")

    def _pool(self, state: str) -> str:
        graph = self.graph
        if self.weights.takes_mean:  # the sum is enough, because it is scaled to length one
            places = self._count_places()
            lengths = graph.apply("Unsqueeze", graph.apply("Cast", "lengths", to=7), self._integers("12", 1, 2))
            state = graph.apply("MatMul", graph.apply("Cast", graph.apply("Less", places, lengths), to=1), state)
        return graph.apply("Squeeze", state, self._integers("1", 1))

    def _take_first(self, state: str) -> str:
        first, second = self._integers("0", 0), self._integers("1", 1)
        return self.graph.apply("Slice", state, first, second, second)

    def _add(self, state: str, change: str, name: str) -> str:
        """The normalised sum of the state and a change."""
        return self.graph.fuse("SkipLayerNormalization", state, change, *self._norm(name), self._array(f"{name}.b"),
                               epsilon=self.weights.epsilon)  # fmt: skip

    def _multiply(self, value: str, name: str, weights: Floats, maxima: Floats) -> str:
        """The product with the weights, computed in integers."""
        graph = self.graph
        factors = np.sqrt(
            np.maximum(maxima, MIN_CHANNEL_RANGE) * np.maximum(np.abs(weights).max(0), MIN_CHANNEL_RANGE) ** -1
        )
        value = graph.apply("Mul", value, graph.hold(f"{name}.factors", (1 / factors).astype(np.float32)))
        most = graph.apply("ReduceMax", graph.apply("Abs", value), self._integers("last", -1), keepdims=1)
        step, middle = graph.hold("step of one", np.float32(1 / 127)), graph.hold("middle", np.uint8(128))
        whole = graph.apply("QuantizeLinear", graph.apply("Div", value, most), step, middle)
        codes, scales = _quantise(weights * factors)
        held = graph.hold(f"{name}.codes", np.ascontiguousarray(codes.T)), graph.hold(f"{name}.scales", scales)
        return graph.apply("Mul", graph.fuse("MatMulIntegerToFloat", whole, held[0], step, held[1], middle), most)

    def _maxima_of_norm(self, name: str) -> Floats:
        """The estimated maximum of each channel after a normalisation."""
        arrays = self.weights.arrays
        maxima = SPREAD * np.abs(arrays[f"{name}.norm.w"]) + np.abs(arrays[f"{name}.norm.b"])
        return maxima.astype(np.float32)

    def _maxima_of_product(self, name: str, before: str) -> Floats:
        """The estimated maximum of each channel after a normalisation and a product."""
        arrays = self.weights.arrays
        weights = arrays[f"{name}.w"]
        mean = weights @ arrays[f"{before}.norm.b"] + arrays[f"{name}.b"]
        spread = np.sqrt(np.square(weights * arrays[f"{before}.norm.w"]).sum(1))
        return (SPREAD * spread + np.abs(mean)).astype(np.float32)

    def _norm(self, name: str) -> tuple[str, str]:
        return self._array(f"{name}.norm.w"), self._array(f"{name}.norm.b")

    def _array(self, name: str) -> str:
        return self.graph.hold(name, self.weights.arrays[name])

    def _integers(self, name: str, *values: int) -> str:
        return self.graph.hold(f"integers {name}", np.array(values, np.int64))


def tabulate(rows: Floats) -> Table:
    """The vectors as a table with 8 bits per number."""
    blocks = rows.reshape(len(rows), -1, BLOCK_NUMBERS)
    scales = np.maximum(np.abs(blocks).max(2), 1e-12) / 127
    codes = np.rint(blocks / scales[:, :, None]) + 128
    return Table(codes.astype(np.uint8).reshape(rows.shape), scales.astype(np.float32), bits=8)


def _quantise(weights: Floats) -> tuple[NDArray[Any], Floats]:
    """The weights as integers, and the scale of each row."""
    scales = np.maximum(np.abs(weights).max(1), 1e-12) / MAX_WEIGHT
    return np.rint(weights / scales[:, None]).astype(np.int8), scales.astype(np.float32)
