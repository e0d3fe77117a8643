"""The passages of a few files, stored for comparison.

    python -m tests.knowledge.corpus.goldens --write

writes them again; check the changes before you commit them.
"""

import json
import sys
from dataclasses import asdict
from typing import Any

from almanac.knowledge.parsers import parse_file, parse_message
from tests.knowledge.corpus.expected import FILES, GOLDEN, opened

FOLDER = FILES.parent / "golden"


def passages(name: str) -> list[dict[str, Any]]:
    """The passages of a file as JSON values."""
    with opened(FILES / name) as content:
        found = parse_message.unpack(parse_file.parse_and_split([content], name, {})).passages
    return json.loads(json.dumps([asdict(passage) for passage in found]))


def golden(name: str) -> list[dict[str, Any]]:
    return json.loads((FOLDER / f"{name}.json").read_text("utf-8"))


def write() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name in GOLDEN:
        text = json.dumps(passages(name), ensure_ascii=False, indent=1)
        (FOLDER / f"{name}.json").write_text(text + "\n", "utf-8")
        print(name)


if __name__ == "__main__" and sys.argv[1:] == ["--write"]:
    write()
