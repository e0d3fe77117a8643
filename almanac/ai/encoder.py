"""Encoders: ONNX models with their tokenisers, which turn tokens into vectors.

The folder of a model holds `model.onnx`, `tokenizer.json` and `description.json`. A file whose hash differs from the
description is never loaded. One thread computes a whole batch, and each thread has its own batch. The threads therefore
never wait for each other, and a batch stays in the cache of its core.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, cast

import numpy as np
import onnxruntime  # pyright: ignore[reportMissingTypeStubs]
from numpy.typing import NDArray
from tokenizers import Tokenizer

from almanac.ai.embedder import Vectors, clean, normalise
from almanac.ai.errors import BadModel, WrongDimension

MAX_BATCH_TOKENS = 512  # padding included; larger batches exceed the cache of a core and take longer per token
MAX_TOKEN_CHARS = 32  # assumed when a text is cut before tokenisation
DESCRIPTION = "description.json"
MODEL = "model.onnx"
TOKENIZER = "tokenizer.json"

Tokens = list[int]

_runtime: Any = onnxruntime
_failures: Any = _runtime.capi.onnxruntime_pybind11_state
UNUSABLE = (_failures.Fail, _failures.InvalidProtobuf, _failures.InvalidGraph, _failures.InvalidArgument,
            _failures.NotImplemented, _failures.RuntimeException)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """The content of `description.json`."""

    name: str
    dimension: int
    limit: int  # tokens; further ones are ignored
    pooling: Literal["graph", "cls", "mean"]  # graph: the model itself returns one vector for each text
    languages: frozenset[str]
    query_prefix: str
    passage_prefix: str
    padding: int  # the token for padding
    sha256: dict[str, str]  # of each file


class Model(Protocol):
    """The source of a model."""

    def describe(self) -> ModelDescription:
        """The description of the model. This is fast."""
        ...

    def load(self) -> "Encoder":
        """The model, ready to run. This is slow."""
        ...


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """A model in a folder."""

    path: Path

    def describe(self) -> ModelDescription:
        try:
            given: dict[str, Any] = json.loads((self.path / DESCRIPTION).read_bytes())
            given["languages"] = frozenset(given["languages"])
            return ModelDescription(**given)
        except FileNotFoundError:
            raise BadModel("There is no embedding model of this name.") from None
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise BadModel("The description of the embedding model cannot be read.") from error

    def load(self) -> "Encoder":
        about = self.describe()
        tokeniser = Tokenizer.from_buffer(read_checked(self.path / TOKENIZER, about))
        return Encoder(about, read_checked(self.path / MODEL, about), tokeniser)


class Encoder:
    """A model in memory. Any number of threads may call its functions at once."""

    def __init__(self, about: ModelDescription, model: bytes, tokeniser: Tokenizer) -> None:
        self._about = about
        self._tokeniser: Any = tokeniser
        self._tokeniser.no_padding()
        self._tokeniser.enable_truncation(about.limit)
        self._session = _open_session(model)
        self._inputs = [(it.name, np.int32 if "int32" in it.type else np.int64) for it in self._session.get_inputs()]
        dimension = self.embed([""], "").shape[-1]
        if dimension != about.dimension:
            raise WrongDimension(f"The embedding model returns {dimension} dimensions, not {about.dimension}.")

    def tokenise(self, texts: Sequence[str], prefix: str) -> list[Tokens]:
        """The tokens of each text, up to the limit of the model."""
        max_chars = self._about.limit * MAX_TOKEN_CHARS
        prefixed = [prefix + clean(text, max_chars) for text in texts]
        return [each.ids for each in self._tokeniser.encode_batch_fast(prefixed)]

    def run(self, rows: Sequence[Tokens]) -> Vectors:
        """The vectors of one batch."""
        lengths = np.array([len(row) for row in rows], np.int64)
        mask = cast("NDArray[np.bool_]", np.arange(lengths.max()) < lengths[:, None])
        tokens = np.full(mask.shape, self._about.padding, np.int64)
        tokens[mask] = np.concatenate(rows)
        given: dict[str, NDArray[Any]] = {
            "ids": tokens,
            "lengths": lengths,
            "input_ids": tokens,
            "attention_mask": mask,
            "token_type_ids": np.zeros_like(tokens),
        }
        output: Vectors = self._session.run(None, {name: given[name].astype(kind) for name, kind in self._inputs})[0]
        return output if self._about.pooling == "graph" else normalise(_pool(output, mask, self._about.pooling))

    def embed(self, texts: Sequence[str], prefix: str) -> Vectors:
        """The vectors of texts, in their order."""
        rows = self.tokenise(texts, prefix)
        batches = batch([len(row) for row in rows])
        return restore(batches, [self.run([rows[place] for place in places]) for places in batches])


def batch(lengths: Sequence[int]) -> list[list[int]]:
    """The positions of texts in batches, longest texts first. Texts of a batch have similar lengths: little padding."""
    batches: list[list[int]] = []
    longest = 0
    for place in sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True):
        if batches and (len(batches[-1]) + 1) * longest <= MAX_BATCH_TOKENS:
            batches[-1].append(place)
        else:
            longest = lengths[place]
            batches.append([place])
    return batches


def restore(batches: Sequence[Sequence[int]], computed: Sequence[Vectors]) -> Vectors:
    """The vectors of batches in the order of their texts."""
    return np.concatenate(computed)[np.argsort(np.concatenate(batches))]


def _pool(states: NDArray[Any], mask: NDArray[np.bool_], pooling: str) -> Vectors:
    if pooling == "cls":
        return states[:, 0]
    weights = mask[:, :, None].astype(np.float32)
    return (states * weights).sum(1) / weights.sum(1)


def read_checked(file: Path, about: ModelDescription) -> bytes:
    """The content of a file. The hash covers exactly the bytes that are loaded."""
    try:
        content = file.read_bytes()
    except OSError:
        raise BadModel("A file of the embedding model is missing.") from None
    if hashlib.sha256(content).hexdigest() != about.sha256.get(file.name):
        raise BadModel("A file of the embedding model does not match its hash.")
    return content


def _open_session(content: bytes) -> Any:
    options = _runtime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.enable_mem_pattern = False  # it helps only if all inputs have the same shape
    options.enable_cpu_mem_arena = False  # its buffers are shared, so threads got those in the cache of another core
    options.log_severity_level = 4
    try:
        return _runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except UNUSABLE as error:
        raise BadModel("ONNX Runtime cannot run the embedding model.") from error
