"""kreuzberg with its defaults, one file after another."""

import pool
from kreuzberg import extract_file_sync


def read(path: str) -> int:
    return len(extract_file_sync(path).content)


if __name__ == "__main__":
    pool.run(read)
