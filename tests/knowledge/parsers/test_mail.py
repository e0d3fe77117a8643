"""Mail messages, honest and otherwise."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from almanac.knowledge.parsers import mail


def read(folder: Path, content: bytes) -> mail.Parsed:
    file = folder / "x.eml"
    file.write_bytes(content)
    return mail.parse(file, "x.eml")


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


def test_a_forwarded_message_is_named_and_its_attachments_too(tmp_path: Path):
    content = (
        b"From: a@b.c\nMIME-Version: 1.0\nContent-Type: multipart/mixed; boundary=x\n\n"
        b"--x\nContent-Type: text/plain\n\nhello\n"
        b'--x\nContent-Type: message/rfc822; name="old.eml"\n\nFrom: d@e.f\nSubject: old\n\nbody\n--x--\n'
    )
    found = read(tmp_path, content)
    assert "Attachments: old.eml" in found.text
    assert len(found.warnings) == 1


PARTS = [b"From: ", b"Subject: =?utf-8?b?//", b"\n", b"\n\n", b"--x", b"Content-Type: multipart/mixed;", b" boundary=x",
         b"To: <<>>,@", b"\xff", b"a", b"Date: x", b"?=", b"--"]  # fmt: skip


@given(st.lists(st.sampled_from(PARTS), max_size=30))
def test_no_message_is_too_broken_to_be_opened(tmp_path_factory: pytest.TempPathFactory, parts: list[bytes]):
    read(tmp_path_factory.getbasetemp(), b"".join(parts))
