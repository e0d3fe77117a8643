"""Hostile files in the real nursery, with the real parsers: each gives text or a clear reason, and harms nobody."""

import json
import os
import socket
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import pytest_asyncio

from almanac.knowledge.parsers import parse_file
from almanac.sandbox.child import ExitReport
from almanac.sandbox.confinement import MIB, SandboxLimits
from almanac.sandbox.errors import WorkRejected
from almanac.sandbox.pool import SandboxPool
from almanac.sandbox.result import SandboxResult
from tests.knowledge.parsers import hostile
from tests.knowledge.parsers.forgery import VALID, WORDS
from tests.knowledge.parsers.processes import children_of, nursery_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

LIMITS = SandboxLimits(memory_bytes=1024 * MIB, cpu_seconds=15, wall_seconds=90)
SECRET = "the-secret-of-another-file"
NAMES = list(hostile.files(hostile.Outside("", "")))

TEXT = "text"
BOUNDS = {"too_large", "memory_limit", "parse_timeout", "output_too_large", "too_complex"}  # which one is no matter
BROKEN = {"corrupt", "too_large"}

# What may come of a file: its text, or the code of a reason. By the beginning of its name; the longest that fits.
EXPECTED: Mapping[str, set[str]] = {
    "zip bomb": {"too_large"},
    "zip bomb: docx that claims": BROKEN,
    "zip bomb: xlsx that claims": BROKEN | {"empty"},
    "zip bomb: nested": {"unsupported_format"},
    "zip bomb: nested in docx": {TEXT},
    "zip of": {"too_large"},
    "XML bomb": BROKEN,
    "XML bomb: epub": {TEXT, *BROKEN},
    "XML bomb: html": {TEXT},
    "XXE": {TEXT, *BROKEN},
    "PDF": {TEXT, *BROKEN},
    "PDF bomb": {TEXT, *BOUNDS},
    "PDF with": {"empty", "ocr_missing", *BOUNDS},
    "encrypted": {"encrypted"},
    "encrypted: zip": {"unsupported_format"},
    "compound file": {"empty", *BROKEN},
    "a billion pixels": {"too_large", "ocr_missing"},
    "more pixels": {"empty", "corrupt", "ocr_missing", *BOUNDS},
    "pdf named txt": {TEXT},
    "exe named": {"unsupported_format"},
    "elf named": {"unsupported_format"},
    "zip named": {"unsupported_format"},
    "noise named": {"unsupported_format"},
    "paths that lead out: docx": {TEXT},
    "paths that lead out: epub": {"empty", "corrupt"},
    "a name that": {TEXT},
    "macros": {TEXT},
    "sparse xlsx": {TEXT, "too_large"},
    "xlsx that claims": {TEXT},
    "xlsx of one merged": {TEXT},
    "xlsx beyond": {"corrupt"},
    "ods of one": {TEXT, "too_large"},
    "csv": {TEXT, "corrupt", *BOUNDS},
    "deep": {TEXT, "corrupt", *BOUNDS},
    "forwarded eml": {TEXT, "corrupt", *BOUNDS},
    "wide eml": {TEXT},
    "one line of 200 MB": {TEXT, "too_large"},
    "truncated": {"corrupt"},
    **{f"truncated: {each}": {TEXT} for each in ("rtf", "html", "eml", "json", "csv", "md")},
    "truncated: png": {"corrupt", "ocr_missing"},
    "empty": {"empty"},
}
LONG = {TEXT, "empty", "corrupt", *BOUNDS}  # texts that are only tedious


@dataclass
class Trap:
    """A nursery, what its children took, and what no file may reach."""

    nursery: SandboxPool
    listener: socket.socket
    secret: Path
    verdicts: list[ExitReport] = field(default_factory=list[ExitReport])

    @property
    def outside(self) -> hostile.Outside:
        return hostile.Outside(str(self.secret), f"http://127.0.0.1:{self.listener.getsockname()[1]}/x")


@pytest.fixture(scope="module")
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        yield listening


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def trap(listener: socket.socket, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Trap]:
    secret = tmp_path_factory.mktemp("elsewhere") / "secret"
    secret.write_text(SECRET, "utf-8")
    verdicts: list[ExitReport] = []
    async with SandboxPool(parse_file.PARSE_FUNCTION, LIMITS, watch=verdicts.append) as nursery:
        yield Trap(nursery, listener, secret, verdicts)


def expected(name: str) -> set[str]:
    fitting = [each for each in EXPECTED if name.startswith(each)]
    return EXPECTED[max(fitting, key=len)] if fitting else LONG


async def read(trap: Trap, path: Path, name: str) -> SandboxResult | WorkRejected:
    try:
        return await trap.nursery.parse(path, name, {})
    except WorkRejected as error:
        return error


@pytest.mark.parametrize("name", NAMES)
async def test_a_hostile_file_gives_text_or_a_reason_and_harms_nobody(name: str, trap: Trap, tmp_path: Path):
    made = hostile.files(trap.outside)[name]()
    path = tmp_path / "content"
    path.write_bytes(made.content)
    home = nursery_of(os.getpid())

    found = await read(trap, path, made.name)

    assert nursery_of(os.getpid()) == home
    assert children_of(home) == []
    verdict = trap.verdicts[-1]
    assert verdict.peak_bytes <= LIMITS.memory_bytes
    assert verdict.seconds <= LIMITS.wall_seconds + 5
    if isinstance(found, WorkRejected):
        assert found.code in expected(name)
        said = found.message
    else:
        assert TEXT in expected(name)
        assert parse_file.unpack(found.result).text.strip()
        said = found.result.decode()
    assert SECRET not in said
    assert "root:" not in said
    with pytest.raises(BlockingIOError):
        trap.listener.accept()
    assert not Path("/tmp/almanac-evil").exists()


@pytest.mark.parametrize("name", sorted(VALID))
async def test_the_sound_forms_of_these_files_are_read(name: str, trap: Trap, tmp_path: Path):
    """Or the broken ones would be refused for the wrong reason."""
    path = tmp_path / "content"
    path.write_bytes(VALID[name]())
    found = json.loads((await trap.nursery.parse(path, f"sound.{name}", {})).result)
    assert found["extension"] == name
    assert found["text"].strip()


async def test_the_nursery_reads_on_after_all_of_them(trap: Trap, tmp_path: Path):
    path = tmp_path / "content"
    path.write_bytes(VALID["docx"]())
    assert parse_file.unpack((await trap.nursery.parse(path, "sound.docx", {})).result).text.strip() == WORDS


async def test_every_expectation_is_of_a_file_that_exists():
    assert [each for each in EXPECTED if not any(name.startswith(each) for name in NAMES)] == []
