"""Attachments over REST: upload, download, search by their content, and removal with their file."""

import base64
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from almanac.files.file_store import FileStore
from almanac.jobs import queue
from tests.catalogue.sample_catalogue import FILE, POWERJET
from tests.live_server import Running, running, settings_for
from tests.web.api import blobs, drafts
from tests.web.catalogue.test_handlers import KB, ask, send

CORPUS = Path(__file__).parents[2] / "knowledge" / "corpus" / "files"
SCAN = (CORPUS / "scan.png").read_bytes()
PDF = b"%PDF-1.4\n% a small one\n"


@pytest.fixture(scope="module")
def shop(shared: Running) -> Running:
    ask(shared, "POST", "/tenants/seed", json=json.loads(FILE.read_text("utf-8")))
    return shared


def upload(live: Running, content: bytes, name: str = "front.png", status: int = 201, **fields: Any) -> Any:
    parts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in fields.items()}
    return ask(live, "POST", f"{KB}/attachments", status, files={"file": (name, content)}, data=parts)


def file_of(live: Running, attachment: Any, token: str | None = None, **headers: str) -> Any:
    path = attachment["url"].removeprefix(live.settings.url)
    return live.http.get(path, headers={"x-api-key": token or live.token, **headers})


def tidy(live: Running) -> None:
    async def work(db: Any) -> None:
        files = FileStore(live.settings.home, live.settings.max_file_bytes)
        await files.remove_unused(db)
        files.close()

    live.run(work)


def test_a_form_brings_a_file_that_is_attached_and_sent_back_as_it_came(shop: Running):
    said: dict[str, Any] = {
        "type": "image",
        "annotations": {"angle": "front"},
        "description": "From the front",
        "folder": "shots",
    }
    answer = upload(shop, SCAN, "C:\\shots\\front.png", entities=[POWERJET], **said)
    assert answer["success"] is True
    made = answer["attachment"]
    assert (made["name"], made["type"], made["contentType"]) == ("front.png", "image", "image/png")
    assert (made["annotations"], made["entities"], made["size"]) == ({"angle": "front"}, [POWERJET], len(SCAN))
    assert made["url"] == f"{shop.settings.url}{KB}/attachments/{made['_id']}/file"
    assert ask(shop, "GET", f"{KB}/attachments/{made['_id']}") == made
    assert made in ask(shop, "GET", f"{KB}/entities/{POWERJET}/attachments")
    listed = ask(shop, "GET", f"{KB}/entities/{POWERJET}")["attachments"]
    assert {"id": made["_id"], "type": "image", "url": made["url"], "name": "front.png"} in listed
    response = file_of(shop, made)
    assert (response.status_code, response.content, response.headers["content-type"]) == (200, SCAN, "image/png")
    assert response.headers["content-disposition"].startswith('inline; filename="front.png"')
    assert response.headers["x-content-type-options"] == "nosniff"
    assert response.headers["content-security-policy"] == "sandbox; default-src 'none'"
    assert response.headers["etag"] == f'"{hashlib.sha256(SCAN).hexdigest()}"'
    part = file_of(shop, made, range="bytes=1-3")
    assert (part.status_code, part.content) == (206, b"PNG")
    off = {"entityId": POWERJET, "attachmentUrl": made["url"], "action": "unlink"}
    assert ask(shop, "POST", f"{KB}/attachments/link", json=off)["entities"] == []
    assert drafts(shop) == []


@pytest.mark.parametrize("before", ["", "data:application/pdf;base64,", "data:;name=a.pdf;base64,", "DATA:X/Y;BASE64,"])
def test_json_brings_a_file_as_base64_or_as_a_data_url(shop: Running, before: str):
    given = {"file": before + base64.b64encode(PDF).decode(), "filename": "manual.pdf", "entities": [POWERJET]}
    made = ask(shop, "POST", f"{KB}/attachments", 201, json=given)["attachment"]
    assert (made["name"], made["contentType"], made["entities"]) == ("manual.pdf", "application/pdf", [POWERJET])
    assert file_of(shop, made).content == PDF
    ask(shop, "DELETE", f"{KB}/attachments/{made['_id']}", 204)


