"""markitdown, as its own documentation calls it: one converter, kept for all files."""

import importlib
from functools import cache
from typing import Any

import pool


@cache
def converter() -> Any:
    # By name, for it is installed in an environment of its own and not in ours.
    return importlib.import_module("markitdown").MarkItDown(enable_plugins=False)


def read(path: str) -> int:
    return len(converter().convert(path).text_content)


if __name__ == "__main__":
    pool.run(read)
