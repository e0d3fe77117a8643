"""Uploads over HTTP: forms, raw bodies and JSON; hostile, slow, interrupted and large ones."""

import hashlib
import json
import os
import socket
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx2
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from almanac.core.errors import BadRequest, TooLarge
from almanac.web.multipart import MultipartForm
from tests.cli.program import serving
from tests.live_server import Running, running, settings_for
from tests.surfaces.wire import Answer, audit_of, exchange, http
from tests.web.api import Api, blobs, drafts, flat, until_no_drafts

B = b"boundary-of-parts"
KIND = b"multipart/form-data; boundary=" + B


def part(name: str, value: bytes, more: str = "", headers: bytes = b"") -> bytes:
    disposition = f'Content-Disposition: form-data; name="{name}"{more}\r\n'.encode()
    return b"--" + B + b"\r\n" + disposition + headers + b"\r\n" + value + b"\r\n"


def form(*parts: bytes) -> bytes:
    return b"".join(parts) + b"--" + B + b"--\r\n"


FILE = part("file", b"hello", '; filename="a.txt"')


def send(api: Api, path: str, body: bytes, method: str = "POST", **headers: Any) -> Answer:
    first = f"{method} /api/v1{path} HTTP/1.1".encode()
    kept: dict[str, Any] = {"content_type": KIND, **headers}
    raw = http(body, first=first, **kept)
    return exchange(api.live.port, raw.replace(b"@TOKEN@", api.token.encode()))


# Forms


def test_a_file_is_uploaded_with_fields_before_and_after_it(api: Api):
    base = api.base("Forms")
    folder = api.folder(base, "in")
    body = form(
        part("folder_id", str(folder).encode()),
        part("tags", b"one"),
        part("file", b"hello\r\n--not the boundary\r\n", '; filename="a.txt"', b"Content-Type: application/evil\r\n"),
        part("tags", "zwölf, 12".encode()),
        part("metadata", b'{"a": {"b": [1, null]}}'),
        part("name", "Größe.txt".encode()),
    )
    answer = send(api, f"/bases/{base}/documents", body)
    assert answer.status == 201, answer.body
    made = flat(answer.json)
    assert answer.headers["location"] == f"/api/v1/documents/{made['id']}"
    told = {name: made[name] for name in ("name", "folder_id", "tags", "metadata", "mime_type", "size", "outcome")}
    assert told == {
        "name": "Größe.txt",
        "folder_id": folder,
        "tags": ["one", "zwölf, 12"],
        "metadata": {"a": {"b": [1, None]}},
        "mime_type": "text/plain",
        "size": 27,
        "outcome": "added",
    }
    assert made["sha256"] == hashlib.sha256(b"hello\r\n--not the boundary\r\n").hexdigest()


@pytest.mark.parametrize(
    ("sent", "name"),
    [
        ("a.txt", "a.txt"),
        ("../../etc/passwd", "passwd"),
        ("C:\\\\fakepath\\\\plan.txt", "plan.txt"),
        ("/abs/olute/x.txt", "x.txt"),
        ("日本語 🎉.txt", "日本語 🎉.txt"),
        ('with \\"quotes\\".txt', 'with "quotes".txt'),
        ("as forms %22escape%22 it 100%.txt", 'as forms "escape" it 100%.txt'),
    ],
)
def test_a_file_s_own_name_is_taken_without_its_path(api: Api, sent: str, name: str):
    base = api.base("Named")
    answer = send(api, f"/bases/{base}/documents", form(part("file", b"x", f'; filename="{sent}"')))
    assert (answer.status, answer.json.get("document", {}).get("name")) == (201, name), answer.body


def test_what_a_form_replaces_is_told_as_of_json(api: Api):
    base = api.base("Again")
    path = f"/bases/{base}/documents"
    assert send(api, path, form(FILE)).status == 201
    taken = send(api, path, form(FILE))
    assert (taken.status, taken.json["code"]) == (409, "conflict")
    same = send(api, path, form(FILE, part("if_exists", b"replace")))
    assert (same.status, same.json["outcome"]) == (200, "unchanged")
    newer = send(api, path, form(part("if_exists", b"replace"), part("file", b"newer", '; filename="a.txt"')))
    assert (newer.status, flat(newer.json)["outcome"], flat(newer.json)["generation"]) == (200, "replaced", 2)