def test_what_a_file_shows_counts_before_what_is_said_of_it(shop: Running):
    page = b"<!doctype html><html><script>alert(1)</script></html>"
    for content, said, meant, disposition in (
        (page, "image/png", "text/html", "attachment"),
        (b"\x00\x01\x02 who knows", "model/gltf-binary", "model/gltf-binary", "attachment"),
        (b"\x00\x01\x02 who knows", "Audio/Opus; codecs=x", "audio/opus", "attachment"),
        (b"\x00\x01\x02 who knows", "no type\r\nat: all", "application/octet-stream", "attachment"),
        (SCAN, "text/html", "image/png", "inline"),
    ):
        made = upload(shop, content, "thing", contentType=said)["attachment"]
        response = file_of(shop, made)
        assert made["contentType"] == response.headers["content-type"].partition(";")[0] == meant
        assert response.headers["content-disposition"].startswith(disposition)
        ask(shop, "DELETE", f"{KB}/attachments/{made['_id']}", 204)


def test_a_url_is_named_and_not_fetched(shop: Running):
    given = {"url": "https://example.org/pictures/side.png?size=big", "type": "image", "entities": [POWERJET]}
    made = ask(shop, "POST", f"{KB}/attachments", 201, json=given)["attachment"]
    assert (made["name"], made["url"], made["entities"]) == ("side.png", given["url"], [POWERJET])
    assert (made["contentType"], made["size"]) == ("image/png", None)
    response = send(shop, "GET", f"{KB}/attachments/{made['_id']}/file")
    assert (response.status_code, response.json()["code"]) == (404, "file_unavailable")
    ask(shop, "DELETE", f"{KB}/attachments/{made['_id']}", 204)


def test_what_cannot_be_an_attachment_is_refused_and_leaves_nothing_behind(shop: Running):
    held, rows = blobs(shop), shop.run(lambda db: db.fetch("SELECT count(*) AS n FROM attachments"))[0]["n"]
    path, whole = f"{KB}/attachments", base64.b64encode(PDF).decode()
    refusals: list[tuple[dict[str, Any], int]] = [
        ({}, 400),
        ({"file": whole, "url": "https://example.org/a.png"}, 400),
        ({"file": "not base64!"}, 400),
        ({"file": ""}, 400),
        ({"file": whole, "type": "no-such"}, 404),
        ({"file": whole, "entities": ["0" * 24]}, 404),
        ({"file": whole, "entities": POWERJET}, 400),
        ({"file": whole, "annotations": []}, 400),
        ({"file": whole, "filename": "bell\x07.pdf"}, 400),
        ({"file": whole, "surplus": 1}, 400),
        ({"url": "file:///etc/passwd"}, 400),
    ]
    for given, status in refusals:
        assert send(shop, "POST", path, json=given).status_code == status, given
    upload(shop, b"", status=400)
    upload(shop, PDF, entities="[", status=400)
    upload(shop, PDF, annotations="5", status=400)
    upload(shop, PDF, entities=["0" * 24], status=404)
    upload(shop, PDF, surplus="1", status=400)
    assert send(shop, "POST", path, content=PDF).status_code == 415
    assert (blobs(shop), drafts(shop)) == (held, [])
    assert shop.run(lambda db: db.fetch("SELECT count(*) AS n FROM attachments"))[0]["n"] == rows


def test_a_file_that_is_too_large_is_refused(tmp_path: Path, database_url: str):
    with running(settings_for(database_url, tmp_path, max_file_bytes=2000)) as live:
        upload(live, b"x" * 2001, status=413)
        assert blobs(live) == []
        assert upload(live, b"x" * 2000)["attachment"]["size"] == 2000


