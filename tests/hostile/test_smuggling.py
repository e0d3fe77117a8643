"""Request smuggling, directly at the server: each form gets one answer, and the smuggled request gets none."""

import json
from collections.abc import Sequence

import pytest

from almanac.net.http_server import MAX_PIPELINED_REQUESTS
from tests.hostile.raw_http import Answer, RawConnection, exchange, request
from tests.hostile.smuggling import CHUNKED, FORMS, SMUGGLED, SMUGGLED_ANSWER, Form, Outcome, chunk
from tests.live_server import Running

# It follows each form. The server answers it only if the connection is still open and no bytes are left.
NEXT_REQUEST = request("GET", "/health", "Connection: close")


def judge(answers: Sequence[Answer]) -> Outcome:
    assert not any(SMUGGLED_ANSWER in answer.body for answer in answers), "the smuggled request was answered"
    assert not any(answer.body.count(b'"status":"healthy"') > 1 for answer in answers)
    first, *others = answers
    if others:
        assert [json.loads(answer.body) for answer in others] == [{"status": "healthy", "service": "almanac"}]
        return Outcome.ONE_REQUEST
    return Outcome.REFUSED if first.status != 200 else Outcome.LAST_REQUEST


def check(form: Form, answers: Sequence[Answer]) -> None:
    outcome = judge(answers)
    # The last request of a connection may get 200 or an error, such as 401.
    assert outcome is form.outcome or (form.outcome is Outcome.LAST_REQUEST and outcome is Outcome.REFUSED)


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_a_smuggled_request_is_never_answered(hostile_server: Running, form: Form):
    *segments, last = form.segments
    check(form, exchange(hostile_server.port, [*segments, last + NEXT_REQUEST]))


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_a_smuggled_request_that_arrives_byte_by_byte_is_never_answered(hostile_server: Running, form: Form):
    answers: list[Answer] = []
    with RawConnection(hostile_server.port) as connection:
        for number, segment in enumerate(form.segments):
            if number and (answer := connection.read_answer()):
                answers.append(answer)
            for byte in segment:
                connection.send(bytes([byte]))
        connection.send(NEXT_REQUEST)
        check(form, answers + connection.read_answers())


def test_a_form_is_unlike_two_requests(hostile_server: Running):
    # The check above can fail: a request that follows a complete one is answered.
    answers = exchange(hostile_server.port, [request("POST", "/mcp", "Content-Length: 0") + SMUGGLED + NEXT_REQUEST])
    with pytest.raises(AssertionError, match="the smuggled request was answered"):
        judge(answers)


def test_a_token_in_a_trailer_authorises_nothing(hostile_server: Running):
    message = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "ping"}).encode()
    headers = (CHUNKED, "Content-Type: application/json", "Accept: application/json, text/event-stream")
    trailer = b"0\r\nAuthorization: Bearer " + hostile_server.token.encode() + b"\r\n\r\n"
    answers = exchange(
        hostile_server.port, [request("POST", "/mcp", *headers, body=chunk(message) + trailer) + NEXT_REQUEST]
    )
    assert [answer.status for answer in answers] == [401, 200]


def test_a_refusal_names_its_reason(hostile_server: Running):
    upgrade = request("GET", "/health", "Connection: Upgrade", "Upgrade: h2c")
    [answer] = exchange(hostile_server.port, [upgrade])
    assert answer.status == 400
    assert answer.headers["connection"] == "close"
    assert json.loads(answer.body) == {
        "error": "This server speaks HTTP/1.1 and upgrades no connection. Send the request without the header Upgrade "
        "(in Java: HttpClient.Version.HTTP_1_1).",
        "code": "upgrade_refused",
    }


def test_an_invalid_request_does_not_replace_the_answer_to_the_one_before(hostile_server: Running):
    call = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "ping"}).encode()
    headers = (
        f"Authorization: Bearer {hostile_server.token}",
        f"Content-Length: {len(call)}",
        "Content-Type: application/json",
        "Accept: application/json, text/event-stream",
    )
    [answer] = exchange(hostile_server.port, [request("POST", "/mcp", *headers, body=call) + b"not HTTP\r\n\r\n"])
    assert answer.status == 200
    assert json.loads(answer.body)["id"] == 1
    assert answer.headers["connection"] == "close"


def test_requests_on_one_connection_are_answered_in_order(hostile_server: Running):
    paths = ["/health", "/", "/smuggling", "/health"]
    answers = exchange(hostile_server.port, [b"".join(request("GET", path) for path in paths) + NEXT_REQUEST])
    assert [answer.status for answer in answers] == [200, 200, 404, 200, 200]


def test_only_some_requests_are_queued_on_one_connection(hostile_server: Running):
    answers = exchange(hostile_server.port, [request() * 1000])
    assert [answer.status for answer in answers] == [200] * (1 + MAX_PIPELINED_REQUESTS)
