"""The report of an ingest run, as text and as JSON."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from almanac.cli.support.file_walk import SkippedFile
from almanac.cli.support.ingest_run import OUTCOMES, IngestFile, IngestRun
from almanac.cli.support.output import print_line, print_note, print_rows
from almanac.cli.support.progress import counted, rate

_MAX_SKIPPED_LINES = 20

# Every file of a run has one of these results, so their counts add up to the number of files.
_PARSED, _UNCHANGED, _UNREADABLE, _REFUSED = "read", "unchanged", "kept but not readable", "not taken"
_QUEUED, _REMOVED, _NOT_REACHED, _SKIPPED = "queued", "removed meanwhile", "not reached", "skipped"
_RESULTS = (_PARSED, _UNCHANGED, _QUEUED, _UNREADABLE, _REMOVED, _SKIPPED, _REFUSED, _NOT_REACHED)


def print_report(run: IngestRun, skipped: Sequence[SkippedFile], *, is_stopped: bool) -> None:
    """Print failures and counts on standard output, and skipped files and the work that is left on standard error."""
    for file in skipped[:_MAX_SKIPPED_LINES]:
        print_note(f"skipped {file.label}: {file.reason}")
    if len(skipped) > _MAX_SKIPPED_LINES:
        print_note(f"skipped {len(skipped) - _MAX_SKIPPED_LINES} more")
    if run.failures:
        rows = [{"file": file.label, "code": file.code, "message": file.message} for file in run.failures]
        print_rows(rows, False, empty="")
    print_line(summary(run, len(skipped)))
    if work_left := _work_left(run, is_stopped):
        print_note(work_left)


def summary(run: IngestRun, skipped: int) -> str:
    """Return a line such as: 40 files: 21 read, 11 kept but not readable, 8 skipped; 31 pages in 0.9 s, 34 pages/s."""
    counts = Counter(_result(file) for file in run.files)
    counts[_SKIPPED] = skipped
    numbers = ", ".join(f"{counts[result]} {result}" for result in _RESULTS if counts[result]) or "nothing to do"
    return "; ".join(filter(None, (f"{counted(counts.total(), 'file')}: {numbers}", _speed(run))))


def to_json(run: IngestRun, skipped: Sequence[SkippedFile]) -> Mapping[str, Any]:
    """Return the report for programs."""
    not_reached = sum(file.status == "waiting" for file in run.files)
    return {
        "base": run.base_id,
        **{outcome: sum(file.outcome == outcome for file in run.files) for outcome in OUTCOMES},
        "failed": len(run.failures),
        "queued": len(run.files) - run.done - not_reached,
        "left": not_reached,
        "skipped": len(skipped),
        "pages": run.pages,
        "passages": run.coverage and run.coverage.passages,
        "embedded": run.coverage and run.coverage.embedded,
        "seconds": round(run.seconds, 3),
        "files": [_file_to_json(file) for file in run.files],
        "left_out": [{"path": skip.label, "reason": skip.reason} for skip in skipped],
    }


def _file_to_json(file: IngestFile) -> Mapping[str, Any]:
    failure = {"code": file.code, "message": file.message} if file.status == "failed" else None
    return {
        "path": file.label,
        "document_id": file.document_id,
        "outcome": file.outcome or None,
        "status": file.status,
        "pages": file.pages,
        "failure": failure,
    }


def _result(file: IngestFile) -> str:
    if file.status == "failed":
        return _REFUSED if file.document_id is None else _UNREADABLE
    if file.has_ended:
        return _PARSED if file.was_parsed else _REMOVED if file.status == "removed" else _UNCHANGED
    return _NOT_REACHED if file.status == "waiting" else _QUEUED


def _speed(run: IngestRun) -> str:
    """Return the parsed pages, the files of formats without pages, and the rate."""
    pages = counted(run.pages, "page") if run.pages else ""
    files = counted(run.unpaged, "file") + (" without pages" if pages else "") if run.unpaged else ""
    parsed = " and ".join(filter(None, (pages, files)))
    return ", ".join(filter(None, (f"{parsed} in {run.seconds:.1f} s", rate(run)))) if parsed else ""


def _work_left(run: IngestRun, is_stopped: bool) -> str:
    """Return the work that is left and the program that does it."""
    queued = sum(_result(file) == _QUEUED for file in run.files)
    if not is_stopped and queued:
        return "Queued: a running server or 'almanac worker' parses them."
    if not queued and not any(_result(file) == _NOT_REACHED for file in run.files):
        return _vectors_left(run, is_stopped)
    waiting = f"a running server parses {counted(queued, 'queued file')}; " if queued else ""
    return f"Stopped; {waiting}run the command again to go on."


def _vectors_left(run: IngestRun, is_stopped: bool) -> str:
    """Return the number of passages with vectors, and the program that embeds the rest."""
    if run.coverage is None or run.coverage.embedded >= run.coverage.passages:
        return ""
    embedded = f"{run.coverage.embedded:,} of {counted(run.coverage.passages, 'passage')} embedded"
    status = f"Stopped; {embedded}." if is_stopped else f"{embedded}; see 'almanac doctor'."
    return f"{status} Keyword search finds them all; a running server or 'almanac worker' embeds the rest."
