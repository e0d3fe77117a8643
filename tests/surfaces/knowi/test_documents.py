"""The tools for documents: ingestion, lists, questions and deletion, and the bounds between callers."""

import base64
import json
import threading
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.live_server import LEGACY, Running
from tests.surfaces.knowi.caller import PATH, Caller, caller
from tests.surfaces.wire import audit_of

CORPUS = Path(__file__).parents[2] / "knowledge" / "corpus" / "files"
PUMP = "# Pump P-40\n\nThe pump is oiled every month. The seal is replaced once a year.\n"
LAMP = "# Lamp L-2\n\nThe lamp burns for eight hours with a full tank.\n"
ANOTHER_ORG = "acme"


@pytest.fixture(scope="module")
def ada(live: Running) -> Caller:
    """A user who is no administrator, with two documents."""
    someone = caller(live, "ada")
    someone.ingest("pump.md", PUMP)
    someone.ingest("lamp.md", LAMP)
    live.work(embed=False)
    return someone


def listed(someone: Caller, **arguments: Any) -> dict[str, dict[str, Any]]:
    """The listed documents by name."""
    found = someone.data("knowi_list_documents", arguments)
    assert found["returnedRows"] == len(found["documents"])
    return {document["documentName"]: document for document in found["documents"]}


def new_base(someone: Caller, name: str) -> int:
    """A knowledge base of a user's own."""
    return someone.http.post("/api/v1/bases", json={"name": name}, headers=someone.headers).json()["id"]


@contextmanager
def serving(folder: Path) -> Generator[str]:
    """A web site with the files of a folder; yields its address."""
    handler = partial(SimpleHTTPRequestHandler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as site:
        thread = threading.Thread(target=site.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{site.server_port}"
        site.shutdown()
        thread.join()


# Ingestion


def test_an_ingested_text_is_a_document_of_the_organisation(live: Running, ada: Caller):
    found = listed(ada)
    assert found["pump.md"]["status"] == "success"
    assert (found["pump.md"]["createdBy"], found["pump.md"]["mimeType"]) == ("ada", "text/markdown")
    assert isinstance(found["pump.md"]["documentId"], str)
    colleague = caller(live, "ben")
    assert listed(colleague)["pump.md"] == found["pump.md"]
    # Other surfaces see it too.
    answer = live.call("read_document", {"document_id": int(found["pump.md"]["documentId"])})
    assert "oiled every month" in answer["structuredContent"]["text"]


def test_every_member_may_ingest_into_the_store_and_nobody_owns_it_by_coming_first(live: Running, ada: Caller):
    assert caller(live, "ben").ingest("ben.md", "Ben was here.")
    bases = live.call("list_bases", {}, token=ada.token)["structuredContent"]["items"]
    [store] = [base for base in bases if base["name"] == "Documents"]
    assert (store["level"], store["owner"], store["role"]) == ("organization", "admin", "Developer")


def test_the_answer_names_the_document_and_its_page(ada: Caller):
    result = ada.call("knowi_ingest_document", {"fileName": "note.txt", "content": "A note."})
    text, data = result["content"][0]["text"], json.loads(result["content"][1]["text"])
    assert text.startswith(f"Ingested note.txt as document {data['documentId']}.")
    assert (data["documentName"], data["outcome"], data["status"]) == ("note.txt", "added", "queued")
    assert data["url"].endswith(f"/api/v1/documents/{data['documentId']}")


def test_the_same_name_is_a_new_version_of_the_document(live: Running, ada: Caller):
    first = ada.data("knowi_ingest_document", {"fileName": "plan.md", "content": "Plan A."})
    second = ada.data("knowi_ingest_document", {"fileName": "plan.md", "content": "Plan B."})
    again = ada.data("knowi_ingest_document", {"fileName": "plan.md", "content": "Plan B."})
    assert first["documentId"] == second["documentId"] == again["documentId"]
    assert [each["outcome"] for each in (first, second, again)] == ["added", "replaced", "unchanged"]
    live.work(embed=False)
    asked = {"question": "Which plan?", "documentIds": [first["documentId"]]}
    assert "Plan B." in ada.data("knowi_ask_document", asked)["answer"]


@pytest.mark.parametrize("name", ["report.pdf", "report.docx", "budget.xlsx", "budget.csv", "scan.png"])
def test_every_named_format_is_read(live: Running, ada: Caller, name: str):
    raw = (CORPUS / name).read_bytes()
    content = raw.decode() if name.endswith("csv") else base64.encodebytes(raw).decode()  # with line breaks
    ada.ingest(name, content)
    live.work(embed=False)
    found = listed(ada)[name]
    assert found["status"] == "success", found


def test_a_document_is_downloaded_from_its_url(ada: Caller, tmp_path: Path):
    (tmp_path / "kiln.txt").write_text("The kiln is fired at 900 degrees.")
    with serving(tmp_path) as url:
        found = ada.data("knowi_ingest_document", {"fileUrl": f"{url}/kiln.txt"})
        named = ada.data("knowi_ingest_document", {"fileUrl": f"{url}/kiln.txt", "fileName": "oven.txt"})
    assert (found["documentName"], named["documentName"]) == ("kiln.txt", "oven.txt")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "One of fileUrl or content is required."),
        ({"fileUrl": "http://127.0.0.1/x", "content": "x"}, "One of fileUrl or content is required."),
        ({"content": "x"}, "fileName is required with content."),
        ({"content": "x", "fileName": "plain"}, "fileName has no extension."),
        ({"content": "no base64!", "fileName": "x.pdf"}, "The content is not valid base64."),
        ({"content": "x", "fileName": "a/b.md"}, ""),
        ({"fileUrl": "ftp://example.org/x.md"}, ""),
        ({"fileUrl": "http://10.0.0.1/x.md"}, ""),
    ],
)
def test_what_cannot_be_ingested_is_refused_with_a_remedy(ada: Caller, arguments: dict[str, Any], said: str):
    before = listed(ada).keys()
    text = ada.refused("knowi_ingest_document", arguments)
    assert text.startswith(f"Validation error: {said}" if said else ""), text
    assert listed(ada).keys() == before


