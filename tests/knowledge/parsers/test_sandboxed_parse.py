"""Parsing in the sandbox: the document, or an error in terms of the document."""

import pytest

from almanac.knowledge.parsers.parse_file import PARSE_FUNCTION
from almanac.knowledge.parsers.parsed_file import UnreadableFile
from almanac.knowledge.parsers.sandboxed_parse import parse_in_sandbox
from almanac.sandbox.confinement import MIB, SandboxLimits
from almanac.sandbox.pool import SandboxPool
from tests.knowledge.corpus.expected import FILES


async def test_a_file_becomes_a_document():
    async with SandboxPool(PARSE_FUNCTION) as pool:
        document = await parse_in_sandbox(pool, FILES / "handbook.md", "handbook.md", {})
    assert (document.extension, document.title) == ("md", "Cold Store Handbook")
    assert document.passages


async def test_a_parser_s_own_reason_is_passed_on():
    async with SandboxPool(PARSE_FUNCTION) as pool:
        with pytest.raises(UnreadableFile) as error:
            await parse_in_sandbox(pool, FILES / "locked.odt", "locked.odt", {})
    assert (error.value.code, error.value.retryable) == ("encrypted", False)


@pytest.mark.parametrize(
    ("work", "code", "message"),
    [
        ("sleep", "parse_timeout", "Reading the file took longer than 0.2 s, or 20 s of processor time. Split it"),
        ("abort_on_failed_allocation", "memory_limit", "Reading the file takes more than 1024 MiB of memory. Split it"),
        ("return_bytes", "output_too_large", "The file contains more than 8 MiB of text. Split it"),
        ("recurse", "too_complex", "The file is nested too deeply. Flatten it"),
        ("abort", "parser_crashed", "The parser crashed on this file (SIGABRT). The file may be damaged"),
        ("echo", "parser_crashed", "The parser returned invalid output"),
    ],
)
async def test_a_failure_of_the_sandbox_names_the_document_and_the_remedy(work: str, code: str, message: str):
    limits = SandboxLimits(wall_seconds=0.2 if work == "sleep" else 60, cpu_seconds=20, output_bytes=8 * MIB)
    async with SandboxPool(f"tests.sandbox.hostile_work:{work}", limits) as pool:
        with pytest.raises(UnreadableFile) as error:
            await parse_in_sandbox(pool, FILES / "handbook.md", "handbook.md", {"size": 9 * MIB})
    assert (error.value.code, error.value.retryable) == (code, False)
    assert error.value.message.startswith(message)
    assert error.value.message.endswith(".")
