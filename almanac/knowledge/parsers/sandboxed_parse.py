"""Parse a file in the sandbox: the server's side of `parse_file.parse_and_split`."""

import asyncio
from pathlib import Path
from typing import Any

from almanac.knowledge.parsers.parse_message import ParsedDocument, unpack
from almanac.knowledge.parsers.parsed_file import UnreadableFile
from almanac.sandbox.errors import WorkRejected
from almanac.sandbox.pool import SandboxPool

MAX_BYTES_WITHOUT_THREAD = 1_000_000  # a larger message is unpacked in a thread: the event loop has leases to renew

# Code of the sandbox: code and message for the document. "{}" stands for the detail that the sandbox gives.
_FAILURES = {
    "timeout": ("parse_timeout", "Reading the file took longer than {}. Split it and add the parts."),
    "memory_limit": ("memory_limit", "Reading the file takes more than {} of memory. Split it and add the parts."),
    "output_limit": ("output_too_large", "The file contains more than {} of text. Split it and add the parts."),
    "recursion_limit": ("too_complex", "The file is nested too deeply. Flatten it and add it again."),
    "crashed": (
        "parser_crashed",
        "The parser crashed on this file ({}). The file may be damaged: open it in the program that made it, save it "
        "again and add that copy.",
    ),
    "interrupted": ("parser_crashed", "The parser was interrupted ({}). Try again."),
}


async def parse_in_sandbox(pool: SandboxPool, path: Path, name: str, options: dict[str, Any]) -> ParsedDocument:
    """Parse a file; raises `UnreadableFile` or `SandboxUnavailable`. `options` are those of the splitter."""
    try:
        message = await pool.run([path], name, options)
    except WorkRejected as error:
        code, message = _FAILURES.get(error.code, (error.code, "{}"))
        raise UnreadableFile(code, message.format(error.message), retryable=error.retryable) from None
    if len(message) > MAX_BYTES_WITHOUT_THREAD:
        return await asyncio.to_thread(unpack, message)
    return unpack(message)
