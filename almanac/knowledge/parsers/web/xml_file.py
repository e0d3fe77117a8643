"""XML: parts of office documents as trees, and any XML file as a text.

A document type with declarations is refused before anything else is parsed. Declarations define entities, which make a
small file expand into a large one or include a file of the machine, and none of our formats needs them.
"""

import os
from collections.abc import Collection, Iterable, Iterator
from functools import cache, partial
from itertools import chain
from pathlib import Path
from typing import NoReturn, cast
from xml.etree.ElementTree import Element, ParseError, XMLParser, XMLPullParser
from xml.parsers import expat

from almanac.core.text import one_line
from almanac.knowledge.parsers.archives import CHUNK_BYTES, Archive
from almanac.knowledge.parsers.parsed_file import NESTED_TOO_DEEPLY, ParsedFile, UnreadableFile
from almanac.knowledge.parsers.text_builder import TextBuilder

MAX_ELEMENT_DEPTH = 200  # a document has a few dozen levels
MAX_TREE_BYTES = 16_000_000  # of a file that becomes one tree, which takes about ten times as much memory
DTD = "The file contains a document type definition, which is not supported. Save it without one and add it again."
BROKEN = "The file is damaged: its XML is invalid. Save it again in the program that made it and add that copy."


class _RootReached(Exception):
    """The parser reached the root element, after which no document type can follow."""


def parse(path: Path, name: str) -> ParsedFile:
    """Any XML file: each child of the root is a record, with its values after the paths of their elements."""
    builder = TextBuilder()
    with path.open("rb") as file:
        root = parse_tree(file.read()) if os.fstat(file.fileno()).st_size <= MAX_TREE_BYTES else None
        if root is not None and _has_text(root):
            records = [root]
        else:  # of a root that is too large for a tree, only the children are read
            records = iterate_children(iter(partial(file.read, CHUNK_BYTES), b"")) if root is None else root
            builder.add_text("\n".join(_attribute_lines(root, local_name(root))) if root is not None else "")
        for element in records:
            builder.add_text("\n".join(_lines(element, local_name(element))))
    return builder.finish()


def _attribute_lines(element: Element, path: str) -> Iterator[str]:
    return (f"{path}@{without_namespace(key)}: {value}" for key, value in element.attrib.items() if one_line(value))


def _has_text(element: Element) -> bool:
    """Whether the element has text of its own or no children at all."""
    return not len(element) or any(one_line(text or "") for text in (element.text, *(child.tail for child in element)))


def _lines(element: Element, path: str) -> Iterator[str]:
    yield from _attribute_lines(element, path)
    if not _has_text(element):
        for child in element:
            yield from _lines(child, f"{path}/{local_name(child)}")
    elif value := one_line("".join(element.itertext())):
        yield f"{path}: {value}"


def local_name(element: Element) -> str:
    """The name of an element without its namespace."""
    return without_namespace(element.tag)


@cache
def without_namespace(tag: str) -> str:
    return tag.rpartition("}")[2]


def attribute(element: Element, name: str) -> str:
    """An attribute by its name without a namespace; empty if there is none."""
    return next((value for key, value in element.attrib.items() if without_namespace(key) == name), "")


def descendants(element: Element, name: str) -> Iterator[Element]:
    """The element and all elements below it that have this name, in document order."""
    return (inner for inner in element.iter() if without_namespace(inner.tag) == name)


def child(element: Element | None, name: str) -> Element | None:
    """The first child with this name."""
    return None if element is None else next(children(element, name), None)


def children(element: Element, name: str) -> Iterator[Element]:
    """The children with this name, in document order."""
    return (inner for inner in element if without_namespace(inner.tag) == name)


def grouped_children(element: Element, names: Collection[str], groups: Collection[str]) -> Iterator[Element]:
    """The children with these names, including those in groups."""
    for inner in element:
        if local_name(inner) in names:
            yield inner
        elif local_name(inner) in groups:
            yield from grouped_children(inner, names, groups)


def iterate_children(chunks: Iterable[bytes], containers: Collection[str] = ()) -> Iterator[Element]:
    """The children of the elements with these names, or of the root. A large file never becomes one tree."""
    chunks = _without_declarations(chunks)
    first: list[bytes] = []
    size = 0
    for chunk in chunks:
        first.append(chunk)
        size += len(chunk)
        if size > MAX_TREE_BYTES:
            yield from _stream_children(chain(first, chunks), containers)
            return
    root = _build_tree(first)
    for parent in [element for element in root.iter() if local_name(element) in containers] if containers else [root]:
        yield from parent


def _stream_children(chunks: Iterable[bytes], containers: Collection[str]) -> Iterator[Element]:
    """The finished children of the containers. Each is discarded when the next one is requested."""
    parser: XMLPullParser[Element] = XMLPullParser(("start", "end"))
    ancestors: list[Element] = []
    for chunk in chain(chunks, (b"",)):
        _feed(parser, chunk)
        for event, element in cast("Iterator[tuple[str, Element]]", parser.read_events()):
            if event == "start":
                ancestors.append(element)
                if len(ancestors) > MAX_ELEMENT_DEPTH:
                    raise UnreadableFile("corrupt", NESTED_TOO_DEEPLY)
                continue
            ancestors.pop()
            if ancestors and (local_name(ancestors[-1]) in containers if containers else len(ancestors) == 1):
                yield element
                ancestors[-1].clear()


def read_part(archive: Archive, name: str) -> Element | None:
    """The root of an XML part of an archive, or None if there is no such part."""
    return parse_tree(archive.read(name))


def parse_tree(content: bytes) -> Element | None:
    """The root of an XML document, or None if there is no content."""
    return _build_tree(_without_declarations([content])) if content else None


def _build_tree(chunks: Iterable[bytes]) -> Element:
    parser: XMLParser[Element] = XMLParser()  # noqa: S314 - declarations have been refused before
    for chunk in chunks:
        _feed(parser, chunk)
    try:
        return parser.close()
    except ParseError:
        raise UnreadableFile("corrupt", BROKEN) from None


def _feed(parser: "XMLPullParser[Element] | XMLParser[Element]", chunk: bytes) -> None:
    try:
        if chunk:
            parser.feed(chunk)
        else:
            parser.close()
    except ParseError:
        raise UnreadableFile("corrupt", BROKEN) from None


def _without_declarations(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The same chunks; raises `UnreadableFile` if there are declarations before the root element."""
    parser = expat.ParserCreate()
    parser.StartDoctypeDeclHandler = _refuse_declarations
    parser.StartElementHandler = _stop_at_root
    is_root_reached = False
    for chunk in chunks:
        try:
            if not is_root_reached:
                parser.Parse(chunk, False)
        except _RootReached:
            is_root_reached = True
        except expat.ExpatError:
            raise UnreadableFile("corrupt", BROKEN) from None
        yield chunk


def _refuse_declarations(name: str, system: str | None, public: str | None, has_declarations: int) -> None:
    if has_declarations:  # a mere reference to a type, as in SVG, is harmless: nothing is ever fetched
        raise UnreadableFile("corrupt", DTD)


def _stop_at_root(*_: object) -> NoReturn:
    raise _RootReached
