"""A report: what came of a haul, for people and for programs."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from almanac.cli.support.file_walk import Skipped
from almanac.cli.support.ingest_run import OUTCOMES, IngestFile, IngestRun
from almanac.cli.support.progress import counted, rate
from almanac.cli.support.terminal import print_line, print_rows

_MOST_SKIPPED = 20  # lines about what was left out

# Every file of a haul has one of these ends, so that their numbers add up to that of the files.
_READ, _UNCHANGED, _UNREADABLE, _NOT_TAKEN = "read", "unchanged", "kept but not readable", "not taken"
_QUEUED, _GONE, _LEFT, _SKIPPED = "queued", "removed meanwhile", "not reached", "skipped"
_ENDS = (_READ, _UNCHANGED, _QUEUED, _UNREADABLE, _GONE, _SKIPPED, _NOT_TAKEN, _LEFT)


def tell(haul: IngestRun, skipped: Sequence[Skipped], *, is_stopped: bool) -> None:
    """For people: what was left out and what is to come on standard error, failures and numbers on standard output."""
    console = Console(stderr=True)
    for each in skipped[:_MOST_SKIPPED]:
        console.print(f"skipped {each.label}: {each.reason}", markup=False, highlight=False, soft_wrap=True)
    if len(skipped) > _MOST_SKIPPED:
        console.print(f"skipped {len(skipped) - _MOST_SKIPPED} more")
    if haul.failures:
        rows = [{"file": piece.label, "code": piece.code, "message": piece.message} for piece in haul.failures]
        print_rows(rows, False, empty="")
    print_line(summary(haul, len(skipped)))
    if rest := _outlook(haul, is_stopped):
        console.print(rest, highlight=False, soft_wrap=True)


def summary(haul: IngestRun, skipped: int) -> str:
    """As in: 40 files: 21 read, 11 kept but not readable, 7 skipped, 1 not taken; 31 pages in 0.9 s, 34.4 pages/s."""
    ends = Counter(_end(piece) for piece in haul.pieces)
    ends[_SKIPPED] = skipped
    numbers = ", ".join(f"{ends[end]} {end}" for end in _ENDS if ends[end]) or "nothing to do"
    return "; ".join(filter(None, (f"{counted(ends.total(), 'file')}: {numbers}", _speed(haul))))


def as_object(haul: IngestRun, skipped: Sequence[Skipped]) -> Mapping[str, Any]:
    """For programs."""
    left = sum(piece.status == "waiting" for piece in haul.pieces)
    return {
        "base": haul.base_id,
        **{outcome: sum(piece.outcome == outcome for piece in haul.pieces) for outcome in OUTCOMES},
        "failed": len(haul.failures),
        "queued": len(haul.pieces) - haul.done - left,
        "left": left,
        "skipped": len(skipped),
        "pages": haul.pages,
        "passages": haul.covered and haul.covered.passages,
        "embedded": haul.covered and haul.covered.embedded,
        "seconds": round(haul.seconds, 3),
        "files": [_as_file(piece) for piece in haul.pieces],
        "left_out": [{"path": each.label, "reason": each.reason} for each in skipped],
    }


def _as_file(piece: IngestFile) -> Mapping[str, Any]:
    reason = {"code": piece.code, "message": piece.message} if piece.status == "failed" else None
    return {
        "path": piece.label,
        "document_id": piece.document_id,
        "outcome": piece.outcome or None,
        "status": piece.status,
        "pages": piece.pages,
        "failure": reason,
    }


def _end(piece: IngestFile) -> str:
    if piece.status == "failed":
        return _NOT_TAKEN if piece.document_id is None else _UNREADABLE
    if piece.has_ended:
        return _READ if piece.was_read else _GONE if piece.status == "removed" else _UNCHANGED
    return _LEFT if piece.status == "waiting" else _QUEUED


def _speed(haul: IngestRun) -> str:
    """What was read and how fast; in files where their formats have no pages."""
    pages = counted(haul.pages, "page") if haul.pages else ""
    files = counted(haul.unpaged, "file") + (" without pages" if pages else "") if haul.unpaged else ""
    what = " and ".join(filter(None, (pages, files)))
    return ", ".join(filter(None, (f"{what} in {haul.seconds:.1f} s", rate(haul)))) if what else ""


def _outlook(haul: IngestRun, is_stopped: bool) -> str:
    """Who goes on with what is not done, and when."""
    queued = sum(_end(piece) == _QUEUED for piece in haul.pieces)
    if not is_stopped and queued:
        return "Queued: a running server or 'almanac worker' reads them."
    if not queued and not any(_end(piece) == _LEFT for piece in haul.pieces):
        return _unembedded(haul, is_stopped)
    waiting = f"{counted(queued, 'queued file')} will be read by a running server; " if queued else ""
    return f"Stopped; {waiting}run the command again to go on."


def _unembedded(haul: IngestRun, is_stopped: bool) -> str:
    """What passages without vectors can be found by, and who gives them some."""
    if haul.covered is None or haul.covered.embedded >= haul.covered.passages:
        return ""
    had = f"{haul.covered.embedded:,} of {counted(haul.covered.passages, 'passage')} embedded"
    begin = f"Stopped; {had}." if is_stopped else f"{had}; see 'almanac doctor'."
    return f"{begin} All are found by their words already; a running server or 'almanac worker' embeds the rest."
