"""Archives within limits."""

import zipfile
from pathlib import Path

import pytest

from almanac.knowledge.parsers import archives
from almanac.knowledge.parsers.parsed_file import UnreadableFile


def make(path: Path, entries: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as made:
        for name, content in entries.items():
            made.writestr(name, content)
    return path


def refusal(path: Path, name: str = "a") -> str:
    with pytest.raises(UnreadableFile) as refused, archives.open_archive(path) as archive:
        archive.read(name)
    return refused.value.code


def test_an_entry_is_read_by_its_name_and_a_missing_one_is_empty(tmp_path: Path):
    with archives.open_archive(make(tmp_path / "a.zip", {"a": b"one", "b/c": b"two"})) as archive:
        assert (archive.read("b/c"), archive.read("none"), archive.names()) == (b"two", b"", ["a", "b/c"])


def test_an_archive_that_claims_too_much_is_not_opened(tmp_path: Path):
    bomb = make(tmp_path / "bomb.zip", {"a": bytes(60_000_000)})
    assert bomb.stat().st_size < 100_000
    assert refusal(bomb) == "too_large"


def test_an_archive_that_lies_about_its_size_is_stopped_while_it_is_read(tmp_path: Path):
    bomb = make(tmp_path / "bomb.zip", {"a": bytes(60_000_000)})
    content = bomb.read_bytes()
    bomb.write_bytes(content.replace((60_000_000).to_bytes(4, "little"), (1_000).to_bytes(4, "little")))
    assert refusal(bomb) in ("corrupt", "too_large")


def test_everything_read_from_an_archive_counts_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file = make(tmp_path / "a.zip", {"a": b"x" * 600, "b": b"y" * 600})
    monkeypatch.setattr(archives, "MOST_BYTES", 1_500)
    with archives.open_archive(file) as archive:
        archive.read("a")
        archive.read("b")
        with pytest.raises(UnreadableFile):
            archive.read("a")


def test_an_archive_of_too_many_entries_is_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(archives, "MOST_ENTRIES", 2)
    assert refusal(make(tmp_path / "a.zip", {"a": b"", "b": b"", "c": b""})) == "too_large"


def test_an_entry_with_a_password_says_so(tmp_path: Path):
    file = make(tmp_path / "a.zip", {"a": b"secret"})
    content = bytearray(file.read_bytes())
    content[content.index(b"PK\x01\x02") + 8] |= 1
    content[6] |= 1
    file.write_bytes(content)
    assert refusal(file) == "encrypted"


def test_a_damaged_entry_is_corrupt(tmp_path: Path):
    file = make(tmp_path / "a.zip", {"a": bytes(range(256)) * 50})
    content = bytearray(file.read_bytes())
    content[60:80] = b"\xff" * 20
    file.write_bytes(content)
    assert refusal(file) == "corrupt"


def test_names_that_climb_out_are_only_names(tmp_path: Path):
    file = make(tmp_path / "a.zip", {"../../evil": b"x", "/etc/passwd": b"y"})
    with archives.open_archive(file) as archive:
        assert archive.read("../../evil") == b"x"
    assert [each.name for each in tmp_path.iterdir()] == ["a.zip"]
