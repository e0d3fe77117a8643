"""The tools for knowledge bases on /mcp, over HTTP, with a real worker."""

import base64
import json
from collections.abc import Mapping
from typing import Any

import jsonschema
import pytest

from almanac.core.database import Database
from tests.live_server import ERAS, Running
from tests.waiting import until_stored

TEXT = "# Pumps\n\nThe pump runs at forty turns a minute.\n\n## Care\n\nOil it every spring.\n"


def ask(server: Running, tool: str, **arguments: Any) -> Any:
    """Call a tool that must succeed; return its structured content, checked against its schema."""
    result = server.call(tool, arguments)
    assert not result["isError"], result["content"]
    assert json.loads(result["content"][0]["text"]) == result["structuredContent"]
    return result["structuredContent"]


def refused(server: Running, tool: str, *, token: str | None = None, **arguments: Any) -> str:
    """Call a tool that must fail; return its error."""
    result = server.call(tool, arguments, token=token)
    assert result["isError"], result
    return result["content"][0]["text"]


@pytest.fixture
def base(server: Running) -> int:
    return ask(server, "manage_base", action="create", name="Manuals", description="How things work")["ids"][0]


def items(server: Running, base: int, **how: Any) -> list[dict[str, Any]]:
    return ask(server, "browse", base_id=base, **how)["items"]


def test_a_text_is_added_read_in_the_background_and_read_back(server: Running, base: int):
    added = ask(server, "add_document", base_id=base, name="pumps", content=TEXT, folder="machines/wet", tags=["a"])
    assert added["outcome"] == "added"
    assert added["document"]["name"] == "pumps.md"
    assert added["document"]["index_status"] == "queued"
    server.work()
    read = ask(server, "read_document", document_id=added["document"]["id"])
    assert (read["text"], read["offset"], read["next_offset"]) == (TEXT, 0, None)
    assert read["document"]["index_status"] == "success"
    assert read["document"]["title"] == "Pumps"
    assert [item["name"] for item in items(server, base)] == ["machines"]
    listed = items(server, base, recursive=True)
    assert [(item["kind"], item["path"], item["name"]) for item in listed] == [
        ("folder", "", "machines"),
        ("folder", "machines", "wet"),
        ("document", "machines/wet", "pumps.md"),
    ]
    assert ask(server, "list_bases", query="WORK")["items"][0]["documents"] == 1


def test_a_long_text_is_read_piece_by_piece(server: Running, base: int):
    text = "\n\n".join(f"Paragraph {number} says something of its own. 水泵 🚰" for number in range(3000)) + "\n"
    id = ask(server, "add_document", base_id=base, name="long.txt", content=text)["document"]["id"]
    server.work(embed=False)
    found, offset = "", 0
    while offset is not None:
        piece = ask(server, "read_document", document_id=id, offset=offset, limit=70_001)
        assert piece["offset"] == len(found)
        found, offset = found + piece["text"], piece["next_offset"]
    assert found == text
    assert ask(server, "read_document", document_id=id, offset=10**9)["text"] == ""


def test_a_page_is_read_by_its_number(server: Running, base: int):
    encoded = base64.b64encode(_two_pages()).decode()
    id = ask(server, "add_document", base_id=base, name="two.pdf", file_base64=encoded)["document"]["id"]
    server.work()
    page = ask(server, "read_document", document_id=id, page=2)
    assert page["text"].strip() == "Second page"
    assert page["page"] == 2
    assert page["document"]["page_count"] == 2
    assert refused(server, "read_document", document_id=id, page=3) == (
        f"bad_request: Document {id} has the pages 1 to 2. Choose one of them."
    )


