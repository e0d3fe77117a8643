"""Hostile files in the real sandbox with the real parsers: each gives text or a clear reason, and does no harm."""

import os
import socket
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from almanac.knowledge.parsers.parse_file import PARSE_FUNCTION
from almanac.knowledge.parsers.parse_message import ParsedDocument
from almanac.knowledge.parsers.parsed_file import UnreadableFile
from almanac.knowledge.parsers.sandboxed_parse import parse_in_sandbox
from almanac.sandbox.child import ExitReport
from almanac.sandbox.confinement import MIB, SandboxLimits
from almanac.sandbox.pool import SandboxPool
from tests.knowledge.parsers import hostile_files
from tests.knowledge.parsers.handmade_files import VALID, WORDS
from tests.sandbox.processes import children_of, fork_server_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

LIMITS = SandboxLimits(memory_bytes=1024 * MIB, cpu_seconds=15, wall_seconds=90)
SECRET = "the-secret-of-another-file"
NAMES = list(hostile_files.files(hostile_files.Outside("", "")))

TEXT = "text"
LIMIT_CODES = {
    "too_large",
    "memory_limit",
    "parse_timeout",
    "output_too_large",
    "too_complex",
}  # any of them is acceptable
BROKEN = {"corrupt", "too_large"}

# The permitted results of each file: its text, or the code of an error. The keys are prefixes of names; the longest
# matching prefix counts.
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
    "PDF bomb": {TEXT, *LIMIT_CODES},
    "PDF with": {"empty", "ocr_missing", *LIMIT_CODES},
    "encrypted": {"encrypted"},
    "encrypted: zip": {"unsupported_format"},
    "compound file": {"empty", *BROKEN},
    "a billion pixels": {"too_large", "ocr_missing"},
    "more pixels": {"empty", "corrupt", "ocr_missing", *LIMIT_CODES},
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
    "csv": {TEXT, "corrupt", *LIMIT_CODES},
    "deep": {TEXT, "corrupt", *LIMIT_CODES},
    "forwarded eml": {TEXT, "corrupt", *LIMIT_CODES},
    "wide eml": {TEXT},
    "one line of 200 MB": {TEXT, "too_large"},
    "truncated": {"corrupt"},
    **{f"truncated: {prefix}": {TEXT} for prefix in ("rtf", "html", "eml", "json", "csv", "md")},
    "truncated: png": {"corrupt", "ocr_missing"},
    "empty": {"empty"},
}
EXPECTED_OTHERWISE = {TEXT, "empty", "corrupt", *LIMIT_CODES}  # for files that are merely very long


@dataclass
class Target:
    """A sandbox with the parsers, the cost of its children, and a socket and a file that no hostile file may reach."""

    pool: SandboxPool
    listener: socket.socket
    secret: Path
    reports: list[ExitReport]

    @property
    def outside(self) -> hostile_files.Outside:
        return hostile_files.Outside(str(self.secret), f"http://127.0.0.1:{self.listener.getsockname()[1]}/x")


@pytest.fixture(scope="module")
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        yield listening


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def target(listener: socket.socket, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Target]:
    secret = tmp_path_factory.mktemp("elsewhere") / "secret"
    secret.write_text(SECRET, "utf-8")
    reports: list[ExitReport] = []
    async with SandboxPool(PARSE_FUNCTION, LIMITS, on_exit=reports.append) as pool:
        yield Target(pool, listener, secret, reports)


def expected(name: str) -> set[str]:
    matching = [prefix for prefix in EXPECTED if name.startswith(prefix)]
    return EXPECTED[max(matching, key=len)] if matching else EXPECTED_OTHERWISE


async def parse(target: Target, path: Path, name: str) -> ParsedDocument | UnreadableFile:
    try:
        return await parse_in_sandbox(target.pool, path, name, {})
    except UnreadableFile as error:
        return error


@pytest.mark.parametrize("name", NAMES)
async def test_a_hostile_file_gives_text_or_a_reason_and_does_no_harm(name: str, target: Target, tmp_path: Path):
    made = hostile_files.files(target.outside)[name]()
    path = tmp_path / "content"
    path.write_bytes(made.content)
    server = fork_server_of(os.getpid())

    result = await parse(target, path, made.name)

    assert fork_server_of(os.getpid()) == server
    assert children_of(server) == []
    report = target.reports[-1]
    assert report.peak_bytes <= LIMITS.memory_bytes
    assert report.seconds <= LIMITS.wall_seconds + 5
    if isinstance(result, UnreadableFile):
        assert result.code in expected(name)
        output = result.message
    else:
        assert TEXT in expected(name)
        assert result.text.strip()
        output = str(result)
    assert SECRET not in output
    assert "root:" not in output
    with pytest.raises(BlockingIOError):
        target.listener.accept()
    assert not Path("/tmp/almanac-attack").exists()


@pytest.mark.parametrize("name", sorted(VALID))
async def test_the_valid_forms_of_these_files_are_parsed(name: str, target: Target, tmp_path: Path):
    """Otherwise the damaged files could be refused for the wrong reason."""
    path = tmp_path / "content"
    path.write_bytes(VALID[name]())
    document = await parse_in_sandbox(target.pool, path, f"valid.{name}", {})
    assert document.extension == name
    assert document.text.strip()


async def test_the_sandbox_still_works_after_all_of_them(target: Target, tmp_path: Path):
    path = tmp_path / "content"
    path.write_bytes(VALID["docx"]())
    assert (await parse_in_sandbox(target.pool, path, "valid.docx", {})).text.strip() == WORDS


async def test_every_expectation_applies_to_a_file():
    assert [prefix for prefix in EXPECTED if not any(name.startswith(prefix) for name in NAMES)] == []