BAD_FORMS = {
    "no file": form(part("name", b"x")),
    "no parts": b"--" + B + b"--\r\n",
    "nothing": b"",
    "two files": form(FILE, FILE),
    "a file under another name": form(part("upload", b"x", '; filename="a"')),
    "a field nobody takes": form(FILE, part("colour", b"red")),
    "a field twice": form(FILE, part("name", b"a"), part("name", b"b")),
    "no last boundary": FILE,
    "cut within a part": form(FILE)[:-30],
    "another boundary": form(FILE).replace(B, b"another"),
    "no disposition": b"--" + B + b"\r\nContent-Type: text/plain\r\n\r\nx\r\n" + form(FILE),
    "an attachment": form(FILE).replace(b"form-data", b"attachment"),
    "an encoding": form(part("file", b"aGk=", '; filename="a"', b"Content-Transfer-Encoding: base64\r\n")),
    "headers without end": form(part("file", b"x", "", b"".join(b"X-%d: y\r\n" % n for n in range(1000)))),
    "a header without end": form(part("file", b"x", "", b"X-A: " + b"y" * 100_000 + b"\r\n")),
    "parts without end": form(FILE, *(part("tags", b"x") for _ in range(200))),
    "an empty file": form(part("file", b"", '; filename="a.txt"')),
    "no name at all": form(part("file", b"x")),
    "a name that is a path": form(FILE, part("name", b"a/b")),
    "a name of dots": form(part("file", b"x", '; filename=".."')),
    "NUL in the name": form(FILE, part("name", b"a\0b")),
    "NUL in the file's name": form(part("file", b"x", '; filename="a\0.txt"')),
    "a name that is not UTF-8": form(FILE, part("name", b"\xff\xfe")),
    "a folder that is no number": form(FILE, part("folder_id", b"one")),
    "a folder below none": form(FILE, part("folder_id", b"-1")),
    "a folder no database holds": form(FILE, part("folder_id", b"99999999999999999999")),
    "a folder in other digits": form(FILE, part("folder_id", "٣".encode())),
    "a folder without end of digits": form(FILE, part("folder_id", b"9" * 5000)),
    "metadata that is not JSON": form(FILE, part("metadata", b"{")),
    "metadata that is no object": form(FILE, part("metadata", b"[1]")),
    "metadata with NUL": form(FILE, part("metadata", b'{"a": "\\u0000"}')),
    "metadata too large": form(FILE, part("metadata", json.dumps({"a": "x" * 20_000}).encode())),
    "an unknown way": form(FILE, part("if_exists", b"burn")),
    "an empty tag": form(FILE, part("tags", b"")),
}


@pytest.mark.parametrize("why", BAD_FORMS)
def test_a_form_with_something_wrong_leaves_nothing_behind(api: Api, why: str):
    base = api.base("Bad forms")
    before = blobs(api.live)
    answer = send(api, f"/bases/{base}/documents", BAD_FORMS[why], content_length=b"%d" % len(BAD_FORMS[why]))
    assert (answer.status, answer.json["code"]) == (400, "bad_request"), answer.body
    assert api.ask("GET", f"/bases/{base}/nodes")["items"] == []
    assert drafts(api.live) == []
    assert blobs(api.live) == before


@pytest.mark.parametrize("kind", [b"multipart/form-data", b"multipart/form-data; boundary=", KIND + b"x" * 100])
def test_a_form_without_a_usable_boundary_is_refused(api: Api, kind: bytes):
    answer = send(api, f"/bases/{api.base('Unbounded')}/documents", form(FILE), content_type=kind)
    assert (answer.status, answer.json["code"]) == (400, "bad_request")


def test_fields_without_end_are_refused(api: Api):
    answer = send(api, f"/bases/{api.base('Endless')}/documents", form(part("name", b"x" * 100_000), FILE))
    assert (answer.status, answer.json["code"]) == (413, "too_large")


def test_nothing_is_read_of_what_somebody_sends_who_may_not(api: Api):
    base = api.base("Not yours")
    stranger = api.by(api.live.new_token("stranger"))
    # The body never ends: a caller who is refused before the body is read need not send it.
    answer = send(stranger, f"/bases/{base}/documents", FILE, content_length=b"400000000")
    assert (answer.status, answer.json["code"]) == (404, "not_found")