def test_what_a_text_lacks_is_said(server: Running, base: int):
    head = b"From: a@b\r\nSubject: S\r\nMIME-Version: 1.0\r\nContent-Type: multipart/mixed; boundary=x\r\n\r\n"
    mail = head + b"--x\r\nContent-Type: text/plain\r\n\r\npart\r\n" * 20_001 + b"--x--\r\n"
    encoded = base64.b64encode(mail).decode()
    id = ask(server, "add_document", base_id=base, name="long.eml", file_base64=encoded)["document"]["id"]
    server.work(embed=False)
    document = ask(server, "read_document", document_id=id, limit=10)["document"]
    assert document["index_status"] == "success"
    assert len(document["warnings"]) == 1


def test_new_content_replaces_the_old_and_the_same_content_changes_nothing(server: Running, base: int):
    id = ask(server, "add_document", base_id=base, name="a.txt", content="first")["document"]["id"]
    server.work()
    assert refused(server, "add_document", base_id=base, name="a.txt", content="x").startswith("conflict: ")
    same = ask(server, "add_document", base_id=base, name="a.txt", content="first", if_exists="replace")
    assert (same["outcome"], same["document"]["index_status"]) == ("unchanged", "success")
    again = ask(server, "add_document", document_id=id, content="second")
    assert (again["outcome"], again["document"]["id"]) == ("replaced", id)
    assert ask(server, "read_document", document_id=id)["text"] == "first"  # until the new one has been read
    server.work()
    assert ask(server, "read_document", document_id=id)["text"] == "second"
    both = ask(server, "add_document", base_id=base, name="a.txt", content="third", if_exists="keep_both")
    assert both["document"]["name"] == "a (2).txt"


def test_a_file_that_cannot_be_read_says_why_and_leaves_no_text(server: Running, base: int):
    encoded = base64.b64encode(b"%PDF-1.7\nthis is no such thing").decode()
    id = ask(server, "add_document", base_id=base, name="broken.pdf", file_base64=encoded)["document"]["id"]
    server.work()
    read = ask(server, "read_document", document_id=id)
    assert read["document"]["index_status"] == "failed"
    assert read["document"]["failure"]["code"] == "corrupt"
    assert read["document"]["failure"].keys() == {"code", "message"}
    assert read["text"] == ""
    ask(server, "manage_base", action="retry", base_id=base)
    assert ask(server, "read_document", document_id=id)["document"]["index_status"] == "queued"


def test_documents_are_kept_in_order(server: Running, base: int):
    ids = [ask(server, "add_document", base_id=base, name=f"{n}.txt", content=n)["document"]["id"] for n in "abc"]
    folder = ask(server, "manage_folder", action="create", base_id=base, name="x/y")["ids"][0]
    ask(server, "manage_document", action="move", document_ids=ids[:2], folder_id=folder)
    ask(server, "manage_document", action="rename", document_ids=ids[:1], name="alpha.txt")
    ask(server, "manage_document", action="tag", document_ids=ids, tags=["one", "two"])
    ask(server, "manage_document", action="describe", document_ids=ids[:1], metadata={"year": 2026})
    ask(server, "manage_document", action="disable", document_ids=ids[:1])
    alpha = ask(server, "read_document", document_id=ids[0])["document"]
    assert (alpha["name"], alpha["folder_id"], alpha["tags"], alpha["metadata"], alpha["is_enabled"]) == (
        "alpha.txt", folder, ["one", "two"], {"year": 2026}, False,
    )  # fmt: skip
    ask(server, "manage_document", action="delete", document_ids=ids[:2])
    assert refused(server, "read_document", document_id=ids[0]).startswith("not_found: ")
    assert items(server, base, folder_id=folder) == []
    ask(server, "manage_document", action="restore", document_ids=ids[:1])
    assert [item["id"] for item in items(server, base, folder_id=folder)] == ids[:1]


def test_all_documents_of_a_call_are_changed_or_none(server: Running, base: int):
    id = ask(server, "add_document", base_id=base, name="a.txt", content="a")["document"]["id"]
    assert refused(server, "manage_document", action="delete", document_ids=[id, 999]).startswith("not_found: ")
    assert [item["id"] for item in items(server, base)] == [id]


