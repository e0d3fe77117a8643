"""Mail messages: parts, attachments, encodings, and the cost of hostile ones."""

import cProfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from almanac.knowledge.parsers.parsed_file import ParsedFile
from almanac.knowledge.parsers.web import mail
from tests.knowledge.parsers.test_parse_file import assert_valid


def parse(folder: Path, content: bytes) -> ParsedFile:
    file = folder / "x.eml"
    file.write_bytes(content)
    return mail.parse(file, "x.eml")


def count_calls(function: Callable[[], object]) -> int:
    """The number of function calls, a measure of cost that is the same on every machine."""
    profile = cProfile.Profile()
    profile.runcall(function)
    return sum(entry.callcount for entry in profile.getstats())


def test_a_plain_message_keeps_its_paragraphs(tmp_path: Path):
    parsed = parse(tmp_path, b"From: a@b.c\r\nSubject: Hi\r\n\r\nOne.\r\nTwo.\r\n\r\nThree.\r\n")
    assert parsed.text.rstrip() == "# Hi\n\nFrom: a@b.c\n\nOne.\nTwo.\n\nThree."
    assert [block.kind for block in parsed.blocks] == ["heading", "text", "text", "text"]


def test_a_wrong_charset_does_not_garble_the_body(tmp_path: Path):
    body = "Склад открывается каждое утро в шесть часов."
    for charset in ("koi8-r", "utf-8", "no-such-thing"):
        head = f"From: a@b.c\nContent-Type: text/plain; charset={charset}\nContent-Transfer-Encoding: 8bit\n\n"
        assert body in parse(tmp_path, head.encode() + body.encode("koi8-r")).text


def test_the_plain_body_is_used_if_the_formatted_one_has_no_text(tmp_path: Path):
    content = (
        b"From: a@b.c\nMIME-Version: 1.0\nContent-Type: multipart/alternative; boundary=x\n\n"
        b"--x\nContent-Type: text/plain\n\nplain words\n--x\nContent-Type: text/html\n\n<img src=cid:1>\n--x--\n"
    )
    assert "plain words" in parse(tmp_path, content).text


def mixed(*parts: bytes, kind: str = "mixed") -> bytes:
    """A message of several parts, each with its header."""
    head = f"From: a@b.c\nSubject: Hi\nMIME-Version: 1.0\nContent-Type: multipart/{kind}; boundary=x\n\n".encode()
    return head + b"".join(b"--x\n" + part + b"\n" for part in parts) + b"--x--\n"


PLAIN, HTML = b"Content-Type: text/plain\n\n", b"Content-Type: text/html\n\n"


def test_all_text_parts_are_written_in_order(tmp_path: Path):
    parsed = parse(
        tmp_path, mixed(PLAIN + b"one", HTML + b"<p>two</p>", b"Content-Type: image/png\n\nx", PLAIN + b"three")
    )
    assert parsed.text == "# Hi\n\nFrom: a@b.c\n\none\n\ntwo\n\nthree"
    assert not parsed.warnings
    assert_valid(parsed)


def test_one_of_several_alternatives_is_written(tmp_path: Path):
    both = b"--y\n" + PLAIN + b"as text\n--y\n" + HTML + b"<p>formatted</p>\n--y--\n"
    inner = b"Content-Type: multipart/alternative; boundary=y\n\n" + both
    parsed = parse(tmp_path, mixed(inner, PLAIN + b"a footer", inner))
    assert parsed.text.split("\n\n")[2:] == ["formatted", "a footer", "formatted"]


def test_of_related_parts_the_first_is_written_and_the_others_are_listed(tmp_path: Path):
    logo = b"Content-Type: image/png; name=logo.png\n\nx"
    parsed = parse(tmp_path, mixed(HTML + b"<p>body</p>", logo, PLAIN + b"a resource", kind="related"))
    assert parsed.text.split("\n\n")[2:] == ["body", "Attachments: logo.png"]


def test_an_attached_text_is_listed_and_an_inline_text_is_written(tmp_path: Path):
    named = b'Content-Type: text/plain\nContent-Disposition: %s; filename="%s"\n\n%s'
    parts = [
        named % (b"attachment", b"=?utf-8?q?Gro=C3=9F.txt?=", b"left out"),
        named % (b"inline", b"b.txt", b"shown"),
    ]
    parsed = parse(tmp_path, mixed(*parts))
    assert parsed.text.split("\n\n")[2:] == ["shown", "Attachments: Groß.txt"]
    assert parsed.warnings == (mail.ATTACHMENTS_OMITTED,)


def test_a_forwarded_message_is_a_section_and_its_attachments_are_listed(tmp_path: Path):
    note = b'--y\nContent-Type: application/pdf; name="plan.pdf"\n\nx\n'
    old = b"From: d@e.f\nSubject: old\nContent-Type: multipart/mixed; boundary=y\n\n--y\n" + PLAIN + b"body\n" + note
    forwarded = b'Content-Type: message/rfc822; name="old.eml"\n\n' + old + b"--y--\n"
    parsed = parse(tmp_path, mixed(PLAIN + b"hello", forwarded))
    assert parsed.text.split("\n\n")[2:] == ["hello", "## old", "From: d@e.f", "body", "Attachments: plan.pdf"]
    assert (parsed.title, parsed.metadata["author"]) == ("Hi", "a@b.c")
    assert parsed.warnings == (mail.ATTACHMENTS_OMITTED,)
    assert_valid(parsed)


def test_parts_beyond_the_limit_are_omitted_with_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(mail, "MAX_PARTS", 3)
    parsed = parse(tmp_path, mixed(*[PLAIN + b"part %d" % n for n in range(5)]))
    assert parsed.text.split("\n\n")[2:] == ["part 0", "part 1"]
    assert parsed.warnings == (mail.PARTS_OMITTED,)


def test_messages_within_messages_are_parsed_up_to_a_depth(tmp_path: Path):
    forward = b"Subject: again\nContent-Type: message/rfc822\n\n"
    parsed = parse(tmp_path, forward * 60 + b"Subject: last\n\nthe first words")
    assert "the first words" not in parsed.text
    assert parsed.warnings == (mail.PARTS_OMITTED,)
    assert "the first words" in parse(tmp_path, forward * 40 + b"Subject: last\n\nthe first words").text


def test_the_cost_of_a_part_does_not_grow_with_the_number_of_parts(tmp_path: Path):
    """At ten times the calls for each part, ten thousand parts would take seconds."""
    costs = [count_calls(lambda n=n: parse(tmp_path, mixed(*[PLAIN + b"words"] * n))) / n for n in (100, 10_000)]
    assert costs[1] < costs[0] < 400


PARTS = [b"From: ", b"Subject: =?utf-8?b?//", b"\n", b"\n\n", b"--x", b"Content-Type: multipart/mixed;", b" boundary=x",
         b"To: <<>>,@", b"\xff", b"a", b"Date: x", b"?=", b"--"]  # fmt: skip


@given(st.lists(st.sampled_from(PARTS), max_size=30))
def test_any_broken_message_can_be_parsed(tmp_path_factory: pytest.TempPathFactory, parts: list[bytes]):
    parse(tmp_path_factory.getbasetemp(), b"".join(parts))
