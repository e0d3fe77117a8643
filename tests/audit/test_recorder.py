"""The digest of a call's arguments."""

import pytest

from almanac.audit.recorder import MAX_TEXT_CHARS, CallRecorder
from almanac.core.errors import BadRequest

LONG = "x" * (MAX_TEXT_CHARS + 1)


@pytest.fixture
def recorder() -> CallRecorder:
    return CallRecorder(None, b"k" * 32)  # pyright: ignore[reportArgumentType] - the digest needs no trail


def test_a_long_text_is_part_of_the_digest(recorder: CallRecorder):
    digests = {recorder.digest({"content": text, "name": name}) for text in (LONG, LONG + "x") for name in ("a", "b")}
    assert len(digests) == 4
    assert recorder.digest({"content": LONG}) == recorder.digest({"content": LONG})


@pytest.mark.parametrize("text", ["\0", LONG + "\0"])
def test_nul_is_refused_in_texts_of_any_length(recorder: CallRecorder, text: str):
    with pytest.raises(BadRequest, match="NUL"):
        recorder.digest({"content": text})
    with pytest.raises(BadRequest, match="NUL"):
        recorder.digest({"entity": {"details": [text]}})