# Other forms of uploads


def test_new_content_comes_as_a_form_as_json_or_as_it_is(api: Api):
    document = api.text(api.base("Replaced"), "a.txt", "one")["id"]
    path = f"/documents/{document}/content"
    answer = send(api, path, form(part("file", b"two", '; filename="other.pdf"')), "PUT")
    assert (answer.status, flat(answer.json)["outcome"], flat(answer.json)["name"]) == (200, "replaced", "a.txt")
    assert api.ask("PUT", path, json={"content": "three"})["document"]["generation"] == 3
    assert api.ask("PUT", path, json={"file_base64": "Zm91cg=="})["document"]["size"] == 4
    raw = flat(api.ask("PUT", path, content=b"\x00\x01five", headers={"content-type": "application/octet-stream"}))
    assert (raw["generation"], raw["sha256"]) == (5, hashlib.sha256(b"\x00\x01five").hexdigest())
    again = flat(api.ask("PUT", path, content=b"\x00\x01five"))
    assert (again["generation"], again["outcome"]) == (5, "unchanged")
    assert api.refused("PUT", path, content=b"", headers={"content-type": "text/plain"}) == (400, "bad_request")
    assert api.refused("PUT", path, json={}) == (400, "bad_request")
    assert api.refused("PUT", path, json={"content": "a", "url": "https://a.example"}) == (400, "bad_request")
    assert api.refused("PUT", path, json={"content": "a", "name": "b"}) == (400, "bad_request")
    named = send(api, path, form(FILE, part("name", b"b")), "PUT")
    assert (named.status, named.json["code"]) == (400, "bad_request")


def test_a_document_comes_as_text_base64_or_from_an_address(api: Api):
    base = api.base("Ways")
    path = f"/bases/{base}/documents"
    assert api.add(base, json={"name": "a", "content": "x"})["name"] == "a.md"
    pdf = api.add(base, json={"name": "b", "file_base64": "JVBERi0xLjcK"})
    assert (pdf["mime_type"], pdf["size"]) == ("application/pdf", 9)
    for wrong in (
        {"name": "c"},
        {"name": "c", "content": "x", "file_base64": "eA=="},
        {"content": "x"},
        {"file_base64": "eA=="},
        {"name": "", "content": "x"},
        {"name": "c", "file_base64": "not base64"},
        {"name": "c", "content": ""},
        {"name": "c", "content": "x", "folder_id": "1"},
    ):
        assert api.refused("POST", path, json=wrong) == (400, "bad_request"), wrong
    inside = {"url": "http://127.0.0.1:1/secret"}
    assert api.refused("POST", path, json=inside) == (422, "ssrf_blocked")
    assert api.refused("POST", path, json={"url": "file:///etc/passwd"}) == (422, "invalid_url")
    assert drafts(api.live) == []


def test_the_trail_tells_of_an_upload_without_telling_what_it_was(api: Api):
    base = api.base("Trailed")
    send(api, f"/bases/{base}/documents", form(FILE, part("tags", b"one")), x_request_id=b"up-1")
    send(api, f"/bases/{base}/documents", form(FILE, part("tags", b"two")), x_request_id=b"up-2")
    one, two = (audit_of(api.live, name)[0] for name in ("up-1", "up-2"))
    assert (one["tool"], one["outcome"], two["outcome"]) == ("add_document", "ok", "conflict")
    assert one["digest"] != two["digest"]
    assert f"base:{base}" in one["touched"].split()


# Slow, interrupted and too large


@pytest.fixture
def small(database_url: str, tmp_path: Path) -> Iterator[Api]:
    options = {"request_deadline_seconds": 0.5, "max_file_bytes": 100_000}
    with running(settings_for(database_url, tmp_path / "home", **options)) as live:
        yield Api(live, live.token)


def pieces(api: Api, path: str, body: bytes, method: str = "POST", **headers: bytes) -> bytes:
    """The head of a request; the caller sends the body."""
    kept: dict[str, Any] = {"content_type": KIND, "content_length": b"%d" % len(body), **headers}
    raw = http(b"", first=f"{method} /api/v1{path} HTTP/1.1".encode(), **kept)
    return raw.replace(b"@TOKEN@", api.token.encode())


