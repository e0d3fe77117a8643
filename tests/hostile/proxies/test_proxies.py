"""Request smuggling through real reverse proxies that reuse their connections to the server: `make test-hostile`.

An attacker sends a form; then others send requests of their own through the same proxy. Each must get the answer to its
own request: neither the answer to a smuggled request, nor none because its request became a part of the attacker's.
"""

import select
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from almanac.net import http_server
from tests.hostile import raw_http
from tests.hostile.conftest import LIMITS
from tests.hostile.proxies.programs import NAMES, proxy
from tests.hostile.raw_http import Answer, RawConnection, request
from tests.hostile.smuggling import FORMS, SMUGGLED, Form
from tests.live_server import running, settings_for

# It takes the next request on its connection as its body. It is as long as the request that it replaces in a form.
CAPTURING = request("POST", "/keys/verify", "Content-Type: application/json", "Content-Length: 999", "X: aaaaaaa")
PAYLOADS = {"complete": SMUGGLED, "capturing": CAPTURING}
BAD_GATEWAY = 502  # the server has closed the connection that the proxy wanted to use
# The time between two segments. In a short one, a proxy forwards the first alone, and the second before the answer.
PAUSES_SECONDS = (0.0001, 0.003)
ATTEMPTS = 10
_numbers = count(1)


@pytest.fixture(scope="module", params=NAMES)
def proxy_port(
    request: pytest.FixtureRequest, new_sqlite: Callable[[], str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[int]:
    folder = tmp_path_factory.mktemp(request.param)
    settings = settings_for(new_sqlite(), folder / "home", **LIMITS)
    with running(settings) as live, proxy(request.param, live.port, folder) as port:
        yield port


def attack(attacker: RawConnection, form: Form, payload: bytes, pause_seconds: float) -> None:
    """Send a form with another smuggled request. A proxy may answer a segment later than the server, or never."""
    for segment in form.segments:
        attacker.send(segment.replace(SMUGGLED, payload))
        select.select([attacker.socket], [], [], pause_seconds)


def ask(port: int) -> tuple[str, Answer | None]:
    """Send a request with an id of its own through the proxy; return the id and the answer."""
    own = f"victim-{next(_numbers)}"
    with RawConnection(port) as victim:
        victim.send(request("POST", "/mcp", f"X-Request-Id: {own}", "Content-Length: 0"))
        return own, victim.read_answer()


def is_own(own: str, answer: Answer | None) -> bool:
    return answer is not None and (answer.status, answer.headers.get("x-request-id")) == (401, own)


def check_victim(port: int) -> None:
    own, answer = ask(port)
    assert is_own(own, answer) or (answer is not None and answer.status == BAD_GATEWAY)


def test_a_capturing_request_has_the_length_of_the_one_it_replaces():
    assert len(CAPTURING) == len(SMUGGLED)


@pytest.mark.parametrize("payload", PAYLOADS)
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_nobody_gets_the_answer_to_a_smuggled_request(proxy_port: int, form: Form, payload: str):
    attempts = ATTEMPTS if len(form.segments) > 1 else 1
    for pause_seconds in PAUSES_SECONDS * attempts:
        with RawConnection(proxy_port) as attacker:
            attack(attacker, form, PAYLOADS[payload], pause_seconds)
            check_victim(proxy_port)
            check_victim(proxy_port)
        check_victim(proxy_port)


@pytest.mark.parametrize(("name", "form"), [("nginx", "Upgrade of a slow request"), ("node", "Upgrade, body in parts")])
def test_without_the_guard_a_request_becomes_a_part_of_the_attackers_request(
    monkeypatch: pytest.MonkeyPatch, new_sqlite: Callable[[], str], tmp_path: Path, name: str, form: str
):
    # The check above can fail. Whether an attack succeeds depends on time, so it is repeated.
    monkeypatch.setattr(http_server, "GuardedConnection", HttpToolsProtocol)
    monkeypatch.setattr(raw_http, "LONGEST_WAIT_SECONDS", 2)
    [attempt] = [each for each in FORMS if each.name == form]
    with (
        running(settings_for(new_sqlite(), tmp_path / "home")) as live,
        proxy(name, live.port, tmp_path) as port,
        pytest.raises(TimeoutError),
    ):
        for _ in range(100 * ATTEMPTS):
            with RawConnection(port) as attacker:
                attack(attacker, attempt, CAPTURING, PAUSES_SECONDS[0])
                ask(port)
