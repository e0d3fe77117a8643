"""The report of an ingest run, as text and as JSON."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from almanac.cli.support.ingest.file_walk import SkippedFile
from almanac.cli.support.ingest.folder_changes import FolderChange
from almanac.cli.support.ingest.ingest_run import OUTCOMES, IngestFile, IngestRun
from almanac.cli.support.output import print_json, print_line, print_note, print_rows, printable_line
from almanac.cli.support.progress import counted, rate

_MAX_SKIPPED_LINES = 20
_MAX_CHANGE_LINES = 100
_ACTIONS = (*OUTCOMES, "failed", "renamed", "removed")

# Every file of a run has one of these results, so their counts add up to the number of files.
_PARSED, _UNCHANGED, _UNREADABLE, _REFUSED = "read", "unchanged", "kept but not readable", "not taken"
_QUEUED, _REMOVED, _NOT_REACHED, _SKIPPED = "queued", "removed meanwhile", "not reached", "skipped"
_RESULTS = (_PARSED, _UNCHANGED, _QUEUED, _UNREADABLE, _REMOVED, _SKIPPED, _REFUSED, _NOT_REACHED)


def print_report(run: IngestRun, skipped: Sequence[SkippedFile], *, is_stopped: bool) -> None:
    """Print failures and counts on standard output, and skipped files and the work that is left on standard error."""
    _print_notes([f"skipped {file.label}: {file.reason}" for file in skipped], _MAX_SKIPPED_LINES, "skipped")
    _print_notes([_change_line(change) for change in run.changes], _MAX_CHANGE_LINES, "renamed or removed")
    if run.failures:
        rows = [{"file": file.label, "code": file.code, "message": file.message} for file in run.failures]
        print_rows(rows, False, empty="")
    print_line(summary(run, len(skipped)))
    if work_left := _work_left(run, is_stopped):
        print_note(work_left)


def print_preview(
    base_id: int, changes: Sequence[FolderChange], skipped: Sequence[SkippedFile], *, as_json: bool
) -> None:
    """Print the changes of a dry run. People see only files and documents that change."""
    counts = Counter(change.action for change in changes)
    if as_json:
        print_json(
            {
                "dry_run": True,
                "base": base_id,
                **{action: counts[action] for action in _ACTIONS},
                "skipped": len(skipped),
                "changes": [_change_to_json(change) for change in changes if change.action != "unchanged"],
            }
        )
        return
    for change in changes:
        if change.action != "unchanged":
            print_line(_change_line(change))
    numbers = ", ".join(f"{counts[action]} {action}" for action in _ACTIONS if counts[action])
    print_line(f"Dry run, nothing is changed: {numbers or 'nothing to do'}")


def summary(run: IngestRun, skipped: int) -> str:
    """Return a line such as: 40 files: 21 read, 11 kept but not readable, 8 skipped; 31 pages in 0.9 s, 34 pages/s."""
    counts = Counter(_result(file) for file in run.files)
    counts[_SKIPPED] = skipped
    numbers = ", ".join(f"{counts[result]} {result}" for result in _RESULTS if counts[result]) or "nothing to do"
    changed = Counter(change.action for change in run.changes)
    changes = ", ".join(f"{counted(number, 'document')} {action}" for action, number in changed.items())
    parts = (f"{counted(counts.total(), 'file')}: {numbers}", changes, _speed(run), _embedding_time(run))
    return "; ".join(filter(None, parts))


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
        "embedding_seconds": None if run.embedding_seconds is None else round(run.embedding_seconds, 3),
        "renamed": sum(change.action == "renamed" for change in run.changes),
        "removed": sum(change.action == "removed" for change in run.changes),
        "changes": [_change_to_json(change) for change in run.changes],
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


def _embedding_time(run: IngestRun) -> str:
    """Return the duration of waiting for vectors, if the run waited."""
    return "" if run.embedding_seconds is None else f"embedding in {run.embedding_seconds:.1f} s"


def _change_to_json(change: FolderChange) -> Mapping[str, Any]:
    return {
        "action": change.action,
        "path": printable_line(change.path),
        "document_id": change.document_id,
        "before": change.before or None,
        "reason": change.reason or None,
    }


def _change_line(change: FolderChange) -> str:
    """Return a line such as: renamed a.md -> pumps/a.md"""
    path = f"{change.before} -> {change.path}" if change.before else change.path
    return printable_line(f"{change.action} {path}{f': {change.reason}' if change.reason else ''}")


def _print_notes(lines: Sequence[str], max_lines: int, participle: str) -> None:
    for line in lines[:max_lines]:
        print_note(line)
    if len(lines) > max_lines:
        print_note(f"{participle} {len(lines) - max_lines} more")


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
    status = (
        f"Stopped; {embedded}."
        if is_stopped
        else f"{embedded}."
        if run.embedded is None
        else f"{embedded}; see 'almanac doctor'."
    )
    return f"{status} Keyword search finds them all; a running server or 'almanac worker' embeds the rest."
