"""Web pages, including broken ones."""

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from almanac.knowledge.parsers.text_builder import TextBuilder
from almanac.knowledge.parsers.web import html_page
from tests.knowledge.parsers.test_parse_file import assert_valid


def text(html: str) -> str:
    builder = TextBuilder()
    html_page.write(html_page.read(html).blocks, builder)
    parsed = builder.finish()
    assert_valid(parsed)
    return parsed.text


@pytest.mark.parametrize(
    ("html", "expected"),
    [
        ("<p>a<b>b</b>c</p><p>d", "abc\n\nd"),
        ("a &amp; b&nbsp;c &#x4e2d;", "a & b c 中"),
        ("one<br>two<br/>three", "one\ntwo\nthree"),
        ("<p>x < y and y > z</p>", "x < y and y > z"),
        ("<h2>A\n <i>title</i></h2>text", "## A title\n\ntext"),
        ("<ul><li>a<li>b<ul><li>c</ul><li><p>d</p><p>e</p></ul>f", "- a\n- b\n  - c\n- d\n  e\n\nf"),
        ("<ol start=4><li>a</li><li>b</li></ol>", "4. a\n5. b"),
        ("<pre>a\n  b</pre>c", "a\n  b\n\nc"),
        ("<script>if (a < b) { x('<p>no</p>') }</script>yes", "yes"),
        ("<style>p { }</style><!-- <p>no</p> -->yes<![CDATA[no]]>", "yes"),
        ("<nav>no<nav>no</nav>no</nav>yes<footer>no</footer>", "yes"),
        ("<p hidden>no</p><div aria-hidden='true'>no</div><div style='display: none'>no</div>yes", "yes"),
        ("<nav>never closed, so everything", "never closed, so everything"),
        ("E = mc<sup>2</sup> and 1<sup>st</sup>", "E = mc^2 and 1st"),
        ("word<a role='doc-noteref'><sup>3</sup></a>", "word[^3]"),
        ("<img alt='A  map' src=x><img alt=''>", "[A map]"),
        ("<p title='a > b' data-x=\"<p>\">text</p>", "text"),
        ("<p title='never closed>text</p>", "text"),
        ("<p>shown</p>a <b without an end", "shown\n\na <b without an end"),
        ("<p>shown</p><!-- <p>no</p> never closed", "shown"),
        ("<p>shown</p>and<!-- never closed", "shown\n\nand"),
        ("<ol start=first><li>a</ol>", "1. a"),
        ("<ol start=''><li>a</ol>", "1. a"),
        ("<div hidden><div title='>'>no</div>no<DIV/>no</div>yes", "yes"),
        ("2<sup>x</sup> and 3</sup>", "2x and 3"),
    ],
)
def test_a_page_becomes_the_text_that_a_reader_sees(html: str, expected: str):
    assert text(html) == expected


def test_cells_that_span_rows_and_columns_keep_their_columns():
    html = "<table><tr><th>a<th>b<th>c<tr><td rowspan=2>x<td>1<td>2<tr><td>3<td>4<tr><td colspan=2>y<td>5</table>"
    assert text(html).split("\n")[2:] == ["| x | 1 | 2 |", "| x | 3 | 4 |", "| y |  | 5 |"]


def test_a_layout_table_is_replaced_by_its_content():
    inner = "<table><tr><th>k</th><th>v</th></tr><tr><td>1</td><td>2</td></tr></table>"
    html = f"<table><tr><td><h1>News</h1><p>First.</p></td></tr><tr><td>{inner}</td></tr></table>"
    assert text(html) == "# News\n\nFirst.\n\n| k | v |\n| --- | --- |\n| 1 | 2 |"


def test_spans_of_cells_are_limited():
    assert len(text("<table><tr><td>a<td colspan=99999 rowspan=99999>b<tr><td>c<td>d<tr><td>e</table>")) < 5_000


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ('<meta charset="windows-1251"><p>Склад'.encode("cp1251"), "Склад"),
        ('<meta http-equiv=x content="text/html; charset=gb2312"><p>仓库'.encode("gb2312"), "仓库"),
        (
            ('<meta charset="utf-8"><p>' + "Склад открывается каждое утро в шесть часов.").encode("cp1251"),
            "Склад открывается каждое утро в шесть часов.",
        ),
        ('<meta charset="nonsense"><p>Tür'.encode(), "Tür"),
        ("<p>Tür".encode("utf-16"), "Tür"),
    ],
)
def test_the_encoding_of_a_page_is_detected(content: bytes, expected: str, tmp_path: Path):
    file = tmp_path / "x.html"
    file.write_bytes(content)
    assert html_page.parse(file, "x.html").text == expected


@pytest.mark.parametrize(
    "part",
    [
        "<![CDATA[", "<a", "<a x='>'", "<a x='>' y=\">\"", "</", "<?", '<a "', "<!--", "<!-->", "<head>", "<title",
        "<svg", "<svg></svg>x", "x</sup>", "<sup>", "<head><title>", "<p hidden>", "<a role=noteref>",
        "<table><tr><td>",
    ],
)  # fmt: skip
@pytest.mark.parametrize(("before", "after"), [("", ""), ("<sup>", ">"), ("<head>", "'></head>x")])
def test_no_endlessly_repeated_part_takes_quadratic_time(part: str, before: str, after: str):
    """A search that starts again at each part would take a minute."""
    started = time.process_time()
    html_page.read(before + part * (1_000_000 // len(part)) + after)
    assert time.process_time() - started < 5


def test_omitting_many_elements_with_different_names_is_fast():
    html = "".join(f"<x{n} hidden>no</x{n}>" for n in range(20_000)) + "yes"
    started = time.process_time()
    assert text(html) == "yes"
    assert time.process_time() - started < 3


NAMES = st.sampled_from(["p", "li", "ul", "ol", "table", "tr", "td rowspan=3", "th colspan=2", "h1", "pre", "nav",
                         "sup", "a role=noteref", "br", "head", "title", "script"])  # fmt: skip
PARTS = (
    st.builds("<{}>".format, NAMES)
    | st.builds("</{}>".format, NAMES)
    | st.sampled_from(["<", "a", "&", "\n", '"', "'"])
)


@given(st.lists(PARTS, max_size=40))
def test_tags_in_any_order_can_be_parsed(parts: list[str]):
    text("".join(parts))