def test_only_whoever_may_change_the_catalogue_uploads_and_only_its_organisation_reads(shop: Running):
    held = blobs(shop)
    reader = shop.new_token("reader")
    for token in (reader, shop.new_token("narrow", admin=True, scope=["catalogue:read"])):
        response = send(shop, "POST", f"{KB}/attachments", token, files={"file": ("a.pdf", PDF)})
        assert response.status_code == 403
    assert blobs(shop) == held
    made = upload(shop, PDF)["attachment"]
    assert file_of(shop, made, reader).content == PDF
    stranger = shop.new_token("boss", org="elsewhere", admin=True)
    hidden = send(shop, "GET", f"{KB}/attachments/{made['_id']}/file", stranger)
    never = send(shop, "GET", f"{KB}/attachments/{'0' * 24}/file", stranger)
    assert (hidden.status_code, never.status_code) == (404, 404)
    assert hidden.json()["error"].replace(made["_id"], "0" * 24) == never.json()["error"]
    assert file_of(shop, made, shop.new_token("other", scope=["knowledge:read"])).status_code == 403
    assert file_of(shop, made, "ak-none").status_code == 401
    ask(shop, "DELETE", f"{KB}/attachments/{made['_id']}", 204)


def test_the_same_content_is_kept_once_and_until_nobody_needs_it(shop: Running):
    content = b"%PDF-1.4\n% kept once\n"
    name = hashlib.sha256(content).hexdigest()
    first, second = (upload(shop, content, f"{n}.pdf")["attachment"] for n in range(2))
    base = shop.call("manage_base", {"action": "create", "name": "Papers"})["structuredContent"]["ids"][0]
    shop.call("add_document", {"base_id": base, "name": "p.pdf", "file_base64": base64.b64encode(content).decode()})

    def kept() -> int:
        tidy(shop)
        return len(shop.run(lambda db: db.fetch("SELECT 1 FROM blobs WHERE hash = $1", name)))

    [row] = shop.run(lambda db: db.fetch("SELECT id, blob_id FROM documents WHERE name = 'p.pdf'"))
    assert kept() == 1
    ask(shop, "DELETE", f"{KB}/attachments/{first['_id']}", 204)
    assert kept() == 1
    sql = "DELETE FROM documents WHERE id = $1"
    shop.run(lambda db: db.write(lambda tx: tx.execute(sql, row["id"])))
    assert kept() == 1
    assert file_of(shop, second).content == content
    ask(shop, "DELETE", f"{KB}/attachments/{second['_id']}", 204)
    assert kept() == 0


def test_an_attachment_whose_file_was_lost_says_so(shop: Running):
    made = upload(shop, b"%PDF-1.4\n% to be lost\n")["attachment"]
    [row] = shop.run(
        lambda db: db.fetch(
            "SELECT b.name FROM blobs b JOIN attachments a ON a.blob_id = b.id WHERE a.id = $1", made["_id"]
        )
    )
    FileStore(shop.settings.home, 1).path(row["name"]).unlink()
    response = file_of(shop, made)
    assert (response.status_code, response.json()["code"]) == (404, "file_unavailable")
    ask(shop, "DELETE", f"{KB}/attachments/{made['_id']}", 204)


@pytest.fixture
def quick(database_url: str, tmp_path: Path) -> Iterator[Running]:
    with running(settings_for(database_url, tmp_path / "home", embedding=False)) as live:
        yield live