def test_a_repeated_call_with_a_key_changes_nothing(live: Running, ada: Caller):
    arguments = {"fileName": "once.md", "content": "First."}
    first = ada.send("tools/call", _ingest(arguments), **{"idempotency-key": "k1"}).json()["result"]
    assert ada.call("knowi_ingest_document", {**arguments, "content": "Second."})["isError"] is False
    again = ada.send("tools/call", _ingest(arguments), **{"idempotency-key": "k1"}).json()["result"]
    assert again["content"] == first["content"]
    meta = {"_meta": {"idempotencyKey": "k1"}}
    assert ada.call("knowi_ingest_document", arguments, **meta)["content"] == first["content"]
    body = {**_ingest(arguments), **meta}
    assert ada.rest("POST", "/tools/call", body).json()["content"] == first["content"]
    live.work(embed=False)
    document = int(json.loads(first["content"][1]["text"])["documentId"])
    text = live.call("read_document", {"document_id": document})["structuredContent"]["text"]
    assert "Second." in text
    other = ada.call("knowi_ingest_document", {**arguments, "content": "Third."}, **meta)
    assert other["isError"] is True
    assert "other arguments" in other["content"][0]["text"]
    ben = caller(live, "ben")  # has keys of his own
    assert (
        json.loads(ben.call("knowi_ingest_document", arguments, **meta)["content"][1]["text"])["outcome"] == "replaced"
    )


def test_a_refused_call_frees_its_key(ada: Caller):
    meta = {"_meta": {"idempotencyKey": "k2"}}
    assert ada.call("knowi_ingest_document", {"content": "x", "fileName": "plain"}, **meta)["isError"] is True
    assert ada.call("knowi_ingest_document", {"content": "x", "fileName": "free.md"}, **meta)["isError"] is False


@pytest.mark.parametrize("key", ["", 7, "x" * 201])
def test_a_key_that_is_no_text_is_refused(ada: Caller, key: Any):
    result = ada.call("knowi_ingest_document", {"content": "x", "fileName": "k.md"}, _meta={"idempotencyKey": key})
    assert "idempotency key" in result["content"][0]["text"]


def _ingest(arguments: dict[str, Any]) -> dict[str, Any]:
    return {"name": "knowi_ingest_document", "arguments": arguments}


# Lists


def test_a_list_is_filtered_by_a_part_of_the_name_and_by_the_datasource(ada: Caller):
    ada.ingest("Überblick 100%.md", "All.")
    store = listed(ada)["pump.md"]["datasourceId"]
    assert isinstance(store, int)
    assert set(listed(ada, query="PUMP")) == {"pump.md"}
    for query in ("überblick", "ÜBERBLICK", "100%"):
        assert set(listed(ada, query=query)) == {"Überblick 100%.md"}
    assert listed(ada, query="%pump%") == {}
    assert "pump.md" in listed(ada, datasourceId=store)
    assert ada.refused("knowi_list_documents", {"datasourceId": store + 100}).startswith(
        "There is no document datasource"
    )


