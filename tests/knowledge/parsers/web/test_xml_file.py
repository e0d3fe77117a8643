"""XML: dangerous declarations, records with paths, and large parts."""

from pathlib import Path
from xml.etree.ElementTree import tostring

import pytest

from almanac.knowledge.parsers.parsed_file import NESTED_TOO_DEEPLY, UnreadableFile
from almanac.knowledge.parsers.web import xml_file

NESTED_ENTITIES = b'<!DOCTYPE a [<!ENTITY l "lol"><!ENTITY m "&l;&l;&l;">]><a>&m;</a>'
EXTERNAL_ENTITY = b'<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd">]><a>&x;</a>'


def text(tmp_path: Path, content: bytes) -> str:
    file = tmp_path / "x.xml"
    file.write_bytes(content)
    return xml_file.parse(file, "x.xml").text


@pytest.mark.parametrize("content", [NESTED_ENTITIES, EXTERNAL_ENTITY, NESTED_ENTITIES.decode().encode("utf-16")])
def test_declarations_are_refused(content: bytes, tmp_path: Path):
    for parse in (lambda: xml_file.parse_tree(content), lambda: text(tmp_path, content)):
        with pytest.raises(UnreadableFile) as refused:
            parse()
        assert (refused.value.code, refused.value.message) == ("corrupt", xml_file.DTD)


def test_declarations_hidden_in_another_encoding_are_refused():
    with pytest.raises(UnreadableFile):
        xml_file.parse_tree(b'<?xml version="1.0" encoding="cp037"?>' + NESTED_ENTITIES.decode().encode("cp037"))


def test_a_document_type_without_declarations_is_allowed(tmp_path: Path):
    assert text(tmp_path, b'<!DOCTYPE plist PUBLIC "x" "http://example.org/x.dtd"><plist><k>v</k></plist>') == "k: v"


def test_the_text_and_attributes_of_the_root_are_kept(tmp_path: Path):
    assert text(tmp_path, b"<note>Only words.</note>") == "note: Only words."
    assert text(tmp_path, b"<p>Some <b>bold</b> words.</p>") == "p: Some bold words."
    assert text(tmp_path, b'<list kind="stock"><item>Pump</item></list>') == "list@kind: stock\n\nitem: Pump"


def test_invalid_markup_is_corrupt():
    for content in (b"<a><b></a>", b"<a>", b"no markup", b"<a>&undefined;</a>"):
        with pytest.raises(UnreadableFile) as refused:
            xml_file.parse_tree(content)
        assert refused.value.code == "corrupt"


def test_no_content_is_no_tree():
    assert xml_file.parse_tree(b"") is None


def test_any_file_becomes_records_with_paths(tmp_path: Path):
    content = b'<list xmlns="urn:x"><item id="7"><name>Rope</name><size><m>3</m></size></item>'
    content += b"<p>a <b>bold</b> word</p></list>"
    assert text(tmp_path, content) == "item@id: 7\nitem/name: Rope\nitem/size/m: 3\n\np: a bold word"


def test_large_parts_are_streamed_with_the_same_result(monkeypatch: pytest.MonkeyPatch):
    content = b"<d><s/><body>" + b"".join(b"<p n='%d'><t>x</t></p>" % n for n in range(500)) + b"</body></d>"
    chunks = [content[start : start + 97] for start in range(0, len(content), 97)]
    whole = [tostring(child) for child in xml_file.iterate_children(chunks, ("body",))]
    monkeypatch.setattr(xml_file, "MAX_TREE_BYTES", 100)
    assert [tostring(child) for child in xml_file.iterate_children(chunks, ("body",))] == whole
    assert len(whole) == 500


def test_elements_nested_too_deeply_are_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(xml_file, "MAX_TREE_BYTES", 100)
    with pytest.raises(UnreadableFile) as refused:
        list(xml_file.iterate_children([b"<a>" * 100_000]))
    assert refused.value.message == NESTED_TOO_DEEPLY
