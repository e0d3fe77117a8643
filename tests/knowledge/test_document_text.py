"""The text of a document, read by offset and by page."""

import pytest

from almanac.core.errors import BadRequest, NotFound
from almanac.knowledge import document_text, documents
from almanac.knowledge.parsers.parse_message import ParsedDocument
from almanac.knowledge.parsers.parsed_file import TextPage
from tests.knowledge.workspace import Workspace

PART = document_text.TEXT_PART_CHARS


async def add_text(workspace: Workspace, text: str) -> int:
    return (await workspace.add_parsed("a.txt", text)).id


async def test_text_is_read_from_any_character_up_to_any_other(workspace: Workspace):
    text = "".join(chr(0x4E00 + n % 5000) if n % 3 else chr(0x1F600 + n % 50) for n in range(3 * PART + 17))
    document_id = await add_text(workspace, text)
    for start, limit in [
        (0, 10), (0, PART), (0, PART + 1), (PART - 1, 2), (PART, PART), (PART, 1), (2 * PART - 5, 10),
        (len(text) - 1, 100), (len(text), 100), (3 * PART, 17), (5, 0), (1, len(text)),
    ]:  # fmt: skip
        excerpt = await document_text.read(workspace.call, document_id, offset=start, limit=limit)
        assert excerpt.text == text[start : start + limit]
        assert (excerpt.offset, excerpt.total) == (start, len(text))
        assert excerpt.has_more == (start + len(excerpt.text) < len(text))


async def test_excerpts_in_sequence_give_the_whole_text_once(workspace: Workspace):
    text = "".join(f"Line {n} of a long text.\n" for n in range(4000))
    document_id = await add_text(workspace, text)
    pieces, offset = list[str](), 0
    while True:
        excerpt = await document_text.read(workspace.call, document_id, offset=offset, limit=7001)
        pieces.append(excerpt.text)
        offset = excerpt.offset + len(excerpt.text)
        if not excerpt.has_more:
            break
    assert "".join(pieces) == text
    outline = await document_text.get(workspace.db, document_id)
    assert outline is not None
    assert outline.characters == len(text)
    assert await workspace.count("reading_parts") == -(-len(text) // PART)


async def test_an_offset_outside_the_text_is_moved_to_its_end_or_beginning(workspace: Workspace):
    document_id = await add_text(workspace, "Short.")
    beyond = await document_text.read(workspace.call, document_id, offset=1_000_000)
    assert (beyond.text, beyond.offset, beyond.total, beyond.has_more) == ("", 6, 6, False)
    before = await document_text.read(workspace.call, document_id, offset=-5, limit=3)
    assert (before.text, before.offset) == ("Sho", 0)


async def test_one_call_returns_at_most_the_limit(workspace: Workspace):
    document_id = await add_text(workspace, "x" * (document_text.MAX_READ_CHARS + 10))
    excerpt = await document_text.read(workspace.call, document_id, limit=10**9)
    assert (len(excerpt.text), excerpt.has_more) == (document_text.MAX_READ_CHARS, True)


async def test_a_document_that_was_not_parsed_has_no_text_and_no_page(workspace: Workspace):
    waiting = (await workspace.add("a.txt", "Waiting.")).document
    excerpt = await document_text.read(workspace.call, waiting.id)
    assert (excerpt.text, excerpt.total, excerpt.has_more) == ("", 0, False)
    assert excerpt.document.index_status == "queued"
    assert await document_text.get(workspace.db, waiting.id) is None
    with pytest.raises(BadRequest, match="has not been read yet"):
        await document_text.read_page(workspace.call, waiting.id, 1)


async def test_a_page_is_read_by_its_number(workspace: Workspace):
    document_id = await add_text(workspace, "First page.\fSecond one.\f\fFourth.")
    second = await document_text.read_page(workspace.call, document_id, 2)
    assert (second.text, second.page, second.offset) == ("Second one.\n", 2, 12)
    assert (await document_text.read_page(workspace.call, document_id, 3)).text.strip() == ""
    assert (await document_text.read_page(workspace.call, document_id, 4)).text == "Fourth."
    for number in (0, -1, 5):
        with pytest.raises(BadRequest, match="the pages 1 to 4"):
            await document_text.read_page(workspace.call, document_id, number)


async def test_the_outline_has_the_properties_of_the_parsed_file(workspace: Workspace):
    document = (await workspace.add("a.xlsx", "x")).document
    reading = ParsedDocument(
        text="One\nTwo\n", mime_type="text/csv", source_type="table", extension="csv", title="Sums",
        metadata={"author": "Ann"}, warnings=("A picture was left out.",),
        pages=(TextPage(1, 0, 4, name="Jan"), TextPage(2, 4, 8, 10.0, 20.0, "Feb")), passages=(),
    )  # fmt: skip
    await workspace.do(lambda tx: document_text.save(tx, document.id, 1, reading))
    outline = await document_text.get(workspace.db, document.id)
    assert outline == document_text.TextOutline(
        generation=1, title="Sums", characters=8, passages=0, pages=((1, 0, 4, "Jan"), (2, 4, 8, "Feb")),
        warnings=("A picture was left out.",),
    )  # fmt: skip
    page = await document_text.read_page(workspace.call, document.id, 2)
    assert (page.text, page.page_name) == ("Two\n", "Feb")
    listed = await workspace.get(document.id)
    assert (listed.title, listed.characters, listed.page_count, listed.passages) == ("Sums", 8, 2, 0)


async def test_a_shorter_text_leaves_nothing_of_a_longer_one_before_it(workspace: Workspace):
    document_id = await add_text(workspace, "long " * PART)
    await workspace.replace(document_id, "short")
    await workspace.run_jobs()
    assert await workspace.count("reading_parts") == 1
    assert (await document_text.read(workspace.call, document_id)).text == "short"


async def test_a_removed_document_cannot_be_read(workspace: Workspace):
    document_id = await add_text(workspace, "A text.")
    await workspace.do(lambda tx: documents.remove(workspace.call, tx, [document_id]))
    with pytest.raises(NotFound):
        await document_text.read(workspace.call, document_id)
    with pytest.raises(NotFound):
        await document_text.read_page(workspace.call, document_id, 1)