def test_a_list_counts_all_and_shows_the_newest_200(live: Running):
    someone = caller(live, "many", org="busy")
    base_id = new_base(someone, "Notes")
    someone.ingest("first.md", "The first.")

    async def fill(db: Any) -> None:
        async def copy(tx: Any) -> None:
            sql = "SELECT * FROM documents WHERE base_id IN (SELECT base_id FROM document_stores WHERE org_id = $1)"
            [row] = await tx.fetch(sql, (await tx.fetch_one("SELECT id FROM orgs WHERE name = 'busy'"))["id"])
            columns = [name for name in row.keys() if name != "id"]  # noqa: SIM118
            rows = [
                tuple(
                    f"copy {number}.md" if name == "name" else base_id if name == "base_id" else row[name]
                    for name in columns
                )
                for number in range(204)
            ]
            await tx.insert_many("documents", columns, rows)

        await db.write(copy)

    live.run(fill)
    result = someone.call("knowi_list_documents")
    data = json.loads(result["content"][1]["text"])
    assert (data["totalRows"], data["returnedRows"], len(data["documents"])) == (205, 200, 200)
    assert result["content"][0]["text"].startswith("Found 205 documents")
    other = next(each for each in data["documents"] if each["documentName"].startswith("copy"))
    assert other["datasourceId"] is None  # of another knowledge base


# Questions


def test_a_question_is_answered_with_citations_that_are_in_the_documents(live: Running, ada: Caller):
    result = ada.call("knowi_ask_document", {"question": "How often is the pump oiled?"})
    data = json.loads(result["content"][1]["text"])
    assert "The pump is oiled every month. [1]" in data["answer"]
    first = data["citations"][0]
    assert (first["documentName"], first["number"]) == ("pump.md", 1)
    text = live.call("read_document", {"document_id": int(first["documentId"])})["structuredContent"]["text"]
    assert first["quote"] in text[first["start"] : first["end"]]
    assert "Sources:\n[1] pump.md" in result["content"][0]["text"]
    assert result["_meta"]["almanac/trust"] == "untrusted"


def test_named_documents_alone_are_searched(ada: Caller):
    lamp = listed(ada)["lamp.md"]["documentId"]
    data = ada.data("knowi_ask_document", {"question": "How often is the pump oiled?", "documentIds": [lamp]})
    assert {citation["documentName"] for citation in data["citations"]} <= {"lamp.md"}
    assert "every month" not in data["answer"]


def test_a_question_without_an_answer_says_so(ada: Caller):
    data = ada.data("knowi_ask_document", {"question": "xylophone quokka zeppelin?"})
    assert data["citations"] == []
    assert data["answer"]
    assert ada.refused("knowi_ask_document", {"question": "  "}).startswith("Validation error: question")


def test_a_document_that_is_not_read_yet_is_mentioned(live: Running, ada: Caller):
    id = ada.ingest("later.md", "Something that nobody has read yet.")
    data = ada.data("knowi_ask_document", {"question": "What has nobody read?", "documentIds": [id]})
    assert "1 document is still being read" in data["answer"]
    live.work(embed=False)
    data = ada.data("knowi_ask_document", {"question": "What has nobody read?", "documentIds": [id]})
    assert "still being read" not in data["answer"]


# Deletion


def test_deletion_needs_confirmation_and_is_not_for_good(live: Running, ada: Caller):
    id = ada.ingest("old.md", "Old.")
    for arguments in ({"documentId": id}, {"documentId": id, "confirm": False}, {"documentId": id, "confirm": "true"}):
        assert "confirm" in ada.refused("knowi_delete_document", arguments)
    assert "old.md" in listed(ada)
    assert ada.data("knowi_delete_document", {"documentId": id, "confirm": True})["deleted"] is True
    assert "old.md" not in listed(ada)
    assert ada.refused("knowi_delete_document", {"documentId": id, "confirm": True}).startswith("There is no document")
    live.call("manage_document", {"action": "restore", "document_ids": [int(id)]})
    assert "old.md" in listed(ada)


# Access


@pytest.fixture(scope="module")
def private(live: Running, ada: Caller) -> str:
    """The id of a document in a knowledge base of Ada's own."""
    base = new_base(ada, "Diary")
    sent = {"base_id": base, "name": "diary.md", "content": "The secret is a treasure."}
    added = live.call("add_document", sent, token=ada.token)["structuredContent"]
    live.work(embed=False)
    return str(added["document"]["id"])


