"""The five tools of the external surface: their arguments, their results, and the order of results."""

from typing import Any

import pytest

from almanac.core.database import Database, Transaction
from almanac.files.file_store import FileStore
from almanac.knowledge import document_tree, documents
from tests.live_server import ERAS, Running
from tests.surfaces.external.caller import PAGE, TEXTS, Caller, Town, acting, add_document, failed, moment

pytestmark = pytest.mark.xdist_group("external")

LIST_BASES, LIST_NODES = "list_knowledge_bases", "list_nodes"
CONTENT, DOWNLOAD, SEARCH = "get_document_content", "get_document_download", "search_content"


def names(answer: Any) -> list[str]:
    return [item["knowledge_base_name"] for item in answer["items"]]


def tree_of(items: list[dict[str, Any]]) -> list[Any]:
    return [(item["name"], tree_of(item["children"])) if item["children"] else item["name"] for item in items]


# --- list_knowledge_bases ----------------------------------------------------------------------------------


def test_bases_are_listed_newest_first_with_every_field(town: Town, ada: Caller):
    answer = ada.bases()
    created = [item.pop("created_at") for item in answer["items"]]
    updated = [item.pop("updated_at") for item in answer["items"]]
    assert [moment(each) for each in created] == sorted(map(moment, created), reverse=True)
    assert all(moment(each) for each in updated)
    maker: dict[str, Any] = {"user_id": town["ada"], "user_name": "ada", "attributes": {}}
    assert answer == {
        "total": 3,
        "total_returned": 3,
        "has_more": False,
        "limit": 50,
        "offset": 0,
        "items": [
            {
                "knowledge_base_id": town["org"],
                "knowledge_base_name": "Handbook",
                "description": "For all",
                "namespace": "main",
                "namespace_level": "organization",
                "namespace_display_name": "main",
                "owner_user_id": 1,
                "creator": {"user_id": 1, "user_name": "admin", "attributes": {}},
                "document_count": 0,
            },
            {
                "knowledge_base_id": town["group"],
                "knowledge_base_name": "Shared 100%_sure",
                "description": None,
                "namespace": "pumpers",
                "namespace_level": "group",
                "namespace_display_name": "The Pump People",
                "owner_user_id": town["ada"],
                "creator": maker,
                "document_count": 1,
            },
            {
                "knowledge_base_id": town["own"],
                "knowledge_base_name": "Manuals",
                "description": "How Things work",
                "namespace": "default",
                "namespace_level": "personal",
                "namespace_display_name": "personal",
                "owner_user_id": town["ada"],
                "creator": maker,
                "document_count": 2,
            },
        ],
    }
    assert list(answer) == ["total", "total_returned", "has_more", "limit", "offset", "items"]


def test_a_base_that_is_shared_keeps_the_name_of_its_own_space(town: Town):
    rita = town.caller("rita").bases(scope="personal")
    assert [(item["knowledge_base_id"], item["namespace_display_name"]) for item in rita["items"]] == [
        (town["own"], "personal")
    ]


@pytest.mark.parametrize(
    ("scope", "group_name", "expected"),
    [
        ("all", None, ["Handbook", "Shared 100%_sure", "Manuals"]),
        (" all ", None, ["Handbook", "Shared 100%_sure", "Manuals"]),
        ("personal", None, ["Manuals"]),
        ("group", "pumpers", ["Shared 100%_sure"]),
        ("group", " pumpers ", ["Shared 100%_sure"]),
        ("group", "nobody", []),
        ("organization", "", ["Handbook"]),
    ],
)
def test_a_scope_shows_what_it_says(ada: Caller, scope: str, group_name: str | None, expected: list[str]):
    assert names(ada.bases(scope=scope, group_name=group_name)) == expected


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("MANUAL", ["Manuals"]),
        ("things WORK", ["Manuals"]),
        ("  for all ", ["Handbook"]),
        ("100%_", ["Shared 100%_sure"]),
        ("1%0", []),
        ("_ure", []),
        ("\\", []),
        ("", ["Handbook", "Shared 100%_sure", "Manuals"]),
        (None, ["Handbook", "Shared 100%_sure", "Manuals"]),
    ],
)
def test_a_query_matches_name_and_description_in_any_case_and_letter_by_letter(
    ada: Caller, query: str | None, expected: list[str]
):
    assert names(ada.bases(query=query)) == expected


