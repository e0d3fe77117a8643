"""XML: parts of office documents as trees, and any XML file as a text.

Declarations in a document type are refused before anything else is read. With them go entities, which make a small
file unfold into a large one or read a file of the machine, and no format here needs one.
"""

import os
from collections.abc import Collection, Iterable, Iterator
from functools import cache, partial
from itertools import chain
from pathlib import Path
from typing import NoReturn, cast
from xml.etree.ElementTree import Element, ParseError, XMLParser, XMLPullParser
from xml.parsers import expat

from almanac.knowledge.parsers.parsed_file import ParsedFile, UnreadableFile
from almanac.knowledge.parsers.text_builder import TextBuilder, squeeze

MAX_ELEMENT_DEPTH = 200  # levels of elements; a document has a few dozen
CHUNK = 1 << 18
LARGE = 16_000_000  # bytes; a tree takes about ten times as much memory
DTD = "The file contains a document type definition, which is not read; save it without one and add it again."
BROKEN = "The file is damaged: its XML cannot be read. Save it again where it was made and add that."
DEEP = "The file nests its parts deeper than any honest document; it is not read."


class _Started(Exception):
    """The root element was reached, after which no document type can come."""


def parse(path: Path, name: str) -> ParsedFile:
    """Any XML: each child of the root is a record, whose values stand behind the path of names that leads to them."""
    draft = TextBuilder()
    with path.open("rb") as file:
        root = tree(file.read()) if os.fstat(file.fileno()).st_size <= LARGE else None
        if root is not None and _holds_text(root):
            records = [root]
        else:  # of a root too large to hold at once, only its children are read
            records = elements(iter(partial(file.read, CHUNK), b"")) if root is None else root
            draft.text("\n".join(_attributes(root, local(root))) if root is not None else "")
        for element in records:
            draft.text("\n".join(_lines(element, local(element))))
    return draft.parsed()


def _attributes(element: Element, path: str) -> Iterator[str]:
    return (f"{path}@{local_name(key)}: {value}" for key, value in element.attrib.items() if squeeze(value))


def _holds_text(element: Element) -> bool:
    """Whether it says something itself, between its children or without any."""
    return not len(element) or any(squeeze(text or "") for text in (element.text, *(child.tail for child in element)))


def _lines(element: Element, path: str) -> Iterator[str]:
    yield from _attributes(element, path)
    if not _holds_text(element):
        for child in element:
            yield from _lines(child, f"{path}/{local(child)}")
    elif value := squeeze("".join(element.itertext())):
        yield f"{path}: {value}"


def local(element: Element) -> str:
    """The name of an element without its namespace."""
    return local_name(element.tag)


@cache
def local_name(tag: str) -> str:
    return tag.rpartition("}")[2]


def attribute(element: Element, name: str) -> str:
    """An attribute by its name without a namespace; empty if there is none."""
    return next((value for key, value in element.attrib.items() if local_name(key) == name), "")


def descendants(element: Element, name: str) -> Iterator[Element]:
    """All elements below one that have a name, in order."""
    return (each for each in element.iter() if local_name(each.tag) == name)


def child(element: Element | None, name: str) -> Element | None:
    """The first child that has a name."""
    return None if element is None else next((each for each in element if local_name(each.tag) == name), None)


def elements(pieces: Iterable[bytes], containers: Collection[str] = ()) -> Iterator[Element]:
    """The children of the containers, or of the root. A large part is never in memory as a whole."""
    rest = _guarded(pieces)
    first: list[bytes] = []
    size = 0
    for piece in rest:
        first.append(piece)
        size += len(piece)
        if size > LARGE:
            yield from _streamed(chain(first, rest), containers)
            return
    root = _tree(first)
    holders = [each for each in root.iter() if local(each) in containers] if containers else [root]
    for holder in holders:
        yield from holder


def _streamed(pieces: Iterable[bytes], containers: Collection[str]) -> Iterator[Element]:
    """The finished children of the containers, each forgotten when the next is asked for."""
    parser: XMLPullParser[Element] = XMLPullParser(("start", "end"))
    open_ones: list[Element] = []
    for piece in chain(pieces, (b"",)):
        _feed(parser, piece)
        for event, element in cast("Iterator[tuple[str, Element]]", parser.read_events()):
            if event == "start":
                open_ones.append(element)
                if len(open_ones) > MAX_ELEMENT_DEPTH:
                    raise UnreadableFile("corrupt", DEEP)
                continue
            open_ones.pop()
            if open_ones and (local(open_ones[-1]) in containers if containers else len(open_ones) == 1):
                yield element
                open_ones[-1].clear()


def tree(content: bytes) -> Element | None:
    """The root of a part, or None where there is no part."""
    return _tree(_guarded([content])) if content else None


def _tree(pieces: Iterable[bytes]) -> Element:
    parser: XMLParser[Element] = XMLParser()  # noqa: S314 - declarations have been refused before
    for piece in pieces:
        _feed(parser, piece)
    try:
        return parser.close()
    except ParseError:
        raise UnreadableFile("corrupt", BROKEN) from None


def _feed(parser: "XMLPullParser[Element] | XMLParser[Element]", piece: bytes) -> None:
    try:
        if piece:
            parser.feed(piece)
        else:
            parser.close()
    except ParseError:
        raise UnreadableFile("corrupt", BROKEN) from None


def _guarded(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The same pieces, the beginning of which has been seen to have no document type."""
    guard = expat.ParserCreate()
    guard.StartDoctypeDeclHandler = _check_doctype
    guard.StartElementHandler = _start
    started = False
    for piece in pieces:
        try:
            if not started:
                guard.Parse(piece, False)
        except _Started:
            started = True
        except expat.ExpatError:
            raise UnreadableFile("corrupt", BROKEN) from None
        yield piece


def _check_doctype(name: str, system: str | None, public: str | None, has_declarations: int) -> None:
    if has_declarations:  # a bare reference to a type, as in SVG, is harmless: nothing is ever fetched
        raise UnreadableFile("corrupt", DTD)


def _start(*_: object) -> NoReturn:
    raise _Started