def read_answer(connection: socket.socket) -> bytes:
    got = b""
    while piece := connection.recv(65536):
        got += piece
    return got


def test_an_upload_may_take_longer_than_a_request_if_it_keeps_coming(small: Api):
    base = small.base("Slow")
    body = form(part("file", b"x" * 2000, '; filename="slow.txt"'))
    began = time.monotonic()
    with socket.create_connection(("127.0.0.1", small.live.port), timeout=10) as connection:
        connection.sendall(pieces(small, f"/bases/{base}/documents", body))
        for start in range(0, len(body), 400):
            connection.sendall(body[start : start + 400])
            time.sleep(0.2)
        got = read_answer(connection)
    assert time.monotonic() - began > 1.0  # twice the deadline
    assert got.startswith(b"HTTP/1.1 201"), got


def test_an_upload_that_stops_coming_is_given_up(small: Api):
    base = small.base("Stuck")
    body = form(part("file", b"x" * 2000, '; filename="stuck.txt"'))
    with socket.create_connection(("127.0.0.1", small.live.port), timeout=10) as connection:
        connection.sendall(pieces(small, f"/bases/{base}/documents", body, x_request_id=b"stuck-1") + body[:1000])
        got = read_answer(connection)
    assert got.startswith(b"HTTP/1.1 408"), got
    assert audit_of(small.live, "stuck-1")[0]["outcome"] == "request_timeout"
    assert drafts(small.live) == []
    assert blobs(small.live) == []


@pytest.mark.parametrize("kind", [KIND, b"application/octet-stream"])
def test_a_caller_who_hangs_up_leaves_nothing_behind(small: Api, kind: bytes):
    document = small.text(small.base("Gone"))
    before = blobs(small.live)
    body = form(part("file", b"x" * 50_000, '; filename="gone.txt"'))
    with socket.create_connection(("127.0.0.1", small.live.port), timeout=10) as connection:
        path = f"/documents/{document['id']}/content"
        connection.sendall(pieces(small, path, body, "PUT", x_request_id=b"gone-1", content_type=kind) + body[:30_000])
    assert audit_of(small.live, "gone-1")[0]["outcome"] == "cancelled"
    until_no_drafts(small.live)
    assert blobs(small.live) == before
    assert small.ask("GET", f"/documents/{document['id']}")["generation"] == 1


@pytest.mark.parametrize("method", ["POST", "PUT"])
def test_a_file_that_turns_out_too_large_is_refused_while_it_comes(small: Api, method: str):
    base = small.base("Large")
    document = small.text(base)["id"]
    before = blobs(small.live)
    path = f"/bases/{base}/documents" if method == "POST" else f"/documents/{document}/content"
    large = b"x" * 150_000
    body = form(part("file", large, '; filename="l.txt"')) if method == "POST" else large
    chunked = b"%x\r\n" % len(body) + body + b"\r\n0\r\n\r\n"
    kind = KIND if method == "POST" else b"text/plain"
    answer = send(small, path, chunked, method, length=False, transfer_encoding=b"chunked", content_type=kind)
    assert (answer.status, answer.json["code"]) == (413, "too_large")
    declared = send(small, path, body, method, content_type=kind)
    assert (declared.status, declared.json["code"]) == (413, "too_large")
    assert drafts(small.live) == []
    assert blobs(small.live) == before


def test_a_file_of_just_the_largest_size_is_taken(small: Api):
    path = f"/bases/{small.base('Just')}/documents"
    assert send(small, path, form(part("file", b"x" * 100_000, '; filename="a.txt"'))).status == 201
    assert send(small, path, form(part("file", b"x" * 100_001, '; filename="b.txt"'))).status == 413


def peak(pid: int) -> int:
    """The peak memory of a process, in bytes."""
    [line] = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) * 1024