def test_folders_are_kept_in_order(server: Running, base: int):
    deep = ask(server, "manage_folder", action="create", base_id=base, name="a/b/c")["ids"][0]
    a, b, _ = (item["id"] for item in items(server, base, recursive=True))
    assert refused(server, "manage_folder", action="move", folder_id=a, parent_id=deep).startswith("conflict: ")
    ask(server, "manage_folder", action="rename", folder_id=b, name="bee")
    ask(server, "add_document", base_id=base, name="n.txt", content="n", folder="a/bee/c")
    assert refused(server, "manage_folder", action="delete", folder_id=a) == (
        "bad_request: contents: the action 'delete' needs it."
    )
    ask(server, "manage_folder", action="delete", folder_id=b, contents="move")
    assert [item["path"] for item in items(server, base, recursive=True)] == ["", "a", "a/c"]
    ask(server, "manage_folder", action="delete", folder_id=a, contents="delete")
    assert items(server, base) == []
    ask(server, "manage_folder", action="restore", folder_id=a)
    assert [item["name"] for item in items(server, base, recursive=True)] == ["a", "c", "n.txt"]


def test_a_base_is_shared_by_role_and_taken_back(server: Running, base: int):
    id = ask(server, "add_document", base_id=base, name="a.txt", content="a")["document"]["id"]
    guest = server.new_token("guest")
    hidden = refused(server, "read_document", token=guest, document_id=id)
    assert hidden == refused(server, "read_document", token=guest, document_id=id + 999).replace(str(id + 999), str(id))
    ask(server, "manage_base", action="share", base_id=base, user="guest", role="Reporter")
    assert not server.call("read_document", {"document_id": id}, token=guest)["isError"]
    assert refused(server, "add_document", token=guest, base_id=base, name="x.txt", content="x").startswith(
        f"forbidden: To write knowledge base {base} needs the role Developer; you have Reporter."
    )
    ask(server, "manage_base", action="unshare", base_id=base, user="guest")
    assert refused(server, "read_document", token=guest, document_id=id) == hidden


def test_a_removed_base_is_gone_with_all_in_it_until_it_is_restored(server: Running, base: int):
    id = ask(server, "add_document", base_id=base, name="a.txt", content="a")["document"]["id"]
    ask(server, "manage_base", action="delete", base_id=base)
    assert ask(server, "list_bases")["items"] == []
    assert refused(server, "read_document", document_id=id).startswith("not_found: ")
    assert refused(server, "browse", base_id=base).startswith("not_found: ")
    ask(server, "manage_base", action="restore", base_id=base)
    assert [item["id"] for item in items(server, base)] == [id]


def test_a_download_is_fetched_with_its_credential_and_nothing_else(server: Running, base: int):
    id = ask(server, "add_document", base_id=base, name="Bericht 水.md", content=TEXT)["document"]["id"]
    download = ask(server, "download_document", document_id=id)
    path = download["url"].removeprefix(server.settings.url)
    assert server.http.get(path).status_code == 401
    answer = server.http.get(path, headers=download["headers"])
    assert (answer.status_code, answer.text) == (200, TEXT)
    assert answer.headers["content-disposition"].startswith("attachment; ")


def test_a_url_inside_is_not_fetched_for_anybody(server: Running, base: int):
    said = refused(server, "add_document", base_id=base, url=f"{server.url}/health", folder="ghost/deep")
    assert said.startswith("ssrf_blocked: ")
    assert items(server, base) == []


def test_what_is_said_of_new_content_counts_and_what_would_be_ignored_is_refused(server: Running, base: int):
    first = {"base_id": base, "name": "t.md", "content": "one", "tags": ["one"], "metadata": {"a": 1}}
    id = ask(server, "add_document", **first)["document"]["id"]
    again = {**first, "content": "two", "tags": ["two"], "metadata": {"b": 2}, "if_exists": "replace"}
    document = ask(server, "add_document", **again)["document"]
    assert (document["id"], document["tags"], document["metadata"]) == (id, ["two"], {"b": 2})
    silent = ask(server, "add_document", document_id=id, content="three")["document"]
    assert (silent["tags"], silent["metadata"]) == (["two"], {"b": 2})
    assert refused(server, "add_document", document_id=id, content="x", name="u.md").startswith("bad_request: With doc")


