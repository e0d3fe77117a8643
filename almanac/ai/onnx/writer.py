"""Writes an ONNX file from nodes and arrays.

It implements only the part of ONNX that our graphs need, because the `onnx` package is three times as large as all our
weights. Field numbers are those of onnx.proto. Equal input gives equal bytes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

_IR_VERSION = 9
_OPSETS = {"": 18, "com.microsoft": 1}
_TYPES = {"float32": 1, "uint8": 2, "int8": 3, "int32": 6, "int64": 7, "bool": 9}
_FLOAT, _INT = 1, 2  # kinds of attributes


@dataclass
class Graph:
    """A graph under construction. Each operation returns the name of its output."""

    nodes: list[bytes] = field(default_factory=list[bytes])
    arrays: dict[str, bytes] = field(default_factory=dict[str, bytes])
    count: int = 0

    def hold(self, name: str, array: NDArray[Any] | np.generic) -> str:
        """Add an array under a name, unless the name exists."""
        if name not in self.arrays:
            array = np.asarray(array)
            dims = b"".join(_number(1, size) for size in array.shape)
            kind = _number(2, _TYPES[array.dtype.name])
            self.arrays[name] = dims + kind + _text(8, name) + _bytes(9, array.tobytes())
        return name

    def apply(self, operation: str, *inputs: str, **attributes: float) -> str:
        """Add a standard operation with one output."""
        return self._add(operation, "", inputs, attributes, 1)[0]

    def fuse(self, operation: str, *inputs: str, **attributes: float) -> str:
        """Add an operation of ONNX Runtime with one output. It combines several standard operations."""
        return self._add(operation, "com.microsoft", inputs, attributes, 1)[0]

    def split(self, value: str, parts: int) -> list[str]:
        """Split the last axis into equal parts."""
        return self._add("Split", "", (value,), {"axis": -1, "num_outputs": parts}, parts)

    def write(self, inputs: Mapping[str, tuple[str, int]], output: str) -> bytes:
        """The content of the file. `inputs` gives the type and the number of axes; the output is named `vectors`."""
        self.nodes.append(_node("Identity", "", (output,), ("vectors",), {}))
        parts = [_bytes(1, node) for node in self.nodes]
        parts += [_text(2, "encoder"), *(_bytes(5, array) for array in self.arrays.values())]
        parts += [_bytes(11, _value(name, *form)) for name, form in inputs.items()]
        parts += [_bytes(12, _value("vectors", "float32", 2))]
        opsets = [_bytes(8, _text(1, domain) + _number(2, version)) for domain, version in _OPSETS.items()]
        return b"".join([_number(1, _IR_VERSION), _bytes(7, b"".join(parts)), *opsets])

    def _add(
        self, operation: str, domain: str, inputs: Sequence[str], attributes: Mapping[str, float], outputs: int
    ) -> list[str]:
        self.count += 1
        names = [f"{self.count}.{place}" for place in range(outputs)]
        self.nodes.append(_node(operation, domain, inputs, names, attributes))
        return names


def _node(
    operation: str, domain: str, inputs: Sequence[str], outputs: Sequence[str], attributes: Mapping[str, float]
) -> bytes:
    parts = [_text(1, name) for name in inputs] + [_text(2, name) for name in outputs] + [_text(4, operation)]
    parts += [_bytes(5, _attribute(name, value)) for name, value in attributes.items()]
    return b"".join([*parts, _text(7, domain)])


def _attribute(name: str, value: float) -> bytes:
    if isinstance(value, int):
        return _text(1, name) + _number(3, value) + _number(20, _INT)
    return _text(1, name) + _key(2, 5) + np.float32(value).tobytes() + _number(20, _FLOAT)


def _value(name: str, kind: str, axes: int) -> bytes:
    shape = b"".join(_bytes(1, _text(2, f"{name}.{axis}")) for axis in range(axes))
    return _text(1, name) + _bytes(2, _bytes(1, _number(1, _TYPES[kind]) + _bytes(2, shape)))


# Protocol buffers


def _key(number: int, wire: int) -> bytes:
    return _varint(number << 3 | wire)


def _number(number: int, value: int) -> bytes:
    return _key(number, 0) + _varint(value % (1 << 64))


def _bytes(number: int, value: bytes) -> bytes:
    return _key(number, 2) + _varint(len(value)) + value


def _text(number: int, value: str) -> bytes:
    return _bytes(number, value.encode())


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])
