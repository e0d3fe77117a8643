"""The differences between the files of a disk and the documents in a folder of a knowledge base.

A document whose file is missing goes to the trash, or follows its file: a new file with the content of such a document
is that document under another path. Both change only documents below the folder of the ingest.
"""

import asyncio
import os
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from almanac.cli.support.ingest import file_walk
from almanac.cli.support.ingest.file_walk import FoundFile
from almanac.core.call import Call
from almanac.core.database import Transaction
from almanac.core.errors import AlmanacError
from almanac.knowledge import document_status, documents, folders
from almanac.knowledge.documents import MAX_BATCH_DOCUMENTS, Document
from almanac.knowledge.parsers.parsed_file import UnreadableFile

_OUTCOME_OF_SAME = {True: "retried", False: "unchanged"}  # by whether the document could not be parsed


@dataclass(frozen=True, slots=True)
class FolderChange:
    """One file or document, and what an ingest does with it."""

    action: str  # an outcome of `IngestFile`, failed, renamed or removed
    path: str  # of the file; of the document in the base if it is renamed or removed
    document_id: int | None = None
    before: str = ""  # the path before a rename
    reason: str = ""  # why a file fails


@dataclass(frozen=True, slots=True)
class _Rename:
    document: Document
    before: str
    file: FoundFile


class FolderChanges:
    """The documents of a base by path, and those whose files are renamed or missing."""

    def __init__(self, call: Call, base_id: int, documents_by_path: dict[str, Document]) -> None:
        self._call = call
        self._base_id = base_id
        self._documents = documents_by_path
        self._renames: list[_Rename] = []
        self._missing: dict[str, Document] = {}

    async def find_missing(self, folder: str, found: Sequence[FoundFile]) -> None:
        """Compare the documents below a folder of the base with all files that belong there."""
        top = file_walk.base_path(folder, "")
        paths = {file.base_path for file in found}
        self._missing = {
            path: document
            for path, document in self._documents.items()
            if path not in paths and (not top or path.startswith(f"{top}/"))
        }
        by_content: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
        for path, document in self._missing.items():
            by_content[document.blob_hash, _ending(path)].append(path)
        sizes = {document.size for document in self._missing.values()}
        for file in found:
            if file.base_path in self._documents or file.size not in sizes:
                continue
            digest = await asyncio.to_thread(_sha256_or_none, file)
            if same := by_content.get((digest or "", _ending(file.name))):
                # A file that only moved to another folder keeps its document, if several have this content.
                before = min(same, key=lambda path: (self._missing[path].name != file.name.strip(), path))
                same.remove(before)
                self._renames.append(_Rename(self._missing.pop(before), before, file))

    def preview(self, found: Sequence[FoundFile], max_bytes: int) -> list[FolderChange]:
        """Return what an ingest would do with every file, and with the documents of missing files."""
        renamed = {rename.file.base_path: rename.document for rename in self._renames}
        return [*self._own_changes(), *(self._preview_file(file, renamed, max_bytes) for file in found)]

    def _preview_file(self, file: FoundFile, renamed: dict[str, Document], max_bytes: int) -> FolderChange:
        document = renamed.get(file.base_path) or self._documents.get(file.base_path)
        try:
            if file.problem:
                raise UnreadableFile(file.code, file.problem)
            for name in file.base_path.split("/"):
                folders.check_name(name)
            with file_walk.open_file(file.path) as (descriptor, size):
                file_walk.check_size(size, max_bytes)
                if document is None:
                    return FolderChange("added", file.label)
                is_same = size == document.size and file_walk.sha256(descriptor) == document.blob_hash
        except UnreadableFile as error:
            return FolderChange("failed", file.label, reason=error.message)
        except AlmanacError as error:
            return FolderChange("failed", file.label, reason=error.text)
        except OSError as error:
            return FolderChange("failed", file.label, reason=f"The file cannot be read: {error.strerror}.")
        outcome = _OUTCOME_OF_SAME[document.index_status == "failed"] if is_same else "replaced"
        return FolderChange(outcome, file.label, document.id)

    async def apply(self) -> list[FolderChange]:
        """Move the renamed documents, put those of missing files into the trash, and return these changes."""
        for rename in self._renames:
            await self._call.db.write(lambda tx, rename=rename: self._apply_rename(tx, rename))
        missing = [document.id for document in self._missing.values()]
        for start in range(0, len(missing), MAX_BATCH_DOCUMENTS):
            batch = missing[start : start + MAX_BATCH_DOCUMENTS]
            await self._call.db.write(lambda tx, batch=batch: documents.remove(self._call, tx, batch))
        return self._own_changes()

    async def _apply_rename(self, tx: Transaction, rename: _Rename) -> None:
        folder_id = await folders.ensure(self._call, tx, self._base_id, rename.file.folder)
        await documents.move(self._call, tx, [rename.document.id], folder_id)
        await documents.update(self._call, tx, rename.document.id, name=rename.file.name)

    def _own_changes(self) -> list[FolderChange]:
        renamed = [
            FolderChange("renamed", rename.file.base_path, rename.document.id, rename.before)
            for rename in self._renames
        ]
        return renamed + [FolderChange("removed", path, document.id) for path, document in self._missing.items()]


def keep_reason(found: Sequence[FoundFile]) -> str:
    """Return why no document may go to the trash, or an empty text. A disk that is not mounted looks like no files."""
    if not found:
        return "Nothing is removed: the folders contain no files."
    if any(file.problem for file in found):
        return "Nothing is removed while a file or folder cannot be read."
    return ""


async def open_changes(call: Call, base_id: int) -> FolderChanges:
    """Read the documents of a base, so that they can be compared with files."""
    found = await document_status.find_with_paths(call, base_id)
    return FolderChanges(call, base_id, {path: document for document, path in found})


def _ending(name: str) -> str:
    """Return the ending of a file name. It decides on the parser, so a document keeps it when it is renamed."""
    return os.path.splitext(name)[1].casefold()


def _sha256_or_none(file: FoundFile) -> str | None:
    try:
        with file_walk.open_file(file.path) as (descriptor, _):
            return file_walk.sha256(descriptor)
    except OSError:
        return None  # the ingest reports it
