"""Our own parsers, without the sandbox and without a process for each file, for comparison with the others."""

from pathlib import Path

import pool

from almanac.knowledge.parsers import file_types, parse_file


def read(path: str) -> int:
    file = Path(path)
    return len(parse_file.parse(file, file.name, file_types.detect_file_type(file, file.name)).text)


if __name__ == "__main__":
    pool.run(read)
