"""Clients of one organisation that send expensive requests: a process of its own, so that the measuring client shares
no interpreter with it. It gives way to other programs (`nice`), because attackers have machines of their own.

    python attacker.py PORT TOKEN BASE DOCUMENT SEED

Each kind of request has two threads. They begin at a line `go` on standard input and rest at a line `pause`, which is
answered by `paused` when the last request has its answer. At the end of the input, the process prints the number of
answers by kind and status, as JSON.
"""

import http.client
import json
import os
import random
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

THREADS_PER_KIND = 2
NICENESS = 19
WORDS = ("pump", "valve", "seal", "rotor", "shaft", "bearing", "oil", "filter")
MODERN = "2026-07-28"
# These kinds are errors of the caller. All others must reach the work that they name.
REFUSED = {"unknown_arguments", "many_numbers", "long_text", "nesting", "conditions", "batch"}


class Request(NamedTuple):
    """A request to send."""

    method: str
    path: str
    body: bytes | None = None


Make = Callable[[random.Random], Request]


def post(path: str, body: Any) -> Request:
    return Request("POST", path, body if isinstance(body, bytes) else json.dumps(body).encode())


def words(source: random.Random, count: int) -> str:
    return " ".join(source.choices(WORDS, k=count))


def unknown_words(source: random.Random, count: int) -> str:
    return " ".join(f"w{source.getrandbits(40):x}" for _ in range(count))


def kinds(base: str, document: str) -> Iterator[tuple[str, Make]]:
    """The kinds of requests: a name, and a function that makes one."""
    yield from bodies()
    yield from documents(base, document)
    yield from notes()
    yield from catalogue()
    yield from protocols(base, document)


def chosen_kinds(base: str, document: str) -> list[tuple[str, Make]]:
    """All kinds, or those that ALMANAC_TEST_ATTACKS names."""
    chosen = os.environ.get("ALMANAC_TEST_ATTACKS", "")
    return [(name, make) for name, make in kinds(base, document) if not chosen or name in chosen.split(",")]


def bodies() -> Iterator[tuple[str, Make]]:
    """Bodies that are expensive to read."""
    arguments = [
        f'{{"query":"x",{",".join(f""""k{n}":1""" for n in range(count))}}}'.encode()
        for count in (900, 20_000, 90_000, 1_400_000)
    ]
    yield "unknown_arguments", lambda source: post("/api/v1/search", source.choice(arguments))
    numbers = [f'{{"query":"x","document_ids":[{"1," * count}1]}}'.encode() for count in (50_000, 99_000, 7_000_000)]
    yield "many_numbers", lambda source: post("/api/v1/search", source.choice(numbers))
    # The server closes the connection of the larger ones early, so that their answer is lost.
    texts = [
        json.dumps({"query": text}).encode()
        for text in ("x" * 1_000_000, "x" * 15_000_000, "\u0153" * 2_500_000, "\\" * 7_000_000)
    ]
    yield "long_text", lambda source: post("/api/v1/search", source.choice(texts))
    nested = [b'{"query":' + b"[" * depth + b"]" * depth + b"}" for depth in (500, 900, 49_000)]
    yield "nesting", lambda source: post("/api/v1/search", source.choice(nested))
    conditions = json.dumps(
        {"query": "x", "filter": {"$and": [{f"key{n}": {"$lt": n}} for n in range(20_000)]}}
    ).encode()
    yield "conditions", lambda _: post("/api/v1/search", conditions)


def documents(base: str, document: str) -> Iterator[tuple[str, Make]]:
    """Documents: search, citations, lists."""
    cited = f"document:{document}"
    yield "quotation", lambda source: post("/api/v1/citations/verify", {"id": cited, "text": words(source, 400)})
    yield (
        "quoted_hash",
        lambda source: post("/api/v1/citations/verify", {"id": cited, "hash": f"{source.getrandbits(128):032x}"}),
    )
    query = {"limit": 50, "explain": True, "highlight": True}
    yield "search", lambda source: post("/api/v1/search", {"query": words(source, 200), **query})
    yield "unknown_words", lambda source: post("/api/v1/search", {"query": unknown_words(source, 250), **query})
    yield "common_words", lambda _: post("/api/v1/search", {"query": "is it for me", **query})
    yield "nodes", lambda _: Request("GET", f"/api/v1/bases/{base}/nodes?recursive=true")
    yield "passages", lambda _: Request("GET", f"/api/v1/documents/{document}/passages?limit=500")
    yield "content", lambda _: Request("GET", f"/api/v1/documents/{document}/content?limit=100000&offset=500000")
    yield (
        "batch",
        lambda source: post("/api/v1/documents/batch", {"action": "enable", "ids": source.sample(range(10**9), 90)}),
    )
    yield (
        "large_upload",
        lambda source: post(
            f"/api/v1/bases/{base}/documents", {"name": f"{source.random()}.txt", "content": words(source, 50_000)}
        ),
    )


def notes() -> Iterator[tuple[str, Make]]:
    """Notes."""
    yield (
        "large_note",
        lambda source: post("/api/v1/notes", {"title": "A long note", "body": words(source, 2_000)[:10_000]}),
    )
    yield "recall", lambda source: post("/api/v1/notes/recall", {"query": words(source, 100), "limit": 50})


