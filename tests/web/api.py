"""A client of the REST endpoints for tests."""

import asyncio
import importlib
import re
from dataclasses import dataclass, replace
from typing import Any

import httpx2

from almanac import reactions
from almanac.core.database import Database
from almanac.jobs.worker import Worker
from almanac.web import openapi
from almanac.web.api_v1 import API_OPERATIONS
from almanac.web.rest import API_PREFIX
from tests.live_server import Running
from tests.waiting import until_stored, wait_until

jsonschema: Any = importlib.import_module("jsonschema")  # it comes without types
DESCRIBED = openapi.describe(API_OPERATIONS)
_PATTERNS = [(re.compile(re.sub(r"\{\w+\}", r"[^/]+", path)), item) for path, item in DESCRIBED["paths"].items()]


def validate(schema: Any, value: Any) -> None:
    """Check a value against a schema of the description."""
    whole = {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
    jsonschema.Draft202012Validator({**whole, "components": DESCRIBED["components"]}).validate(value)


def check(method: str, path: str, response: httpx2.Response) -> None:
    """Check the status and the form of an answer against the description."""
    found = [item for pattern, item in _PATTERNS if pattern.fullmatch(path.partition("?")[0])]
    item = next((each for each in found if method.lower() in each), None)
    if item is None or method == "HEAD":
        return
    described = item[method.lower()]["responses"]
    assert str(response.status_code) in described, (method, path, response.status_code, response.text)
    form = described[str(response.status_code)].get("content", {})
    if "application/json" in form:
        validate(form["application/json"]["schema"], response.json())
    elif not form:
        assert response.content == b""


@dataclass(frozen=True)
class Api:
    """The requests of a caller."""

    live: Running
    token: str

    def send(self, method: str, path: str, **how: Any) -> httpx2.Response:
        headers = {"authorization": f"Bearer {self.token}", **how.pop("headers", {})}
        response = self.live.http.request(method, API_PREFIX + path, headers=headers, **how)
        check(method, path, response)
        return response

    def ask(self, method: str, path: str, status: int = 200, **how: Any) -> Any:
        """Send a request; return its answer, which must have this status."""
        response = self.send(method, path, **how)
        assert response.status_code == status, (method, path, response.status_code, response.text)
        return response.json() if response.content else None

    def refused(self, method: str, path: str, **how: Any) -> tuple[int, str]:
        """The status and the code of an error, which must have the common form."""
        response = self.send(method, path, **how)
        body = response.json()
        assert body.keys() == {"error", "code"}, body
        assert body["error"].endswith("."), body
        return response.status_code, body["code"]

    def by(self, token: str) -> "Api":
        """The same requests by another caller."""
        return replace(self, token=token)

    def base(self, name: str = "Manuals", **more: Any) -> int:
        return self.ask("POST", "/bases", 201, json={"name": name, **more})["id"]

    def folder(self, base_id: int, name: str, parent_id: int = 0) -> int:
        return self.ask("POST", f"/bases/{base_id}/folders", 201, json={"name": name, "parent_id": parent_id})["id"]

    def text(self, base_id: int, name: str = "notes.md", content: str = "# Pumps\n\nOil it.", **more: Any) -> Any:
        return self.add(base_id, json={"name": name, "content": content, **more})

    def add(self, base_id: int, status: int = 201, **how: Any) -> Any:
        """Add a document; return the document and the outcome."""
        return flat(self.ask("POST", f"/bases/{base_id}/documents", status, **how))


def flat(answer: Any) -> Any:
    """The answer of an upload as one object: the document and the outcome."""
    return {**answer["document"], "outcome": answer["outcome"]}


def ingest(live: Running) -> None:
    """Run a worker until every document is ingested."""

    async def work(db: Database) -> None:
        stop = asyncio.Event()
        async with reactions.open_job_handlers(db, live.settings) as handlers:
            working = asyncio.create_task(Worker(db, handlers).run(stop))
            sql = "SELECT 1 FROM documents WHERE index_status NOT IN ('success', 'failed')"
            await until_stored(lambda: db.fetch(sql), lambda rows: not rows, seconds=30)
            stop.set()
            await working

    live.run(work)


def drafts(live: Running) -> list[str]:
    """The files in the store that belong to no document yet."""
    return sorted(str(path) for path in (live.settings.home / "files" / "incoming").rglob("*") if path.is_file())


def blobs(live: Running) -> list[str]:
    """The files of documents."""
    folder = live.settings.home / "files"
    return sorted(path.name for path in folder.rglob("*") if path.is_file() and "incoming" not in path.parts)


def until_no_drafts(live: Running) -> None:
    wait_until(lambda: drafts(live), lambda found: not found)
