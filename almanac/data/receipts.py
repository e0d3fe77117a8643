"""Receipts: a compact, signed record of a query and the versions that it read, with which anybody may check the result.

A receipt contains no rows. `run.verify` runs its query again on its versions, with the rights of whoever asks.
"""

import base64
import hashlib
import hmac
import zlib
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import orjson

from almanac.core.errors import BadRequest

MAX_RECEIPT_CHARS = 40_000
_PREFIX = "r"  # Base64 may begin with a hyphen, and a command line would take that for an option
_SIGNATURE_BYTES = 16


class InvalidReceipt(BadRequest):
    """This is no receipt of this server."""

    remedy = "Send the whole text of the field `receipt`, as a query returned it."


@dataclass(frozen=True, slots=True)
class ReadDataset:
    """A dataset that a query has read."""

    id: int
    name: str
    version: int
    digest: str  # of the version's fields and files
    rows: int


@dataclass(frozen=True, slots=True)
class Receipt:
    """The origin of a result: the query, the versions and the caller."""

    org_id: str
    language: Literal["sql", "c9ql"]
    query: str
    limit: int
    datasets: tuple[ReadDataset, ...]
    rights: str  # a hash of the row rules that were applied; empty: none
    result: str  # a hash of the fields and rows
    total_rows: int
    at: int
    by: str

    @property
    def rows_read(self) -> int:
        """The number of rows in the datasets that the query read."""
        return sum(each.rows for each in self.datasets)


def seal(receipt: Receipt, key: bytes) -> str:
    """Return a receipt as a signed text."""
    content = zlib.compress(orjson.dumps(asdict(receipt)), 9)
    return _PREFIX + base64.urlsafe_b64encode(_signature(content, key) + content).rstrip(b"=").decode()


def open_sealed(text: str, key: bytes, org_id: str) -> Receipt:
    """Return the receipt of a signed text of this organisation. Raises InvalidReceipt."""
    text = text.strip()
    if len(text) > MAX_RECEIPT_CHARS or not text.startswith(_PREFIX):
        raise InvalidReceipt()
    encoded = text.removeprefix(_PREFIX)
    try:
        raw = base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4))
    except (ValueError, UnicodeError):
        raise InvalidReceipt() from None
    signature, content = raw[:_SIGNATURE_BYTES], raw[_SIGNATURE_BYTES:]
    if not hmac.compare_digest(signature, _signature(content, key)):
        raise InvalidReceipt()
    values: dict[str, Any] = orjson.loads(zlib.decompress(content))
    if values["org_id"] != org_id:
        raise InvalidReceipt()  # another organisation's receipt does not exist
    receipt = Receipt(**values)
    return replace(receipt, datasets=tuple(ReadDataset(**each) for each in values["datasets"]))


def digest_of(fields: Any, rows: Any) -> str:
    """Return the hash of a result. Rows count in their order."""
    return hashlib.sha256(orjson.dumps([fields, rows])).hexdigest()[:32]


def _signature(content: bytes, key: bytes) -> bytes:
    return hmac.digest(key, b"receipt:" + content, "sha256")[:_SIGNATURE_BYTES]
