"""Clients of one organisation that send expensive requests until they are told to stop: a process of its own, so that
the measuring client shares no interpreter with it.

    python attacker.py PORT TOKEN BASE DOCUMENT

Each kind of request has two threads. When standard input ends, the process prints the number of answers by kind and
status, as JSON.
"""

import http.client
import json
import random
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

THREADS_PER_KIND = 2
Request = tuple[str, str, Any]  # method, path, body

WORDS = ("pump", "valve", "seal", "rotor", "shaft", "bearing", "oil", "filter")

answers: Counter[str] = Counter()
stopped = threading.Event()


def unknown_arguments() -> Request:
    arguments = ",".join(f'"k{number}":1' for number in range(random.choice((20_000, 90_000, 1_400_000))))
    return "POST", "/api/v1/search", f'{{"query":"x",{arguments}}}'


def many_numbers() -> Request:
    numbers = "1," * random.choice((50_000, 7_000_000))
    return "POST", "/api/v1/search", f'{{"query":"x","document_ids":[{numbers}1]}}'


def missing_quotation(document: str) -> Callable[[], Request]:
    text = " ".join(random.choices(WORDS, k=400))
    return lambda: ("POST", "/api/v1/citations/verify", json.dumps({"id": f"document:{document}", "text": text}))


def search() -> Request:
    words = " ".join(random.choices(WORDS, k=200))
    return "POST", "/api/v1/search", json.dumps({"query": words, "limit": 50, "explain": True, "highlight": True})


def large_note() -> Request:
    body = " ".join(random.choices(WORDS, k=2_000))
    return "POST", "/api/v1/notes", json.dumps({"title": "A long note", "body": body[:10_000]})


def nodes(base: str) -> Callable[[], Request]:
    return lambda: ("GET", f"/api/v1/bases/{base}/nodes", None)


def entities() -> Request:
    return "GET", "/knowledge-base/entities?search=zzz&limit=100", None


def large_entity() -> Request:
    details = " ".join(random.choices(WORDS, k=30_000))
    name = f"Pump {random.random()}"
    return "POST", "/knowledge-base/entities", json.dumps({"name": name, "category": "Pumps", "details": details})


def attack(port: int, token: str, name: str, make: Callable[[], Request]) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    headers = {"authorization": f"Bearer {token}", "x-api-key": token, "content-type": "application/json"}
    while not stopped.is_set():
        method, path, body = make()
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            answer.read()
            answers[f"{name} {answer.status}"] += 1
        except (OSError, http.client.HTTPException):
            answers[f"{name} closed"] += 1
            connection.close()


def kinds(base: str, document: str) -> Iterator[tuple[str, Callable[[], Request]]]:
    yield "unknown_arguments", unknown_arguments
    yield "many_numbers", many_numbers
    yield "missing_quotation", missing_quotation(document)
    yield "search", search
    yield "large_note", large_note
    yield "nodes", nodes(base)
    yield "entities", entities
    yield "large_entity", large_entity


def main() -> None:
    port, token, base, document = sys.argv[1:]
    threads = [
        threading.Thread(target=attack, args=(int(port), token, name, make), daemon=True)
        for name, make in kinds(base, document)
        for _ in range(THREADS_PER_KIND)
    ]
    for thread in threads:
        thread.start()
    sys.stdin.read()
    stopped.set()
    for thread in threads:
        thread.join(60)
    print(json.dumps(answers))


if __name__ == "__main__":
    main()
