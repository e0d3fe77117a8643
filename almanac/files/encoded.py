"""Small files that a caller sends as base64 inside of JSON."""

import base64
import binascii

from almanac.core.errors import BadRequest, TooLarge

MAX_BASE64_BYTES = 10 * 1024 * 1024  # after decoding; larger files are uploaded


def decode_base64(encoded: str) -> bytes:
    """The bytes of a base64 text, if they are not too many."""
    if len(encoded) > MAX_BASE64_BYTES * 4 // 3 + 1000:
        raise TooLarge(
            f"A file sent as base64 may have at most {MAX_BASE64_BYTES} bytes.",
            remedy="Upload it over REST, or give its URL.",
        )
    try:
        return base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        raise BadRequest(
            "The content is not valid base64.", remedy="Encode the file again, without line breaks."
        ) from None