def catalogue() -> Iterator[tuple[str, Make]]:
    """The catalogue."""
    path = "/knowledge-base/entities"
    yield "entities", lambda source: Request("GET", f"{path}?search=zzz{source.random()}&limit=100")
    yield "all_entities", lambda _: Request("GET", f"{path}?limit=500")
    yield (
        "large_entity",
        lambda source: post(
            path, {"name": f"Pump {source.random()}", "category": "Pumps", "details": words(source, 30_000)}
        ),
    )
    metadata = json.dumps({f"key{number}": ["value"] * 5 for number in range(1_500)})
    yield (
        "large_metadata",
        lambda source: post(
            path, f'{{"name":"Valve {source.random()}","category":"Pumps","metadata":{metadata}}}'.encode()
        ),
    )
    yield "structure", lambda _: Request("GET", "/knowledge-base/categories?extended=true")
    yield (
        "retrieve",
        lambda source: post(
            "/knowledge-base/retrieve",
            {
                "namespace": source.choice(("general_helper_documents", "everything")),
                "query": words(source, 200) + " under 2000 PSI",
                "topK": 50,
            },
        ),
    )
    entries = [
        json.dumps(
            {"entities": [{"name": f"Imported {n}", "category": "Pumps", "details": "oil " * 50} for n in range(count)]}
        ).encode()
        for count in (500, 15_000)
    ]
    yield "import", lambda source: post("/tenants/seed?dryRun=true", source.choice(entries))
    yield "stored_import", lambda _: post("/tenants/seed", entries[0])


def protocols(base: str, document: str) -> Iterator[tuple[str, Make]]:
    """Other interfaces to the same data."""
    yield (
        "external_nodes",
        lambda _: call(
            "/mcp/knowledge-external/sse",
            "tools/call",
            {"name": "wegent_kb_list_nodes", "arguments": {"knowledge_base_id": int(base), "recursive": True}},
        ),
    )
    yield "structure_tool", lambda _: call("/mcp", "tools/call", {"name": "browse_categories", "arguments": {}})
    yield "resource", lambda _: call("/mcp", "resources/read", {"uri": f"almanac://documents/{document}"})
    yield (
        "weknora",
        lambda source: post(
            "/api/v1/knowledge-search?envelope=true", {"query": words(source, 200), "knowledge_base_ids": [base]}
        ),
    )
    yield "openapi", lambda _: Request("GET", "/api/v1/openapi.json")


def call(path: str, method: str, params: dict[str, Any]) -> Request:
    """A JSON-RPC message of the era without sessions."""
    meta: dict[str, Any] = {
        "io.modelcontextprotocol/protocolVersion": MODERN,
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    return post(path, {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta}})


def headers_of(request: Request, token: str) -> dict[str, str]:
    headers = {"authorization": f"Bearer {token}", "x-api-key": token, "content-type": "application/json"}
    if "/mcp" in request.path and request.body is not None:
        message = json.loads(request.body)
        name = str(message["params"].get("name") or message["params"].get("uri"))
        headers |= {"accept": "application/json, text/event-stream", "mcp-protocol-version": MODERN}
        headers |= {"mcp-method": message["method"], "mcp-name": name}
    return headers


class Attack:
    """The threads that send requests, and the answers so far."""

    def __init__(self, port: int, token: str) -> None:
        self._port, self._token = port, token
        self.answers: Counter[str] = Counter()
        self._may_send = threading.Event()
        self._changed = threading.Condition()
        self._sending = 0

    def start(self, name: str, make: Make, seed: str) -> None:
        threading.Thread(target=self._repeat, args=(name, make, random.Random(seed)), daemon=True).start()

    def go(self) -> None:
        self._may_send.set()

    def pause(self) -> None:
        """Return when no request is without its answer."""
        self._may_send.clear()
        with self._changed:
            self._changed.wait_for(lambda: not self._sending)

    def _repeat(self, name: str, make: Make, source: random.Random) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=90)
        while True:
            self._may_send.wait()
            request = make(source)
            with self._changed:
                if not self._may_send.is_set():
                    continue
                self._sending += 1
            try:
                connection.request(*request, headers_of(request, self._token))
                answer = connection.getresponse()
                answer.read()
                outcome = str(answer.status)
            except (OSError, http.client.HTTPException) as error:
                outcome = f"closed {type(error).__name__}"
                connection.close()
            with self._changed:
                self._sending -= 1
                self.answers[f"{name} {outcome}"] += 1
                self._changed.notify_all()


def main() -> None:
    port, token, base, document, seed = sys.argv[1:]
    os.nice(NICENESS - os.nice(0))
    attack = Attack(int(port), token)
    for name, make in chosen_kinds(base, document):
        for number in range(THREADS_PER_KIND):
            attack.start(name, make, f"{seed} {name} {number}")
    for line in sys.stdin:
        if line.strip() == "go":
            attack.go()
        else:
            attack.pause()
            print("paused", flush=True)
    attack.pause()
    print(json.dumps(attack.answers), flush=True)


if __name__ == "__main__":
    main()