def test_a_picture_is_found_by_what_is_said_of_it_at_once_and_by_what_is_written_in_it_once_it_is_read(quick: Running):
    def found(query: str) -> list[str]:
        asked = {"namespace": "images", "query": query}
        return [each["id"] for each in ask(quick, "POST", f"{KB}/retrieve", json=asked)]

    made = upload(quick, SCAN, "sheet.png", description="A sheet of zwolfbergs", annotations={"year": 1987})
    broken = upload(quick, SCAN[:400], "broken.png", description="Half a quintel")["attachment"]
    plain = upload(quick, b"%PDF-1.4\n% zwolfberg", "zwolfberg.pdf")["attachment"]
    picture = made["attachment"]
    assert found("zwolfberg") == [picture["_id"]]
    assert plain["_id"] not in found("pdf")
    assert found("maintenance") == []
    quick.work()
    assert quick.run(queue.counts)["dead"] == 0
    [text] = quick.run(lambda db: db.fetch("SELECT text FROM attachments WHERE id = $1", picture["_id"]))
    word = max(text["text"].split(), key=len)
    assert found(word) == [picture["_id"]]
    assert found("quintel") == [broken["_id"]]
    [match] = ask(quick, "POST", f"{KB}/retrieve", json={"namespace": "images", "query": "zwolfberg", "topK": 1})
    assert (match["metadata"]["year"], match["metadata"]["url"]) == (1987, picture["url"])
    assert "zwolfberg" in match["metadata"]["text"]
    ask(quick, "DELETE", f"{KB}/attachments/{picture['_id']}", 204)
    assert found(word) == []


TYPES = [{"name": "Image", "typeKey": "image"}]


def test_an_import_changes_the_named_fields_of_a_linked_attachment(quick: Running):
    def imported(*attachments: dict[str, Any]) -> dict[str, Any]:
        entity = {"name": "Washer", "category": "Tools", "attachments": attachments}
        file = {"categories": [{"name": "Tools"}], "attachmentTypes": TYPES, "entities": [entity]}
        return ask(quick, "POST", "/tenants/seed", json=file)["counts"]["attachment"]

    def found(query: str) -> list[str]:
        asked = {"namespace": "images", "query": query}
        return [each["id"] for each in ask(quick, "POST", f"{KB}/retrieve", json=asked)]

    url = "https://example.org/views/one.png"
    assert imported({"url": url, "name": "Zwolfberg", "description": "From the left"}) == {"add": 1}
    assert imported({"url": url, "name": "Quintel"}) == {"change": 1}
    [id] = found("quintel")
    assert (found("zwolfberg"), found("left")) == ([], [id])
    assert ask(quick, "GET", f"{KB}/attachments/{id}")["name"] == "Quintel"
    twice = ({"url": url, "name": "Quintel"}, {"url": url, "name": "Zwolfberg"})
    assert imported(*twice) == {"same": 2}  # the first entry of a URL determines the name
    url = "https://example.org/views/two"
    assert imported({"url": url, "name": "Brindlow"}) == {"add": 1}
    assert found("brindlow") == []
    assert imported({"url": url, "name": "Brindlow", "type": "image"}) == {"change": 1}
    assert len(found("brindlow")) == 1
    assert imported({"url": url, "name": "Brindlow", "type": None}) == {"change": 1}
    assert found("brindlow") == []
    fields = {"url": url + "/three", "name": "A", "annotations": {"a": 1}}
    kept = ask(quick, "POST", f"{KB}/attachments", 201, json=fields)["attachment"]
    assert kept["annotations"] == {"a": 1}
    assert imported({"url": url + "/three", "name": "A", "annotations": {"b": 2}}) == {"add": 1}
    assert ask(quick, "GET", f"{KB}/attachments/{kept['_id']}")["annotations"] == {"a": 1, "b": 2}
    full = {"url": url + "/three", "name": "A", "annotations": {"text": "x" * 99_985}}
    entity = {"name": "Washer", "category": "Tools", "attachments": [full]}
    assert ask(quick, "POST", "/tenants/seed", 400, json={"entities": [entity]})["error"].startswith(
        "The field annotations"
    )
    assert ask(quick, "GET", f"{KB}/attachments/{kept['_id']}")["annotations"] == {"a": 1, "b": 2}