def _uses(id: str) -> list[tuple[str, dict[str, Any]]]:
    return [
        ("knowi_ask_document", {"question": "What is the secret?", "documentIds": [id]}),
        ("knowi_delete_document", {"documentId": id, "confirm": True}),
    ]


def test_a_colleague_s_document_is_denied_in_the_words_of_the_seed(live: Running, private: str):
    ben = caller(live, "ben")
    for tool, arguments in _uses(private):
        with capture_logs() as logs:
            assert ben.refused(tool, arguments) == (
                f"Access denied: you do not have permission to access document {private}"
            )
        [line] = [line for line in logs if line["event"] == "access_denied"]
        assert (line["resource"], line["user"] > 0) == (f"document {private}", True)
    assert "diary.md" not in listed(ben)
    assert "treasure" not in json.dumps(ben.data("knowi_ask_document", {"question": "What is the secret?"}))
    [(tool, arguments), _] = _uses(private)
    ben.send("tools/call", {"name": tool, "arguments": arguments}, **{"x-request-id": "knowi-denied"})
    [row] = audit_of(live, "knowi-denied")
    assert (row["outcome"], row["touched"], row["actor"]) == ("access_denied", f"document:{private}", "ben")


def test_a_document_that_the_caller_may_only_read_is_not_deleted(live: Running, ada: Caller, private: str):
    live.new_token("reader")
    bases = live.call("list_bases", {}, token=ada.token)["structuredContent"]["items"]
    [base] = [each["id"] for each in bases if each["name"] == "Diary"]
    share = {"user": "reader", "role": "Reporter"}
    assert live.http.put(f"/api/v1/bases/{base}/shares", json=share, headers=ada.headers).status_code == 204
    reader = caller(live, "reader")
    assert "diary.md" in listed(reader)
    text = reader.refused("knowi_delete_document", {"documentId": private, "confirm": True})
    assert text == f"Access denied: you do not have permission to change document {private}"


@pytest.mark.parametrize("shape", ["{id}", "document:{id}"])
def test_ids_of_another_organisation_are_those_that_never_were(live: Running, private: str, shape: str):
    stranger = caller(live, "eve", org=ANOTHER_ORG)
    assert listed(stranger) == {}
    pump = listed(caller(live, "ada"))["pump.md"]["documentId"]
    for id in (private, pump):
        for (tool, theirs), (_, never) in zip(
            _uses(shape.format(id=id)), _uses(shape.format(id=999_999_999)), strict=True
        ):
            said = stranger.refused(tool, theirs)
            assert said.replace(id, "N") == stranger.refused(tool, never).replace("999999999", "N")
            assert said.startswith("There is no document")
    assert stranger.data("knowi_ask_document", {"question": "How often is the pump oiled?"})["citations"] == []
    stores = {name: listed(caller(live, "ada"))[name]["datasourceId"] for name in ("pump.md",)}
    text = stranger.refused("knowi_list_documents", {"datasourceId": stores["pump.md"]})
    assert text == f"There is no document datasource {stores['pump.md']}. Leave out datasourceId to list all."


@pytest.mark.parametrize("id", ["0", "-1", "01", "1.0", "x", "9" * 30, "1 OR 1=1", "document:", "\u0661"])
def test_an_id_in_another_form_is_not_found(ada: Caller, id: str):
    assert ada.refused("knowi_delete_document", {"documentId": id, "confirm": True}).startswith("There is no document")


def test_a_token_without_the_scope_is_denied(live: Running):
    reader = Caller(live, live.new_token("scoped", scope=["knowledge:read"]))
    text = reader.refused("knowi_ingest_document", {"fileName": "x.md", "content": "x"})
    assert text.startswith("Access denied: Your token lacks the scope knowledge:write")


def test_a_token_limited_to_bases_cannot_make_the_store(live: Running):
    admin = live.new_token("boss", org="narrow", admin=True)
    base = new_base(Caller(live, admin), "Only")
    limited = Caller(live, live.new_token("boss", org="narrow", bases=[base]))
    text = limited.refused("knowi_ingest_document", {"fileName": "x.md", "content": "x"})
    assert text.startswith("Access denied: Your token is limited to some knowledge bases")


def test_a_newer_client_gets_structured_content(live: Running, ada: Caller):
    result = live.call("knowi_list_documents", {}, path=PATH, era=LEGACY, token=ada.token)
    assert result["structuredContent"] == json.loads(result["content"][1]["text"])