def test_an_upload_of_300_mb_takes_hardly_any_memory(tmp_path: Path):
    size, block = 300 * 1024 * 1024, os.urandom(1024 * 1024)

    def body() -> Iterator[bytes]:
        yield part("file", b"", '; filename="large.bin"')[:-2]
        for _ in range(size // len(block)):
            yield block
        yield b"\r\n" + form()

    with serving(tmp_path / "home", settings={"ALMANAC_JOB_WORKERS": "0"}) as server:
        headers = {"authorization": f"Bearer {server.token}"}
        with httpx2.Client(base_url=f"{server.url}/api/v1", headers=headers, timeout=120) as client:
            base = client.post("/bases", json={"name": "Large"}).json()["id"]
            small = {"file": ("small.bin", block)}
            assert client.post(f"/bases/{base}/documents", files=small).status_code == 201
            before = peak(server.process.pid)
            began = time.monotonic()
            answer = client.post(f"/bases/{base}/documents", content=body(), headers={"content-type": KIND.decode()})
            seconds = time.monotonic() - began
            assert (answer.status_code, answer.json().get("document", {}).get("size")) == (201, size), answer.text
            grown = peak(server.process.pid) - before
            assert grown < 50 * 1024 * 1024, f"{grown / 1e6:.0f} MB"
            document = answer.json()["document"]
            given = client.post(f"/documents/{document['id']}/download").json()
            token = given["headers"]["X-Almanac-Download-Token"]
            before = peak(server.process.pid)
            digest, received = hashlib.sha256(), 0
            with client.stream("GET", f"/documents/{document['id']}/file", params={"token": token}) as got:
                for piece in got.iter_bytes():
                    digest.update(piece)
                    received += len(piece)
            assert (received, digest.hexdigest()) == (size, document["sha256"])
            assert peak(server.process.pid) - before < 50 * 1024 * 1024
            print(f"upload {size / 1e6 / seconds:.0f} MB/s, {grown / 1e6:.1f} MB of memory")


# The parser itself

values = st.binary(max_size=200) | st.lists(
    st.sampled_from([b"\r", b"\n", b"--", B, b"\r\n--", b"\r\n--" + B[:5]])
).map(b"".join)


@settings(
    max_examples=300,
    deadline=None,
    derandomize=True,
    database=None,
    phases=(Phase.explicit, Phase.generate, Phase.shrink),
    suppress_health_check=[HealthCheck.too_slow],
)
@given(content=values, cuts=st.lists(st.integers(0, 400), max_size=8), tags=st.lists(st.text(max_size=20), max_size=3))
def test_a_form_is_read_the_same_however_it_is_cut(content: bytes, cuts: list[int], tags: list[str]):
    if b"\r\n--" + B in b"\r\n" + content:
        return
    fields = [part("tags", tag.encode()) for tag in tags]
    body = form(*fields[:1], part("file", content, '; filename="f"'), *fields[1:])
    edges = sorted({0, len(body), *(cut for cut in cuts if cut < len(body))})
    read = MultipartForm(B, frozenset({"tags"}))
    got = b"".join(read.feed(body[start:end]) for start, end in pairwise(edges))
    read.finish()
    assert (got, read.file_name) == (content, "f")
    assert read.arguments() == ({"tags": tags} if tags else {})


@settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(
    body=st.binary(max_size=300)
    | st.lists(st.sampled_from([FILE, b"--" + B, b"\r\n", b"--", b"name", b":", b'"'])).map(b"".join)
)
def test_bytes_that_are_no_form_are_refused_and_nothing_else(body: bytes):
    read = MultipartForm(B, frozenset({"name"}))
    try:
        read.feed(body)
        read.finish()
        read.arguments()
    except (BadRequest, TooLarge):
        return
    assert body.lstrip(b"\r\n").startswith(b"--" + B)  # line breaks may come before the first boundary


def test_a_running_server_shares_nothing_between_uploads(shared: Running):
    api = Api(shared, shared.token)
    base = api.base("Side by side")
    path = f"/bases/{base}/documents"
    with socket.create_connection(("127.0.0.1", shared.port), timeout=10) as first:
        body = form(part("file", b"a" * 1000, '; filename="first.txt"'))
        first.sendall(pieces(api, path, body) + body[:500])
        second = send(api, path, form(part("file", b"b" * 1000, '; filename="second.txt"')))
        assert second.status == 201
        first.sendall(body[500:])
        assert read_answer(first).startswith(b"HTTP/1.1 201")
    found = api.ask("GET", f"/bases/{base}/nodes")["items"]
    assert {api.ask("GET", f"/documents/{it['id']}")["sha256"] for it in found} == {
        hashlib.sha256(letter * 1000).hexdigest() for letter in (b"a", b"b")
    }