def test_a_page_of_a_document_that_was_not_read_says_so(server: Running, base: int):
    encoded = base64.b64encode(b"%PDF-1.7\nthis is no such thing").decode()
    id = ask(server, "add_document", base_id=base, name="broken.pdf", file_base64=encoded)["document"]["id"]
    assert refused(server, "read_document", document_id=id, page=1) == (
        f"bad_request: Document {id} has not been read yet. Try again in a few seconds."
    )
    server.work()
    assert refused(server, "read_document", document_id=id, page=1).startswith(
        f"bad_request: Document {id} could not be read: corrupt. "
    )


def test_a_token_for_downloads_alone_can_download(server: Running, base: int):
    id = ask(server, "add_document", base_id=base, name="a.md", content=TEXT)["document"]["id"]
    token = server.new_token("admin", tools=["download_document"])
    download = server.call("download_document", {"document_id": id}, token=token)["structuredContent"]
    answer = server.http.get(download["url"].removeprefix(server.settings.url), headers=download["headers"])
    assert (answer.status_code, answer.text) == (200, TEXT)


WRONG: list[tuple[str, Mapping[str, Any], str]] = [
    ("list_bases", {"scope": "mine"}, "scope: "),
    ("list_bases", {"limit": 0}, "limit: "),
    ("list_bases", {"limit": "10"}, "limit: "),
    ("list_bases", {"limit": True}, "limit: "),
    ("browse", {}, "base_id: "),
    ("browse", {"base_id": 1.0}, "base_id: "),
    ("browse", {"base_id": 1, "recursive": "false"}, "recursive: "),
    ("read_document", {"document_id": 1, "limit": 100_001}, "limit: "),
    ("read_document", {"document_id": 1, "offset": -1}, "offset: "),
    ("read_document", {"document_id": 2**63}, "document_id: "),
    ("read_document", {"document_id": 1, "offset": 2**63}, "offset: "),
    ("browse", {"base_id": -1}, "base_id: "),
    ("manage_document", {"action": "delete", "document_ids": [2**63]}, "document_ids.0: "),
    ("add_document", {"base_id": 1, "name": "x"}, "Give the document's content in one way"),
    ("add_document", {"base_id": 1, "name": "x", "content": "a", "url": "http://a"}, "Give the document's content in"),
    ("add_document", {"name": "x", "content": "a"}, "Give base_id for a new document"),
    ("add_document", {"base_id": 1, "content": "a"}, "name: "),
    ("manage_document", {"action": "burn", "document_ids": [1]}, "action: "),
    ("manage_document", {"action": "delete", "document_ids": []}, "document_ids: "),
    ("manage_document", {"action": "move", "document_ids": [1]}, "folder_id: the action 'move' needs it."),
    ("manage_folder", {"action": "create", "name": "a"}, "base_id: the action 'create' needs it."),
    ("manage_folder", {"action": "move", "folder_id": 1}, "parent_id: the action 'move' needs it."),
    ("manage_base", {"action": "create"}, "name: the action 'create' needs it."),
    ("manage_base", {"action": "create", "name": "x", "splitter": {"size": 1}}, "'size' is a whole number"),
    ("manage_base", {"action": "create", "name": "x", "splitter": {"size": "9"}}, "splitter.size: "),
    ("manage_base", {"action": "change", "base_id": 1}, "There is nothing to change."),
    ("manage_base", {"action": "share", "base_id": 1}, "role: the action 'share' needs it."),
]