def test_bases_are_paged_by_limit_and_offset(ada: Caller):
    seen: list[str] = []
    for offset in range(4):
        answer = ada.bases(limit=1, offset=offset)
        assert (answer["total"], answer["limit"], answer["offset"]) == (3, 1, offset)
        assert answer["total_returned"] == len(answer["items"])
        assert answer["has_more"] is (offset < 2)
        seen += names(answer)
    assert seen == ["Handbook", "Shared 100%_sure", "Manuals"]
    assert ada.bases(offset=2**63)["items"] == []


def test_bases_are_filtered_by_their_owners(town: Town, ada: Caller):
    assert names(ada.bases(owner_user_ids=[town["ada"], town["ada"]])) == ["Shared 100%_sure", "Manuals"]
    assert names(ada.bases(owner_user_ids=[1])) == ["Handbook"]
    assert names(ada.bases(owner_user_ids=[town["bob"]])) == []
    assert len(names(ada.bases(owner_user_ids=[]))) == 3
    assert len(names(ada.bases(owner_user_ids=None))) == 3
    assert names(ada.bases(owner_user_ids=[2**70 // 2**8, -5])) == []


def test_documents_are_counted_whatever_their_state(town: Town, ada: Caller):
    async def switch(db: Database, is_enabled: bool) -> None:
        call = await acting(db, ada)
        await db.write(lambda tx: documents.enable(call, tx, [town["guide"]], is_enabled))

    ada.live.run(lambda db: switch(db, False))
    assert ada.bases(scope="personal")["items"][0]["document_count"] == 2
    ada.live.run(lambda db: switch(db, True))


# --- list_nodes --------------------------------------------------------------------------------------------


def test_nodes_of_a_level_are_folders_first_then_the_newest_with_every_field(town: Town, ada: Caller):
    answer = ada.nodes(knowledge_base_id=town["own"])
    for item in answer["items"]:
        assert moment(item.pop("created_at")) <= moment(item.pop("updated_at"))
    folder: dict[str, Any] = {
        "node_type": "folder", "parent_id": 0, "children": [], "source_type": None, "index_status": None,
        "file_extension": None, "content_readable": False, "downloadable": False, "previewable": False,
        "mime_type": None, "file_size": None, "creator": None, "orphan": False,
    }  # fmt: skip
    assert answer == {
        "knowledge_base_id": town["own"],
        "knowledge_base_name": "Manuals",
        "folder_id": 0,
        "recursive": False,
        "total_returned": 3,
        "total_available": 3,
        "has_more": False,
        "items": [
            {"node_id": f"folder:{town['empty']}", "raw_id": town["empty"], "name": "empty", "has_children": False,
             **folder},
            {"node_id": f"folder:{town['machines']}", "raw_id": town["machines"], "name": "machines",
             "has_children": True, **folder},
            {
                "node_id": f"document:{town['page']}", "raw_id": town["page"], "name": "valve.html",
                "node_type": "document", "parent_id": 0, "has_children": False, "children": [],
                "source_type": "web", "index_status": "success", "file_extension": "html", "content_readable": True,
                "downloadable": True, "previewable": False, "mime_type": "text/html", "file_size": len(PAGE),
                "creator": {"user_id": town["ada"], "user_name": "ada", "attributes": {}}, "orphan": False,
            },
        ],
        "warnings": [],
    }  # fmt: skip


def test_nodes_of_a_level_are_paged_in_one_space_of_folders_and_documents(town: Town, ada: Caller):
    seen: list[str] = []
    for offset in range(4):
        answer = ada.nodes(knowledge_base_id=town["own"], limit=1, offset=offset)
        assert answer["total_available"] == 3
        assert answer["has_more"] is (offset < 2)
        seen += [item["name"] for item in answer["items"]]
    assert seen == ["empty", "machines", "valve.html"]


def test_a_tree_is_whole_and_counts_every_node(town: Town, ada: Caller):
    answer = ada.nodes(knowledge_base_id=town["own"], recursive=True, limit=1, offset=2)
    assert tree_of(answer["items"]) == ["empty", ("machines", [("wet", ["guide.md"])]), "valve.html"]
    assert (answer["total_returned"], answer["total_available"], answer["has_more"]) == (5, 5, False)
    assert answer["recursive"] is True
    below = ada.nodes(knowledge_base_id=town["own"], folder_id=town["machines"], recursive=True)
    assert tree_of(below["items"]) == [("wet", ["guide.md"])]
    assert (below["folder_id"], below["total_returned"]) == (town["machines"], 2)


def test_inactive_documents_are_shown_unless_they_are_not_wanted(town: Town, ada: Caller):
    async def switch(db: Database, is_enabled: bool) -> None:
        call = await acting(db, ada)
        await db.write(lambda tx: documents.enable(call, tx, [town["guide"]], is_enabled))

    async def unread(db: Database) -> int:
        files = FileStore(ada.live.settings.home, 1_000_000)
        made = await add_document(db, files, await acting(db, ada), town["own"], "new.txt", "new", town["empty"])
        files.close()
        return made

    async def forget(tx: Transaction) -> None:
        await tx.execute("DELETE FROM jobs WHERE kind = 'ingest'")
        await tx.execute("DELETE FROM documents WHERE id = $1", new)

    def search() -> list[int]:
        query = {"query": TEXTS["guide"], "knowledge_base_ids": [town["own"]]}
        return [record["document_id"] for record in ada.call(SEARCH, query)["records"]]

    ada.live.run(lambda db: switch(db, False))
    new = ada.live.run(unread)
    everything = ada.nodes(knowledge_base_id=town["own"], recursive=True)
    active = ada.nodes(knowledge_base_id=town["own"], recursive=True, include_inactive=False)
    level = ada.nodes(knowledge_base_id=town["own"], folder_id=town["wet"], include_inactive=False)
    above = ada.nodes(knowledge_base_id=town["own"], folder_id=town["machines"], include_inactive=False)
    unindexed = ada.nodes(knowledge_base_id=town["own"], folder_id=town["empty"])["items"]
    [disabled] = ada.nodes(knowledge_base_id=town["own"], folder_id=town["wet"])["items"]
    content = ada.call(CONTENT, {"document_id": town["guide"]})
    found = search()
    ada.live.run(lambda db: db.write(forget))
    ada.live.run(lambda db: switch(db, True))
    assert everything["total_returned"] == 6
    assert tree_of(active["items"]) == ["empty", ("machines", ["wet"]), "valve.html"]
    assert (level["items"], level["total_available"]) == ([], 0)
    assert [item["has_children"] for item in above["items"]] == [False]
    assert [(item["index_status"], item["content_readable"]) for item in unindexed] == [("queued", False)]
    # A disabled document can be read, and is not found: its status says so wherever it is shown.
    assert town["guide"] not in found
    [machines] = [item for item in everything["items"] if item["name"] == "machines"]
    in_tree = machines["children"][0]["children"][0]
    assert [each["index_status"] for each in (disabled, in_tree, content)] == ["not_indexed"] * 3
    assert (content["content_available"], disabled["content_readable"]) == (True, True)
    [enabled] = ada.nodes(knowledge_base_id=town["own"], folder_id=town["wet"])["items"]
    assert enabled["index_status"] == "success"
    assert town["guide"] in search()


def test_a_base_too_large_is_refused_before_it_is_loaded(town: Town, ada: Caller, monkeypatch: pytest.MonkeyPatch):
    def never(*_: Any) -> Any:
        raise AssertionError("the tree was loaded")

    monkeypatch.setattr(document_tree, "MAX_NODES", 4)
    with monkeypatch.context() as patch:
        patch.setattr(document_tree, "from_row", never)
        assert ada.nodes(knowledge_base_id=town["own"], recursive=True) == failed(
            "result_too_large", "Recursive result has 5 nodes, which exceeds the limit of 4"
        )
    # The content of a folder is listed independently of the rest of the base.
    below = ada.nodes(knowledge_base_id=town["own"], folder_id=town["machines"], recursive=True)
    assert below["total_returned"] == 2


def test_what_hangs_in_the_air_is_an_orphan_at_the_root_and_warnings_say_why(town: Town, ada: Caller):
    made: dict[str, int] = {}

    async def break_it(tx: Transaction) -> None:
        sql = (
            "INSERT INTO folders (base_id, parent_id, name, creator_id, created_at, updated_at)"
            " VALUES ($1, $2, $3, $4, 1, 1) RETURNING id"
        )
        for name, parent in (("lost", 77_777), ("one", 0), ("two", 0)):
            row = await tx.fetch_one(sql, town["group"], parent, name, town["ada"])
            assert row is not None
            made[name] = row["id"]
        for child, parent in (("one", "two"), ("two", "one")):
            await tx.execute("UPDATE folders SET parent_id = $2 WHERE id = $1", made[child], made[parent])
        await tx.execute("UPDATE documents SET folder_id = 88888 WHERE id = $1", town["notes"])

    async def mend(tx: Transaction) -> None:
        await tx.execute("DELETE FROM folders WHERE base_id = $1", town["group"])
        await tx.execute("UPDATE documents SET folder_id = 0 WHERE id = $1", town["notes"])

    ada.live.run(lambda db: db.write(break_it))
    answer = ada.nodes(knowledge_base_id=town["group"], recursive=True)
    cyclic = ada.nodes(knowledge_base_id=town["group"], folder_id=made["two"], recursive=True)
    ada.live.run(lambda db: db.write(mend))
    assert [(item["name"], item["orphan"]) for item in answer["items"]] == [
        ("one", True), ("lost", True), ("notes.txt", True)
    ]  # fmt: skip
    assert answer["total_returned"] == 4
    assert answer["warnings"] == [
        f"Folder {made['lost']} references missing parent 77777",
        f"Folder {made['one']} is not reachable from root; attached as orphan",
        f"Cycle detected at folder {made['one']}; subtree skipped",
        f"Document {town['notes']} references missing folder 88888",
    ]
    assert tree_of(cyclic["items"]) == ["one"]
    assert cyclic["warnings"] == [f"Cycle detected at folder {made['two']}; edge skipped"]


# --- get_document_content ----------------------------------------------------------------------------------


def test_the_text_that_was_parsed_is_read_with_every_field(town: Town, ada: Caller):
    answer = ada.content(document_id=town["page"])
    text = "The valve is shut in winter."
    assert answer == {
        "document_id": town["page"],
        "node_id": f"document:{town['page']}",
        "knowledge_base_id": town["own"],
        "name": "valve.html",
        "content": text,
        "content_format": "text",
        "content_source": "parsed_attachment",
        "content_available": True,
        "offset": 0,
        "returned_length": len(text),
        "total_length": len(text),
        "has_more": False,
        "index_status": "success",
    }


def test_text_is_read_by_pages_and_an_offset_beyond_the_end_is_the_end(town: Town, ada: Caller):
    read, offset = "", 0
    while True:
        answer = ada.content(document_id=town["guide"], offset=offset, limit=20)
        assert answer["returned_length"] == len(answer["content"]) <= 20
        read, offset = read + answer["content"], offset + answer["returned_length"]
        if not answer["has_more"]:
            break
    assert read == TEXTS["guide"]
    beyond = ada.content(document_id=town["guide"], offset=2**63 - 1, limit=100_000)
    assert (beyond["offset"], beyond["content"], beyond["has_more"]) == (len(read), "", False)


def test_a_document_that_has_not_been_read_has_no_content_and_says_how_far_it_is(town: Town, bob: Caller):
    async def waiting(db: Database) -> int:
        files = FileStore(bob.live.settings.home, 1_000_000)
        made = await add_document(db, files, await acting(db, bob), town["bobs"], "later.txt", "later")
        files.close()
        return made

    document = bob.live.run(waiting)
    answer = bob.content(document_id=document)
    assert (answer["content"], answer["content_available"], answer["total_length"]) == ("", False, 0)
    assert (answer["has_more"], answer["index_status"]) == (False, "queued")


# --- get_document_download ---------------------------------------------------------------------------------


@pytest.mark.parametrize("mount", ["/mcp/knowledge-external", "/api/mcp/knowledge-external"])
def test_a_download_says_where_the_file_is_and_with_what(town: Town, ada: Caller, mount: str):
    answer = Caller(ada.live, ada.token, mount).download(document_id=town["guide"])
    token = answer["headers"].pop("X-Wegent-Download-Token")
    assert answer == {
        "document_id": town["guide"],
        "node_id": f"document:{town['guide']}",
        "knowledge_base_id": town["own"],
        "resource_url": f"{mount}/documents/{town['guide']}/file",
        "headers": {},
        "expiration_seconds": 300,
        "disposition": "inline",
        "mime_type": "text/markdown",
        "file_name": "guide.md",
        "file_extension": "md",
        "file_size": len(TEXTS["guide"]),
        "downloadable": True,
        "previewable": True,
    }
    response = ada.live.http.get(answer["resource_url"], headers={"X-Wegent-Download-Token": token})
    assert (response.status_code, response.text) == (200, TEXTS["guide"])


def test_inline_is_for_what_can_be_previewed_and_attachment_for_all(town: Town, ada: Caller):
    refused = failed("unsupported_media_type", "Document file is not previewable")
    assert ada.download(document_id=town["page"]) == refused
    assert ada.download(document_id=town["page"], disposition="inline") == refused
    answer = ada.download(document_id=town["page"], disposition=" Attachment ")
    assert (answer["disposition"], answer["previewable"], answer["downloadable"]) == ("attachment", False, True)
    assert ada.redeem(answer).text == PAGE


# --- search_content ----------------------------------------------------------------------------------------


def test_a_search_warns_of_passages_without_vectors(live: Running):
    fresh = Caller(live, live.new_token("fresh"))
    assert live.call("manage_base", {"action": "create", "name": "Fresh"}, token=fresh.token)["isError"] is False
    [base] = fresh.bases(scope="personal")["items"]
    id = base["knowledge_base_id"]
    live.call("add_document", {"base_id": id, "name": "gear.md", "content": "The gear is greased."}, token=fresh.token)
    live.work(embed=False)
    warnings = fresh.search(query="gear", knowledge_base_ids=[id])["warnings"]
    assert warnings == ["Some passages have no vectors yet: only keyword search finds them."]
    live.work()
    assert fresh.search(query="gear", knowledge_base_ids=[id])["warnings"] == []


def test_a_search_of_selected_bases_finds_passages_with_every_field(town: Town, ada: Caller):
    asked = [town["own"], town["own"], town["bobs"], town["group"], 999_999, -1, 0]
    answer = ada.search(query="  how often is the pump oiled ", knowledge_base_ids=asked)
    assert answer["query"] == "how often is the pump oiled"
    assert answer["searched_knowledge_base_ids"] == [town["own"], town["group"]]
    assert answer["ignored_knowledge_base_ids"] == [town["bobs"], 999_999, -1, 0]
    assert answer["warnings"] == ["Some requested knowledge_base_ids were ignored because they are not accessible"]
    assert answer["total"] == len(answer["records"]) > 0
    best = answer["records"][0]
    assert list(best) == ["content", "title", "score", "knowledge_base_id", "knowledge_base_name", "document_id"]
    assert "Oil it every spring" in best["content"]
    assert best["title"] == "Pumps"
    assert (best["knowledge_base_id"], best["knowledge_base_name"]) == (town["own"], "Manuals")
    assert best["document_id"] == town["guide"]
    scores = [record["score"] for record in answer["records"]]
    assert scores == sorted(scores, reverse=True)
    assert all(0 <= score <= 1 for score in scores)
    assert answer["total_estimated_tokens"] == sum(len(record["content"]) // 4 for record in answer["records"])
    assert ada.search(query="pump", knowledge_base_ids=[town["own"]])["warnings"] == []


def test_a_search_gives_no_more_than_was_asked_for(town: Town, ada: Caller):
    answer = ada.search(query="pump valve water", knowledge_base_ids=[town["own"], town["group"]], max_results=1)
    assert (answer["total"], len(answer["records"])) == (1, 1)


def test_a_search_of_nothing_accessible_is_not_found(town: Town, ada: Caller):
    for asked in ([town["bobs"]], [town["foreign"]], [999_999], [0], [-3], [town["bobs"], town["foreign"], 2**63]):
        assert ada.search(query="vault", knowledge_base_ids=asked) == failed(
            "not_found", "No accessible knowledge bases found"
        )


def test_ids_are_deduplicated_before_they_are_counted(town: Town, ada: Caller):
    assert ada.search(query="pump", knowledge_base_ids=[town["own"]] * 500)["searched_knowledge_base_ids"] == [
        town["own"]
    ]
    many = list(range(10_000, 10_101))
    assert ada.search(query="pump", knowledge_base_ids=many) == failed(
        "bad_request", "knowledge_base_ids must contain at most 100 items"
    )
    assert ada.search(query="pump", knowledge_base_ids=[town["own"], *many[:99]])["total"] > 0


# --- invalid calls -----------------------------------------------------------------------------------------

HUGE = 2**63
BAD: list[tuple[str, dict[str, Any], str]] = [
    (LIST_BASES, {"scope": 1}, "scope must be a string"),
    (LIST_BASES, {"scope": None}, "scope must be a string"),
    (LIST_BASES, {"scope": True, "group_name": 1}, "scope must be a string"),
    (LIST_BASES, {"group_name": 7, "query": 7}, "group_name must be a string"),
    (LIST_BASES, {"query": ["a"], "owner_user_ids": 1}, "query must be a string"),
    (LIST_BASES, {"owner_user_ids": "1", "limit": "1"}, "owner_user_ids must be a list of integers"),
    (LIST_BASES, {"owner_user_ids": [1, True]}, "owner_user_ids must be a list of integers"),
    (LIST_BASES, {"owner_user_ids": [1, "2"]}, "owner_user_ids must be a list of integers"),
    (LIST_BASES, {"owner_user_ids": list(range(101))}, "owner_user_ids must contain at most 100 items"),
    (LIST_BASES, {"limit": "10", "offset": "0"}, "limit must be an integer"),
    (LIST_BASES, {"limit": True}, "limit must be an integer"),
    (LIST_BASES, {"limit": 1.0}, "limit must be an integer"),
    (LIST_BASES, {"limit": None}, "limit must be an integer"),
    (LIST_BASES, {"limit": 0, "offset": "0"}, "offset must be an integer"),
    (LIST_BASES, {"limit": 0, "offset": -1}, "limit must be between 1 and 100"),
    (LIST_BASES, {"limit": 101}, "limit must be between 1 and 100"),
    (LIST_BASES, {"offset": -1, "scope": "some"}, "offset must be greater than or equal to 0"),
    (LIST_BASES, {"scope": "some"}, "Invalid scope"),
    (LIST_BASES, {"scope": ""}, "Invalid scope"),
    (LIST_BASES, {"scope": "ALL"}, "Invalid scope"),
    (LIST_BASES, {"scope": "group"}, "group_name is required when scope is group"),
    (LIST_BASES, {"scope": "group", "group_name": " "}, "group_name is required when scope is group"),
    (LIST_BASES, {"scope": "group", "group_name": None}, "group_name is required when scope is group"),
    (LIST_BASES, {"owners": [1]}, "Unknown argument: owners"),
    (LIST_NODES, {}, "knowledge_base_id is required"),
    (LIST_NODES, {"knowledge_base_id": None}, "knowledge_base_id must be an integer"),
    (LIST_NODES, {"knowledge_base_id": "1"}, "knowledge_base_id must be an integer"),
    (LIST_NODES, {"knowledge_base_id": True}, "knowledge_base_id must be an integer"),
    (LIST_NODES, {"knowledge_base_id": 0, "folder_id": "0"}, "folder_id must be an integer"),
    (LIST_NODES, {"knowledge_base_id": 0, "recursive": "false"}, "recursive must be a boolean"),
    (LIST_NODES, {"knowledge_base_id": 1, "recursive": 0}, "recursive must be a boolean"),
    (LIST_NODES, {"knowledge_base_id": 1, "recursive": None}, "recursive must be a boolean"),
    (LIST_NODES, {"knowledge_base_id": 1, "include_inactive": "false"}, "include_inactive must be a boolean"),
    (LIST_NODES, {"knowledge_base_id": 0, "limit": "1"}, "limit must be an integer"),
    (LIST_NODES, {"knowledge_base_id": 0, "offset": 0.0}, "offset must be an integer"),
    (LIST_NODES, {"knowledge_base_id": 0, "folder_id": -1}, "knowledge_base_id is required"),
    (LIST_NODES, {"knowledge_base_id": -4}, "knowledge_base_id is required"),
    (LIST_NODES, {"knowledge_base_id": 1, "folder_id": -1, "limit": 0}, "folder_id must be greater than or equal to 0"),
    (LIST_NODES, {"knowledge_base_id": 1, "limit": 501, "offset": -1}, "limit must be between 1 and 500"),
    (LIST_NODES, {"knowledge_base_id": 1, "limit": 0}, "limit must be between 1 and 500"),
    (LIST_NODES, {"knowledge_base_id": 1, "offset": -1}, "offset must be greater than or equal to 0"),
    (CONTENT, {}, "document_id must be an integer"),
    (CONTENT, {"document_id": "1", "offset": "0"}, "document_id must be an integer"),
    (CONTENT, {"document_id": True}, "document_id must be an integer"),
    (CONTENT, {"document_id": 0, "offset": "0"}, "document_id must be a positive integer"),
    (CONTENT, {"document_id": 1, "offset": "0", "limit": "1"}, "offset must be an integer"),
    (CONTENT, {"document_id": 1, "offset": -1, "limit": "1"}, "limit must be an integer"),
    (CONTENT, {"document_id": 1, "offset": -1, "limit": 0}, "offset must be greater than or equal to 0"),
    (CONTENT, {"document_id": 1, "limit": 0}, "limit must be between 1 and 100000"),
    (CONTENT, {"document_id": 1, "limit": 100_001}, "limit must be between 1 and 100000"),
    (DOWNLOAD, {"document_id": "1"}, "document_id must be an integer"),
    (DOWNLOAD, {"document_id": -1, "disposition": "both"}, "document_id must be a positive integer"),
    (DOWNLOAD, {"document_id": 1, "disposition": "both"}, "disposition must be either inline or attachment"),
    (DOWNLOAD, {"document_id": 1, "disposition": ""}, "disposition must be either inline or attachment"),
    (DOWNLOAD, {"document_id": 1, "disposition": None}, "disposition must be either inline or attachment"),
    (DOWNLOAD, {"document_id": 1, "disposition": 5}, "disposition must be either inline or attachment"),
    (SEARCH, {}, "query must be a string"),
    (SEARCH, {"query": 5, "max_results": "10"}, "query must be a string"),
    (SEARCH, {"query": " \n ", "max_results": "10"}, "query must not be empty"),
    (SEARCH, {"query": "x" * 2001, "max_results": "10"}, "query must be at most 2000 characters"),
    (SEARCH, {"query": "x", "max_results": "10"}, "max_results must be an integer"),
    (SEARCH, {"query": "x", "max_results": True}, "max_results must be an integer"),
    (SEARCH, {"query": "x", "max_results": 10.0}, "max_results must be an integer"),
    (SEARCH, {"query": "x", "max_results": 0}, "max_results must be between 1 and 50"),
    (SEARCH, {"query": "x", "max_results": 51, "knowledge_base_ids": []}, "max_results must be between 1 and 50"),
    (SEARCH, {"query": "x"}, "knowledge_base_ids is required"),
    (SEARCH, {"query": "x", "knowledge_base_ids": None}, "knowledge_base_ids is required"),
    (SEARCH, {"query": "x", "knowledge_base_ids": 1}, "knowledge_base_ids must be a list of integers"),
    (SEARCH, {"query": "x", "knowledge_base_ids": {"a": 1}}, "knowledge_base_ids must be a list of integers"),
    (SEARCH, {"query": "x", "knowledge_base_ids": ["1"]}, "knowledge_base_ids must contain only integers"),
    (SEARCH, {"query": "x", "knowledge_base_ids": [True]}, "knowledge_base_ids must contain only integers"),
    (SEARCH, {"query": "x", "knowledge_base_ids": []}, "knowledge_base_ids must not be empty"),
]  # fmt: skip


@pytest.mark.parametrize(("tool", "arguments", "message"), BAD)
def test_a_wrong_argument_is_refused_with_the_documented_message_in_the_documented_order(
    ada: Caller, tool: str, arguments: dict[str, Any], message: str
):
    assert ada.call(tool, arguments) == failed("bad_request", message)


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("accept", ["application/json", "text/event-stream, application/json"])
def test_a_strict_type_is_refused_alike_in_both_eras_and_by_the_sdk(ada: Caller, era: str, accept: str):
    for extra in ({}, {"x-flaw": "1"}):
        headers = {"accept": accept, **extra}
        answer = ada.call(SEARCH, {"query": "x", "max_results": "10"}, era=era, headers=headers)
        assert answer == failed("bad_request", "max_results must be an integer")


def test_ids_that_no_database_could_hold_are_simply_not_there(ada: Caller):
    assert ada.nodes(knowledge_base_id=HUGE) == failed("not_found", "Knowledge base not found")
    assert ada.content(document_id=HUGE) == failed("not_found", "Document not found")
    assert ada.download(document_id=HUGE) == failed("not_found", "Document not found")
    assert ada.search(query="x", knowledge_base_ids=[HUGE]) == failed(
        "not_found", "No accessible knowledge bases found"
    )


# --- permissions -------------------------------------------------------------------------------------------


def test_what_is_not_the_callers_is_not_there_in_the_same_words_as_what_never_was(town: Town, ada: Caller):
    base, document = failed("not_found", "Knowledge base not found"), failed("not_found", "Document not found")
    for base_id in (town["bobs"], town["foreign"], 987_654):
        assert ada.nodes(knowledge_base_id=base_id) == base
        assert ada.nodes(knowledge_base_id=base_id, recursive=True, folder_id=1) == base
    for document_id in (town["secret"], town["foreign_text"], 987_654):
        assert ada.content(document_id=document_id) == document
        assert ada.download(document_id=document_id) == document
    assert ada.nodes(knowledge_base_id=town["own"], folder_id=987_654) == failed(
        "not_found", "Folder not found in knowledge base"
    )
    assert ada.nodes(knowledge_base_id=town["group"], folder_id=town["machines"], recursive=True) == failed(
        "not_found", "Folder not found in knowledge base"
    )


def test_whoever_may_only_search_restricted_is_forbidden_to_browse_and_read(town: Town):
    rita = town.caller("rita")
    assert rita.nodes(knowledge_base_id=town["own"]) == failed("forbidden", "Access denied to knowledge base")
    assert rita.content(document_id=town["guide"]) == failed("forbidden", "Access denied to this document")
    assert rita.download(document_id=town["guide"]) == failed("forbidden", "Access denied to this document")
    assert rita.search(query="pump", knowledge_base_ids=[town["own"]])["code"] == "not_found"


def test_a_token_s_own_limits_hold_here_too(town: Town, ada: Caller):
    narrow = Caller(ada.live, ada.live.new_token("ada", bases=[town["group"]]))
    assert names(narrow.bases()) == ["Shared 100%_sure"]
    assert narrow.nodes(knowledge_base_id=town["own"])["code"] == "not_found"
    assert narrow.search(query="pump", knowledge_base_ids=[town["own"]])["code"] == "not_found"
    one = Caller(ada.live, ada.live.new_token("ada", tools=["wegent_kb_list_nodes"]))
    listed = one.post("tools/list", {}).json()["result"]["tools"]
    assert [tool["name"] for tool in listed] == ["wegent_kb_list_nodes"]
    searcher = Caller(ada.live, ada.live.new_token("ada", scope=["search:read"]))
    listed = searcher.post("tools/list", {}).json()["result"]["tools"]
    assert [tool["name"] for tool in listed] == ["wegent_kb_search_content"]
    refused = searcher.post("tools/call", {"name": "wegent_kb_list_nodes", "arguments": {}}).json()
    assert refused["error"]["code"] == -32602
