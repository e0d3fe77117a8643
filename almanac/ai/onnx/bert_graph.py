"""A transformer of BERT's family as an ONNX graph in 8 bits, from its weights.

Both sides of every product are 8-bit integers. The usual way takes one scale for all activations of a batch, which a
few very large channels then dictate: vectors turn by 16° on average, and change with what else is in the batch. Here

- each token has a scale of its own, so a vector does not depend on its neighbours in a batch;
- large channels are made smaller and their weights larger (SmoothQuant). How large a channel gets is read off the
  weights before it, so that no texts are needed, and none are favoured;
- weights keep within ±64, where no processor's 16-bit sums overflow: every machine gets the same vectors.

What comes out is pooled and of length one. Of the last layer, only what the pooling needs is computed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from almanac.ai.onnx.writer import Graph

MOST_WEIGHT = 64
SPREAD = 4.0  # standard deviations that a channel may be from its mean
MIN_CHANNEL_RANGE = 1e-3
BLOCK = 128  # numbers of a table that share a scale

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Table:
    """Vectors by their numbers: unsigned integers of 4 or 8 bits in blocks, each of which has a scale.

    A row may be stored in another order than it is used in; `order` then says where each channel is.
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
    takes_mean: bool  # of all tokens; otherwise the first one stands for the text


def write(weights: Weights) -> bytes:
    """The ONNX file."""
    writer = _Writer(weights)
    return writer.graph.write({"ids": ("int32", 2), "lengths": ("int32", 1)}, writer.write())


class _Writer:
    def __init__(self, weights: Weights) -> None:
        self.weights = weights
        self.graph = Graph()

    def write(self) -> str:
        state = self._look_up()
        for layer in range(self.weights.layers):
            is_last = layer == self.weights.layers - 1
            state = self._attend(layer, state, only_first=is_last and not self.weights.takes_mean)
            state = self._think(layer, state)
        return self.graph.apply("LpNormalization", self._pool(state), axis=-1, p=2)

    def _look_up(self) -> str:
        """Word, position and segment of each token, added up."""
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
        """0, 1, 2, … to the last place of the longest text."""
        count = self.graph.apply("Squeeze", self.graph.apply("Shape", "ids", start=1, end=2))
        zero, one = self.graph.hold("zero", np.int64(0)), self.graph.hold("one", np.int64(1))
        return self.graph.apply("Range", zero, count, one)

    def _attend(self, layer: int, state: str, *, only_first: bool) -> str:
        before = "first" if layer == 0 else f"{layer - 1}.out"
        name, weights = f"{layer}.qkv", self.weights.arrays[f"{layer}.qkv.w"]
        reach = self._reach_of_norm(before)
        if only_first:
            own = len(weights) // 3
            keys, values = self.graph.split(self._multiply(state, f"{name}.rest", weights[own:], reach), 2)
            state = self._take_first(state)
            queries = self._multiply(state, f"{name}.own", weights[:own], reach)
        else:
            queries, keys, values = self.graph.split(self._multiply(state, name, weights, reach), 3)
        heard = self.graph.fuse("MultiHeadAttention", queries, keys, values, self._array(f"{name}.b"), "lengths",
                                num_heads=self.weights.heads)  # fmt: skip
        name = f"{layer}.attended"
        weights = self.weights.arrays[f"{name}.w"]
        return self._add(state, self._multiply(heard, name, weights, np.ones(len(weights), np.float32)), name)

    def _think(self, layer: int, state: str) -> str:
        arrays = self.weights.arrays
        wide = self._multiply(state, f"{layer}.in", arrays[f"{layer}.in.w"], self._reach_of_norm(f"{layer}.attended"))
        wide = self.graph.fuse("BiasGelu", wide, self._array(f"{layer}.in.b"))
        reach = self._reach_of_product(f"{layer}.in", f"{layer}.attended")
        return self._add(state, self._multiply(wide, f"{layer}.out", arrays[f"{layer}.out.w"], reach), f"{layer}.out")

    def _pool(self, state: str) -> str:
        graph = self.graph
        if self.weights.takes_mean:  # the sum will do, for its length is made one
            places = self._count_places()
            lengths = graph.apply("Unsqueeze", graph.apply("Cast", "lengths", to=7), self._integers("12", 1, 2))
            state = graph.apply("MatMul", graph.apply("Cast", graph.apply("Less", places, lengths), to=1), state)
        return graph.apply("Squeeze", state, self._integers("1", 1))

    def _take_first(self, state: str) -> str:
        first, second = self._integers("0", 0), self._integers("1", 1)
        return self.graph.apply("Slice", state, first, second, second)

    def _add(self, state: str, change: str, name: str) -> str:
        """The state and a change to it, brought back to its usual size."""
        return self.graph.fuse("SkipLayerNormalization", state, change, *self._norm(name), self._array(f"{name}.b"),
                               epsilon=self.weights.epsilon)  # fmt: skip

    def _multiply(self, value: str, name: str, weights: Floats, reach: Floats) -> str:
        """The product with weights, in integers."""
        graph = self.graph
        factors = np.sqrt(
            np.maximum(reach, MIN_CHANNEL_RANGE) * np.maximum(np.abs(weights).max(0), MIN_CHANNEL_RANGE) ** -1
        )
        value = graph.apply("Mul", value, graph.hold(f"{name}.factors", (1 / factors).astype(np.float32)))
        most = graph.apply("ReduceMax", graph.apply("Abs", value), self._integers("last", -1), keepdims=1)
        step, middle = graph.hold("step of one", np.float32(1 / 127)), graph.hold("middle", np.uint8(128))
        whole = graph.apply("QuantizeLinear", graph.apply("Div", value, most), step, middle)
        codes, scales = _quantise(weights * factors)
        held = graph.hold(f"{name}.codes", np.ascontiguousarray(codes.T)), graph.hold(f"{name}.scales", scales)
        return graph.apply("Mul", graph.fuse("MatMulIntegerToFloat", whole, held[0], step, held[1], middle), most)

    def _reach_of_norm(self, name: str) -> Floats:
        """How far from zero what a normalisation gives may be, by channel."""
        arrays = self.weights.arrays
        reach = SPREAD * np.abs(arrays[f"{name}.norm.w"]) + np.abs(arrays[f"{name}.norm.b"])
        return reach.astype(np.float32)

    def _reach_of_product(self, name: str, before: str) -> Floats:
        """The same of a product of what a normalisation gives."""
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
    """Vectors as a table of 8 bits."""
    blocks = rows.reshape(len(rows), -1, BLOCK)
    scales = np.maximum(np.abs(blocks).max(2), 1e-12) / 127
    codes = np.rint(blocks / scales[:, :, None]) + 128
    return Table(codes.astype(np.uint8).reshape(rows.shape), scales.astype(np.float32), bits=8)


def _quantise(weights: Floats) -> tuple[NDArray[Any], Floats]:
    """Integers, and a scale for each row."""
    scales = np.maximum(np.abs(weights).max(1), 1e-12) / MOST_WEIGHT
    return np.rint(weights / scales[:, None]).astype(np.int8), scales.astype(np.float32)