@pytest.mark.parametrize(("tool", "arguments", "said"), WRONG)
def test_wrong_arguments_are_named(server: Running, tool: str, arguments: Mapping[str, Any], said: str):
    assert refused(server, tool, **arguments).startswith(f"bad_request: {said}")


BAD_NAMES = ["a/b", "..", "", " ", "x" * 256, "a\x01b", "a\u202eb"]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_name_that_could_lead_elsewhere_is_refused(server: Running, base: int, name: str):
    assert "error" not in server.call("list_bases", {})
    assert refused(server, "add_document", base_id=base, name=name, file_base64="YQ==").startswith("bad_request: ")
    assert items(server, base) == []


def test_a_token_that_may_only_read_is_offered_only_what_reads(server: Running):
    token = server.new_token("reader", scope=["knowledge:read"])
    listed = server.rpc("tools/list", token=token).json()["result"]["tools"]
    names = {tool["name"] for tool in listed}
    assert {"list_bases", "browse", "read_document", "download_document"} <= names
    assert not names & {"add_document", "manage_document", "manage_folder", "manage_base"}
    called = server.rpc("tools/call", {"name": "manage_base", "arguments": {"action": "create"}}, token=token)
    assert called.json()["error"]["code"] == -32602


@pytest.mark.parametrize("era", ERAS)
def test_every_answer_is_what_the_schema_of_its_tool_says(server: Running, base: int, era: str):
    id = ask(server, "add_document", base_id=base, name="a.md", content=TEXT, folder="f")["document"]["id"]
    schemas = {t["name"]: t["outputSchema"] for t in server.rpc("tools/list", era=era).json()["result"]["tools"]}
    calls: list[tuple[str, dict[str, Any]]] = [
        ("list_bases", {}),
        ("browse", {"base_id": base, "recursive": True}),
        ("read_document", {"document_id": id}),
        ("download_document", {"document_id": id}),
        ("add_document", {"document_id": id, "content": "new"}),
        ("manage_document", {"action": "enable", "document_ids": [id]}),
        ("manage_folder", {"action": "create", "base_id": base, "name": "g"}),
        ("manage_base", {"action": "change", "base_id": base, "name": "Other"}),
    ]
    for tool, arguments in calls:
        jsonschema.validate(server.call(tool, arguments, era=era)["structuredContent"], schemas[tool])


def test_what_a_call_touched_is_in_the_audit_trail(server: Running, base: int):
    id = ask(server, "add_document", base_id=base, name="a.md", content=TEXT)["document"]["id"]
    ask(server, "read_document", document_id=id)

    async def read(db: Database) -> list[str]:
        sql = "SELECT touched FROM audit WHERE tool = 'read_document'"
        rows = await until_stored(lambda: db.fetch(sql))
        return [row["touched"] for row in rows]

    assert server.run(read) == [f"base:{base} document:{id}"]


def _two_pages() -> bytes:
    """A PDF with a line of text on each of two pages."""
    lines = ["First page", "Second page"]
    objects = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        "<< /Type /Pages /Kids [3 0 R 4 0 R] /Count 2 >>",
        *(
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 300 200] /Contents {5 + n} 0 R"
            " /Resources << /Font << /F << /Type /Font /Subtype /Type1 /BaseFont /Helvetica >> >> >> >>"
            for n in range(2)
        ),
    ]
    for line in lines:
        stream = f"BT /F 18 Tf 40 100 Td ({line}) Tj ET"
        objects.append(f"<< /Length {len(stream)} >>\nstream\n{stream}\nendstream")
    out, offsets = "%PDF-1.4\n", list[int]()
    for number, content in enumerate(objects, 1):
        offsets.append(len(out))
        out += f"{number} 0 obj\n{content}\nendobj\n"
    table = "".join(f"{offset:010d} 00000 n \n" for offset in offsets)
    out += (
        f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n{table}trailer\n<< /Size {len(objects) + 1} /Root 1 0 R >>\n"
    )
    return f"{out}startxref\n{out.index('xref')}\n%%EOF\n".encode()
