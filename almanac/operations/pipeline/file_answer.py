"""An answer that is a file."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from starlette.responses import FileResponse

from almanac.net.http_exchange import HttpExchange


@dataclass(frozen=True, slots=True)
class FileAnswer:
    """A file to send, whole or in the ranges that the request asks for."""

    path: Path
    media_type: str
    headers: Mapping[str, str]
    stat_result: os.stat_result


async def send_file(http: HttpExchange, answer: FileAnswer) -> None:
    """Send a file."""
    response = FileResponse(
        answer.path, headers=answer.headers, media_type=answer.media_type, stat_result=answer.stat_result
    )
    await response(http.scope, http.receive, http.send_with_request_id)
