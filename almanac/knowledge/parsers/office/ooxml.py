"""The package around Office Open XML: its parts, their relations, and the properties of the document."""

import posixpath
from xml.etree.ElementTree import Element

from almanac.knowledge.parsers.archives import Archive
from almanac.knowledge.parsers.web.xml_file import attribute, child, local_name, read_part

MACROS_OMITTED = "The macros in the file were left out."

_PROPERTIES = {"creator": "author", "created": "created", "modified": "modified", "subject": "subject",
               "keywords": "keywords", "description": "description", "language": "language"}  # fmt: skip


def main_part(archive: Archive, default: str) -> str:
    """The part with the document itself."""
    part = related_part(archive, "", "officeDocument")
    return part if archive.has(part) else default


def relations(archive: Archive, part: str) -> dict[str, tuple[str, str]]:
    """The relations of a part: id → (type, target part). Targets outside the archive are omitted."""
    folder, name = posixpath.split(part)
    root = read_part(archive, posixpath.join(folder, "_rels", f"{name}.rels"))
    targets: dict[str, tuple[str, str]] = {}
    for relation in () if root is None else root:
        if relation.get("TargetMode") != "External":
            target = posixpath.normpath(posixpath.join("/", folder, relation.get("Target", ""))).lstrip("/")
            targets[relation.get("Id", "")] = (relation.get("Type", "").rpartition("/")[2], target)
    return targets


def related_part(archive: Archive, part: str, relation_type: str) -> str:
    """The target of the first relation of this type; empty if there is none."""
    return next((target for type_, target in relations(archive, part).values() if type_ == relation_type), "")


def properties(archive: Archive) -> tuple[str, dict[str, str]]:
    """The title of the document and its metadata."""
    root = read_part(archive, "docProps/core.xml")
    values = {local_name(element): (element.text or "").strip() for element in (() if root is None else root)}
    metadata = {ours: values[theirs] for theirs, ours in _PROPERTIES.items() if values.get(theirs)}
    return values.get("title", ""), metadata


def value(parent: Element | None, name: str, default: str = "") -> str:
    """The value of a setting: the attribute `val` of a child element."""
    setting = child(parent, name)
    return default if setting is None else attribute(setting, "val")


def warnings(archive: Archive) -> list[str]:
    return [MACROS_OMITTED] if any(name.endswith("vbaProject.bin") for name in archive.names()) else []
