"""Mail messages, honest and otherwise."""

import cProfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from almanac.knowledge.parsers.web import mail
from tests.knowledge.parsers.test_parse_file import assert_valid


def read(folder: Path, content: bytes) -> mail.ParsedFile:
    file = folder / "x.eml"
    file.write_bytes(content)
    return mail.parse(file, "x.eml")


def calls(work: Callable[[], object]) -> int:
    """How many functions some work calls, which is its cost on any machine."""
    profile = cProfile.Profile()
    profile.runcall(work)
    return sum(entry.callcount for entry in profile.getstats())


def test_a_plain_message_keeps_its_paragraphs(tmp_path: Path):
    found = read(tmp_path, b"From: a@b.c\r\nSubject: Hi\r\n\r\nOne.\r\nTwo.\r\n\r\nThree.\r\n")
    assert found.text.rstrip() == "# Hi\n\nFrom: a@b.c\n\nOne.\nTwo.\n\nThree."
    assert [block.kind for block in found.blocks] == ["heading", "text", "text", "text"]


def test_a_body_is_read_in_the_encoding_it_is_in_whatever_it_claims(tmp_path: Path):
    body = "Склад открывается каждое утро в шесть часов."
    for charset in ("koi8-r", "utf-8", "no-such-thing"):
        head = f"From: a@b.c\nContent-Type: text/plain; charset={charset}\nContent-Transfer-Encoding: 8bit\n\n"
        assert body in read(tmp_path, head.encode() + body.encode("koi8-r")).text


def test_a_formatted_body_without_text_gives_way_to_the_plain_one(tmp_path: Path):
    content = (
        b"From: a@b.c\nMIME-Version: 1.0\nContent-Type: multipart/alternative; boundary=x\n\n"
        b"--x\nContent-Type: text/plain\n\nplain words\n--x\nContent-Type: text/html\n\n<img src=cid:1>\n--x--\n"
    )
    assert "plain words" in read(tmp_path, content).text


def mixed(*parts: bytes, kind: str = "mixed") -> bytes:
    """A message of several parts, each with its own header."""
    head = f"From: a@b.c\nSubject: Hi\nMIME-Version: 1.0\nContent-Type: multipart/{kind}; boundary=x\n\n".encode()
    return head + b"".join(b"--x\n" + part + b"\n" for part in parts) + b"--x--\n"


PLAIN, HTML = b"Content-Type: text/plain\n\n", b"Content-Type: text/html\n\n"


def test_every_text_in_a_message_is_read_in_its_order(tmp_path: Path):
    found = read(
        tmp_path, mixed(PLAIN + b"one", HTML + b"<p>two</p>", b"Content-Type: image/png\n\nx", PLAIN + b"three")
    )
    assert found.text == "# Hi\n\nFrom: a@b.c\n\none\n\ntwo\n\nthree"
    assert not found.warnings
    assert_valid(found)


def test_of_alternatives_within_a_message_one_is_read(tmp_path: Path):
    both = b"--y\n" + PLAIN + b"as text\n--y\n" + HTML + b"<p>formatted</p>\n--y--\n"
    inner = b"Content-Type: multipart/alternative; boundary=y\n\n" + both
    found = read(tmp_path, mixed(inner, PLAIN + b"a footer", inner))
    assert found.text.split("\n\n")[2:] == ["formatted", "a footer", "formatted"]


def test_of_related_parts_the_first_is_read_and_the_others_are_named(tmp_path: Path):
    logo = b"Content-Type: image/png; name=logo.png\n\nx"
    found = read(tmp_path, mixed(HTML + b"<p>body</p>", logo, PLAIN + b"a resource", kind="related"))
    assert found.text.split("\n\n")[2:] == ["body", "Attachments: logo.png"]


def test_a_text_that_is_attached_is_named_and_one_that_is_shown_is_read(tmp_path: Path):
    named = b'Content-Type: text/plain\nContent-Disposition: %s; filename="%s"\n\n%s'
    parts = [
        named % (b"attachment", b"=?utf-8?q?Gro=C3=9F.txt?=", b"left out"),
        named % (b"inline", b"b.txt", b"shown"),
    ]
    found = read(tmp_path, mixed(*parts))
    assert found.text.split("\n\n")[2:] == ["shown", "Attachments: Groß.txt"]
    assert found.warnings == (mail.ATTACHED,)


def test_a_forwarded_message_is_a_section_and_its_attachments_are_named(tmp_path: Path):
    note = b'--y\nContent-Type: application/pdf; name="plan.pdf"\n\nx\n'
    old = b"From: d@e.f\nSubject: old\nContent-Type: multipart/mixed; boundary=y\n\n--y\n" + PLAIN + b"body\n" + note
    forwarded = b'Content-Type: message/rfc822; name="old.eml"\n\n' + old + b"--y--\n"
    found = read(tmp_path, mixed(PLAIN + b"hello", forwarded))
    assert found.text.split("\n\n")[2:] == ["hello", "## old", "From: d@e.f", "body", "Attachments: plan.pdf"]
    assert (found.title, found.metadata["author"]) == ("Hi", "a@b.c")
    assert found.warnings == (mail.ATTACHED,)
    assert_valid(found)


def test_more_parts_than_anyone_writes_are_left_out_and_that_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(mail, "MOST_PARTS", 3)
    found = read(tmp_path, mixed(*[PLAIN + b"part %d" % n for n in range(5)]))
    assert found.text.split("\n\n")[2:] == ["part 0", "part 1"]
    assert found.warnings == (mail.MORE,)


def test_messages_within_messages_are_read_to_a_depth(tmp_path: Path):
    forward = b"Subject: again\nContent-Type: message/rfc822\n\n"
    found = read(tmp_path, forward * 60 + b"Subject: last\n\nthe first words")
    assert "the first words" not in found.text
    assert found.warnings == (mail.MORE,)
    assert "the first words" in read(tmp_path, forward * 40 + b"Subject: last\n\nthe first words").text


def test_ten_thousand_parts_take_no_more_each_than_a_hundred(tmp_path: Path):
    """Ten times the calls that a hundred parts take for each would be seconds."""
    costs = [calls(lambda n=n: read(tmp_path, mixed(*[PLAIN + b"words"] * n))) / n for n in (100, 10_000)]
    assert costs[1] < costs[0] < 400


PARTS = [b"From: ", b"Subject: =?utf-8?b?//", b"\n", b"\n\n", b"--x", b"Content-Type: multipart/mixed;", b" boundary=x",
         b"To: <<>>,@", b"\xff", b"a", b"Date: x", b"?=", b"--"]  # fmt: skip


@given(st.lists(st.sampled_from(PARTS), max_size=30))
def test_no_message_is_too_broken_to_be_opened(tmp_path_factory: pytest.TempPathFactory, parts: list[bytes]):
    read(tmp_path_factory.getbasetemp(), b"".join(parts))
