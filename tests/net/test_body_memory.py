"""Request bodies that a server process holds at the same time are bounded, in all and for each organisation."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.hostile.raw_http import RawConnection
from tests.live_server import Running, running, settings_for
from tests.waiting import wait_until

KIB = 1024
LIST = b'{"jsonrpc":"2.0","id":1,"method":"ping"}'


@pytest.fixture
def live(database_url: str, tmp_path: Path) -> Iterator[Running]:
    sizes = {"max_body_bytes": 64 * KIB, "max_buffered_body_bytes": 128 * KIB}  # 64 KiB for one organisation
    with running(settings_for(database_url, tmp_path / "home", embedding=False, **sizes)) as live:
        yield live


def begin(stack: ExitStack, live: Running, token: str, size: int) -> RawConnection:
    """Send a request with a part of its body."""
    connection = stack.enter_context(RawConnection(live.port))
    head = f"POST /mcp HTTP/1.1\r\nhost: 127.0.0.1:{live.port}\r\nauthorization: Bearer {token}\r\n"
    head += f"content-type: application/json\r\naccept: application/json\r\ncontent-length: {size + 1}\r\n\r\n"
    connection.send(head.encode() + b" " * size)
    return connection


def statuses(live: Running, token: str) -> tuple[int, int]:
    """The answers to a short request and to one of 40 KiB."""
    headers = {"authorization": f"Bearer {token}"}
    return tuple(live.post(LIST + b" " * more, headers).status_code for more in (0, 40 * KIB))  # pyright: ignore[reportReturnType]


def test_bodies_of_one_organisation_and_of_all_are_bounded_until_the_requests_end(live: Running):
    other, third = live.new_token("eve", org="Other"), live.new_token("kim", org="Third")
    assert statuses(live, live.token) == (200, 200)
    with ExitStack() as stack:
        begin(stack, live, live.token, 40 * KIB)
        wait_until(lambda: statuses(live, live.token), lambda seen: seen == (200, 429))
        answer = live.post(LIST + b" " * 40 * KIB)
        assert "too_many_bodies" in answer.text, answer.text
        assert statuses(live, other) == (200, 200)
        begin(stack, live, other, 60 * KIB)
        wait_until(lambda: statuses(live, third), lambda seen: seen == (200, 503))
        assert "bodies_full" in live.post(LIST + b" " * 40 * KIB, {"authorization": f"Bearer {third}"}).text
    for token in (live.token, other, third):
        wait_until(lambda token=token: statuses(live, token), lambda seen: seen == (200, 200))
