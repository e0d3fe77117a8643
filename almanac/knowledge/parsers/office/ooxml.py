"""The package around Office Open XML: which part is which, and what the document says of itself."""

import posixpath

from almanac.knowledge.parsers.archives import Archive
from almanac.knowledge.parsers.web import xml_file

MOST_OF_A_PART = 50_000_000  # bytes of a part that is read as a whole
MACROS = "The macros in the file were left out."

_PROPERTIES = {"creator": "author", "created": "created", "modified": "modified", "subject": "subject",
               "keywords": "keywords", "description": "description", "language": "language"}  # fmt: skip


def main_part(archive: Archive, usual: str) -> str:
    """The part that holds the document itself."""
    found = next((target for kind, target in relations(archive, "").values() if kind == "officeDocument"), usual)
    return found if archive.has(found) else usual


def relations(archive: Archive, part: str) -> dict[str, tuple[str, str]]:
    """What a part refers to: id → (kind, part). Targets outside the archive are left out."""
    folder, name = posixpath.split(part)
    root = xml_file.tree(archive.read(posixpath.join(folder, "_rels", f"{name}.rels"), MOST_OF_A_PART))
    found: dict[str, tuple[str, str]] = {}
    for each in () if root is None else root:
        if each.get("TargetMode") != "External":
            target = posixpath.normpath(posixpath.join("/", folder, each.get("Target", ""))).lstrip("/")
            found[each.get("Id", "")] = (each.get("Type", "").rpartition("/")[2], target)
    return found


def related(archive: Archive, part: str, kind: str) -> str:
    """The first part of a kind that a part refers to; empty if none."""
    return next((target for found, target in relations(archive, part).values() if found == kind), "")


def properties(archive: Archive) -> tuple[str, dict[str, str]]:
    """The title of the document, and its metadata."""
    root = xml_file.tree(archive.read("docProps/core.xml", MOST_OF_A_PART))
    said = {xml_file.local(each): (each.text or "").strip() for each in (() if root is None else root)}
    return said.get("title", ""), {ours: said[theirs] for theirs, ours in _PROPERTIES.items() if said.get(theirs)}


def warnings(archive: Archive) -> list[str]:
    return [MACROS] if any(name.endswith("vbaProject.bin") for name in archive.names()) else []
