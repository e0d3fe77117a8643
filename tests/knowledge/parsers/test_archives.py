"""ZIP archives: limits, passwords and damage."""

import zipfile
from pathlib import Path

import pytest

from almanac.knowledge.parsers import archives
from almanac.knowledge.parsers.parsed_file import UnreadableFile


def write_archive(path: Path, entries: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    return path


def error_code(path: Path, name: str = "a") -> str:
    with pytest.raises(UnreadableFile) as refused, archives.open_archive(path) as archive:
        archive.read(name)
    return refused.value.code


def test_an_entry_is_read_by_its_name_and_a_missing_one_is_empty(tmp_path: Path):
    with archives.open_archive(write_archive(tmp_path / "a.zip", {"a": b"one", "b/c": b"two"})) as archive:
        assert (archive.read("b/c"), archive.read("none"), archive.names()) == (b"two", b"", ["a", "b/c"])


def test_an_archive_with_too_large_a_claimed_size_is_not_opened(tmp_path: Path):
    bomb = write_archive(tmp_path / "bomb.zip", {"a": bytes(60_000_000)})
    assert bomb.stat().st_size < 100_000
    assert error_code(bomb) == "too_large"


def test_reading_an_archive_that_understates_its_size_is_stopped(tmp_path: Path):
    bomb = write_archive(tmp_path / "bomb.zip", {"a": bytes(60_000_000)})
    content = bomb.read_bytes()
    bomb.write_bytes(content.replace((60_000_000).to_bytes(4, "little"), (1_000).to_bytes(4, "little")))
    assert error_code(bomb) in ("corrupt", "too_large")


def test_all_reading_from_an_archive_counts_towards_one_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file = write_archive(tmp_path / "a.zip", {"a": b"x" * 600, "b": b"y" * 600})
    monkeypatch.setattr(archives, "MAX_UNPACKED_BYTES", 1_500)
    with archives.open_archive(file) as archive:
        archive.read("a")
        archive.read("b")
        with pytest.raises(UnreadableFile):
            archive.read("a")


def test_an_archive_with_too_many_entries_is_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(archives, "MAX_ENTRIES", 2)
    assert error_code(write_archive(tmp_path / "a.zip", {"a": b"", "b": b"", "c": b""})) == "too_large"


def test_an_entry_with_a_password_is_encrypted(tmp_path: Path):
    file = write_archive(tmp_path / "a.zip", {"a": b"secret"})
    content = bytearray(file.read_bytes())
    content[content.index(b"PK\x01\x02") + 8] |= 1
    content[6] |= 1
    file.write_bytes(content)
    assert error_code(file) == "encrypted"


def test_a_damaged_entry_is_corrupt(tmp_path: Path):
    file = write_archive(tmp_path / "a.zip", {"a": bytes(range(256)) * 50})
    content = bytearray(file.read_bytes())
    content[60:80] = b"\xff" * 20
    file.write_bytes(content)
    assert error_code(file) == "corrupt"


def test_names_with_paths_out_of_the_archive_are_only_names(tmp_path: Path):
    file = write_archive(tmp_path / "a.zip", {"../../outside": b"x", "/etc/passwd": b"y"})
    with archives.open_archive(file) as archive:
        assert archive.read("../../outside") == b"x"
    assert [file.name for file in tmp_path.iterdir()] == ["a.zip"]
