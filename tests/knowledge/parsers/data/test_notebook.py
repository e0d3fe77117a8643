"""Jupyter notebooks of any shape."""

from pathlib import Path

import orjson
import pytest

from almanac.knowledge.parsers.data import notebook
from almanac.knowledge.parsers.parsed_file import UnreadableFile


@pytest.mark.parametrize("content", [b"{", b"[]", b'{"cells": 7}', b'{"cells": [null, {"source": 5}]}'])
def test_a_notebook_of_any_shape_is_parsed_or_refused(content: bytes, tmp_path: Path):
    file = tmp_path / "x.ipynb"
    file.write_bytes(content)
    try:
        assert notebook.parse(file, "x").text == ""
    except UnreadableFile as refused:
        assert refused.code == "corrupt"


def test_the_cells_of_an_old_notebook_are_in_worksheets(tmp_path: Path):
    file = tmp_path / "x.ipynb"
    cells = [
        {"cell_type": "heading", "level": 2, "source": "Old"},
        {"cell_type": "code", "input": ["x = 1"], "outputs": []},
    ]
    file.write_bytes(orjson.dumps({"worksheets": [{"cells": cells}]}))
    assert notebook.parse(file, "x").text == "## Old\n\nx = 1"
