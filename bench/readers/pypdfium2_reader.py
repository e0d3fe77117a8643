"""pypdfium2 alone: the text of every page of a PDF, without positions."""

import pool
import pypdfium2  # pyright: ignore[reportMissingTypeStubs]


def read(path: str) -> int:
    characters = 0
    with pypdfium2.PdfDocument(path) as document:
        for page in document:
            text = page.get_textpage()
            characters += len(text.get_text_range())
            text.close()
            page.close()
    return characters


if __name__ == "__main__":
    pool.run(read)
