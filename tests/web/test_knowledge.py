"""Knowledge bases, folders and documents over REST, on both databases."""

from datetime import datetime
from typing import Any

import pytest

from almanac.core import clock
from almanac.core.database import Transaction
from almanac.identity import first_start, groups, orgs, principals, tokens
from almanac.identity.roles import Role
from almanac.knowledge import downloads
from tests.live_server import Running
from tests.surfaces.wire import audit_of
from tests.web.api import Api, ingest

# Bases


def test_a_base_is_made_changed_listed_removed_and_restored(api: Api):
    made = api.send("POST", "/bases", json={"name": "Pumps  and valves", "description": "All of them"})
    assert made.status_code == 201
    base = made.json()
    assert made.headers["location"] == f"/api/v1/bases/{base['id']}"
    assert (base["name"], base["level"], base["owner"], base["role"]) == (
        "Pumps and valves",
        "personal",
        "admin",
        "Owner",
    )
    assert datetime.fromisoformat(base["created_at"]).tzinfo is not None
    path = f"/bases/{base['id']}"
    changed = api.ask("PATCH", path, json={"name": "Pumps", "splitter": {"strategy": "hierarchical", "size": 400}})
    assert changed["name"] == "Pumps"
    assert changed["description"] == "All of them"
    assert changed["splitter"] == {"strategy": "hierarchical", "size": 400, "overlap": 50, "parent_size": 1600}
    assert api.ask("GET", path) == changed
    api.text(base["id"])
    listed = api.ask("GET", "/bases", params={"query": "PUMPS"})
    assert [(it["id"], it["documents"]) for it in listed["items"]] == [(base["id"], 1)]
    assert api.ask("DELETE", path, 204) is None
    assert api.refused("GET", path) == (404, "not_found")
    removed = api.ask("GET", "/bases", params={"removed": "true"})["items"]
    assert base["id"] in [it["id"] for it in removed]
    assert api.ask("POST", f"{path}/restore")["id"] == base["id"]
    assert api.ask("GET", path)["removed_at"] is None


def test_a_list_of_bases_comes_in_pages(api: Api):
    made = [api.base(f"Paged {number}") for number in range(3)]
    first = api.ask("GET", "/bases", params={"query": "paged", "limit": 2})
    rest = api.ask("GET", "/bases", params={"query": "paged", "limit": 2, "offset": 2})
    assert [it["id"] for it in first["items"] + rest["items"]] == made[::-1]
    assert (first["total"], first["has_more"], rest["has_more"]) == (3, True, False)


def test_bases_are_listed_by_their_owner_without_telling_which_names_exist(api: Api):
    olga, oscar = (api.by(api.live.new_token(name)) for name in ("olga", "oscar"))
    mine, theirs = olga.base("Olga's"), oscar.base("Oscar's")
    api_olga = {"owner": "olga"}
    assert [it["id"] for it in olga.ask("GET", "/bases", params=api_olga)["items"]] == [mine]
    assert olga.ask("GET", "/bases", params={"owner": "oscar"}) == olga.ask("GET", "/bases", params={"owner": "nobody"})
    olga.ask("PUT", f"/bases/{mine}/shares", 204, json={"role": "Reporter", "user": "oscar"})
    assert [it["id"] for it in oscar.ask("GET", "/bases", params=api_olga)["items"]] == [mine]
    # The name of a removed user is free again. The bases of the user before are not those of the new one.

    async def remove_olga(tx: Transaction) -> None:
        org = await orgs.get_by_name(tx, first_start.ORG)
        await principals.remove(tx, await principals.get_by_name(tx, org.id, "olga"))

    api.live.run(lambda db: db.write(remove_olga))
    assert oscar.ask("GET", "/bases", params=api_olga)["items"] == []
    assert [it["id"] for it in oscar.ask("GET", "/bases", params={"owner": "oscar"})["items"]] == [theirs]


def test_all_documents_of_a_base_are_listed_by_id_and_status(api: Api):
    base = api.base("Listed")
    folder = api.folder(base, "deep")
    made = [api.text(base, name=f"{n}.md", folder_id=folder if n else 0)["id"] for n in range(3)]
    path = f"/bases/{base}/documents"
    first = api.ask("GET", path, params={"limit": 2})
    rest = api.ask("GET", path, params={"limit": 2, "after": first["items"][-1]["id"]})
    assert [it["id"] for it in first["items"] + rest["items"]] == made
    assert [it["path"] for it in first["items"]] == ["", "deep"]
    assert (first["has_more"], rest["has_more"], first["base"]) == (True, False, "Listed")
    assert api.ask("GET", path, params={"status": "success"})["items"] == []
    assert [it["id"] for it in api.ask("GET", path, params={"status": "queued"})["items"]] == made
    assert api.refused("GET", path, params={"status": "lost"}) == (400, "bad_request")
    assert api.by(api.live.new_token("stranger")).refused("GET", path) == (404, "not_found")


def test_a_base_is_shared_by_role_and_no_more_than_that(api: Api):
    base = api.base("Shared")
    reader = api.by(api.live.new_token("rita"))
    path = f"/bases/{base}"
    assert reader.refused("GET", path) == (404, "not_found")
    api.ask("PUT", f"{path}/shares", 204, json={"role": "Reporter", "user": "rita"})
    shares = api.ask("GET", f"{path}/shares")
    assert shares == {"items": [{"kind": "user", "name": "rita", "role": "Reporter"}]}
    assert reader.ask("GET", path)["role"] == "Reporter"
    assert reader.refused("PATCH", path, json={"name": "Mine"}) == (403, "forbidden")
    assert reader.refused("POST", f"{path}/folders", json={"name": "x"}) == (403, "forbidden")
    assert reader.refused("GET", f"{path}/shares") == (403, "forbidden")
    assert api.ask("DELETE", f"{path}/shares", 204, params={"user": "rita"}) is None
    assert reader.refused("GET", path) == (404, "not_found")
    assert api.refused("DELETE", f"{path}/shares", params={"user": "rita"}) == (404, "not_found")
    assert api.refused("DELETE", f"{path}/shares") == (400, "bad_request")


def test_whoever_lowers_their_own_role_is_told_that_it_is_done(api: Api):
    base = api.base("Stepping down")
    mia = api.by(api.live.new_token("mia"))
    api.ask("PUT", f"/bases/{base}/shares", 204, json={"role": "Maintainer", "user": "mia"})
    assert mia.refused("PUT", f"/bases/{base}/shares", json={"role": "Owner", "user": "mia"}) == (403, "forbidden")
    mia.ask("PUT", f"/bases/{base}/shares", 204, json={"role": "Reporter", "user": "mia"})
    assert mia.refused("GET", f"/bases/{base}/shares") == (403, "forbidden")
    assert mia.ask("GET", f"/bases/{base}")["role"] == "Reporter"


def test_a_group_s_base_is_made_by_its_name(api: Api):
    token = api.live.new_token("greta")

    async def body(tx: Transaction) -> None:
        org = (await orgs.get_by_name(tx, first_start.ORG)).id
        group = await groups.add(tx, org, "workshop")
        await groups.set_member(tx, group, await principals.get_by_name(tx, org, "greta"), Role.Developer)

    api.live.run(lambda db: db.write(body))
    greta = api.by(token)
    made = greta.ask("POST", "/bases", 201, json={"name": "Tools", "level": "group", "group": "workshop"})
    assert (made["level"], made["group"]) == ("group", "workshop")
    found = greta.ask("GET", "/bases", params={"scope": "group", "group": "workshop"})
    assert [it["id"] for it in found["items"]] == [made["id"]]


def test_what_belongs_to_others_is_answered_as_if_it_did_not_exist(api: Api):
    base = api.base("Secret")
    folder, document = api.folder(base, "inner"), api.text(base, "plan.md")["id"]
    for stranger in (api.by(api.live.new_token("sam")), api.by(api.live.new_token("zoe", org="Elsewhere", admin=True))):
        for method, path, more in (
            ("GET", "/bases/{}", {}),
            ("PATCH", "/bases/{}", {"json": {"name": "x"}}),
            ("DELETE", "/bases/{}", {}),
            ("POST", "/bases/{}/restore", {}),
            ("GET", "/bases/{}/shares", {}),
            ("GET", "/bases/{}/nodes", {}),
            ("GET", "/bases/{}/trash", {}),
            ("POST", "/bases/{}/retry", {}),
            ("POST", "/bases/{}/folders", {"json": {"name": "x"}}),
            ("POST", "/bases/{}/documents", {"json": {"name": "x", "content": "y"}}),
            ("POST", "/bases/{}/documents", {"files": {"file": ("x", b"y")}}),
            ("GET", "/folders/{}", {}),
            ("PATCH", "/folders/{}", {"json": {"name": "x"}}),
            ("DELETE", "/folders/{}?contents=move", {}),
            ("POST", "/folders/{}/restore", {}),
            ("GET", "/documents/{}", {}),
            ("PATCH", "/documents/{}", {"json": {"name": "x"}}),
            ("DELETE", "/documents/{}", {}),
            ("POST", "/documents/{}/restore", {}),
            ("POST", "/documents/{}/reindex", {}),
            ("GET", "/documents/{}/content", {}),
            ("GET", "/documents/{}/content?page=1", {}),
            ("PUT", "/documents/{}/content", {"content": b"new"}),
            ("GET", "/documents/{}/passages", {}),
            ("POST", "/documents/{}/download", {}),
        ):
            real = {"bases": base, "folders": folder, "documents": document}[path.split("/")[1]]
            there, nowhere = (stranger.send(method, path.format(id), **more) for id in (real, 987_654_321))
            assert there.status_code == nowhere.status_code == 404, (method, path, there.text)
            assert there.text.replace(str(real), "#") == nowhere.text.replace("987654321", "#"), (method, path)
        batch = {"action": "delete", "ids": [document]}
        assert stranger.refused("POST", "/documents/batch", json=batch) == (404, "not_found")
    assert api.ask("GET", f"/documents/{document}")["generation"] == 1


def test_a_token_that_is_limited_to_a_base_sees_no_other(api: Api):
    mine, other = api.base("Limited"), api.base("Outside")
    limited = api.by(api.live.new_token("admin", bases=[mine]))
    assert limited.ask("GET", f"/bases/{mine}")["id"] == mine
    assert limited.refused("GET", f"/bases/{other}") == (404, "not_found")
    assert [it["id"] for it in limited.ask("GET", "/bases")["items"]] == [mine]
    assert limited.refused("POST", "/bases", json={"name": "More"}) == (403, "forbidden")


# Folders


def test_a_folder_is_made_moved_emptied_and_restored(api: Api):
    base = api.base("Tree")
    outer = api.folder(base, "outer")
    inner = api.folder(base, "inner", outer)
    document = api.text(base, folder_id=inner)["id"]
    assert api.refused("PATCH", f"/folders/{outer}", json={"parent_id": inner}) == (409, "conflict")
    moved = api.ask("PATCH", f"/folders/{inner}", json={"parent_id": 0, "name": "upper"})
    assert (moved["parent_id"], moved["name"]) == (0, "upper")
    assert api.ask("GET", f"/folders/{inner}") == moved
    assert api.refused("POST", f"/bases/{base}/folders", json={"name": "upper"}) == (409, "conflict")
    assert api.refused("DELETE", f"/folders/{inner}") == (400, "bad_request")
    assert api.refused("DELETE", f"/folders/{inner}", params={"contents": "burn"}) == (400, "bad_request")
    api.ask("DELETE", f"/folders/{inner}", 204, params={"contents": "delete"})
    assert api.refused("GET", f"/documents/{document}") == (404, "not_found")
    trash = api.ask("GET", f"/bases/{base}/trash")
    assert [(it["kind"], it["id"]) for it in trash["items"]] == [("folder", inner)]
    assert api.ask("POST", f"/folders/{inner}/restore")["id"] == inner
    assert api.ask("GET", f"/documents/{document}")["folder_id"] == inner
    api.ask("DELETE", f"/folders/{inner}", 204, params={"contents": "move"})
    assert api.ask("GET", f"/documents/{document}")["folder_id"] == 0


def test_a_base_is_browsed_a_level_at_a_time_or_as_a_whole(api: Api):
    base = api.base("Browsed")
    outer = api.folder(base, "outer")
    inner = api.folder(base, "inner", outer)
    below, above = api.text(base, "below.md", folder_id=inner)["id"], api.text(base, "above.md")["id"]
    first = api.ask("GET", f"/bases/{base}/nodes", params={"limit": 1})
    assert [(it["kind"], it["id"]) for it in first["items"]] == [("folder", outer)]
    assert first["has_more"] is True
    assert first["items"][0]["has_children"] is True
    second = api.ask("GET", f"/bases/{base}/nodes", params={"limit": 1, "offset": 1})
    assert second["items"][0]["id"] == above
    assert second["has_more"] is False
    whole = api.ask("GET", f"/bases/{base}/nodes", params={"recursive": "true"})
    assert [(it["id"], it["path"], it["folder_id"]) for it in whole["items"]] == [
        (outer, "", 0),
        (inner, "outer", outer),
        (below, "outer/inner", inner),
        (above, "", 0),
    ]
    part = api.ask("GET", f"/bases/{base}/nodes", params={"recursive": "true", "folder_id": inner})
    assert [(it["id"], it["path"]) for it in part["items"]] == [(below, "")]
    assert api.refused("GET", f"/bases/{base}/nodes", params={"folder_id": 10**9}) == (404, "not_found")
    both = {"recursive": "true", "limit": 5}
    assert api.refused("GET", f"/bases/{base}/nodes", params=both) == (400, "bad_request")


def test_a_tree_a_hundred_folders_deep_is_answered(api: Api):
    base = api.base("Deep")
    at = 0
    for number in range(100):
        at = api.folder(base, str(number), at)
    found = api.ask("GET", f"/bases/{base}/nodes", params={"recursive": "true"})["items"]
    assert [it["name"] for it in found] == [str(number) for number in range(100)]
    assert found[-1]["path"] == "/".join(str(number) for number in range(99))
    assert api.refused("POST", f"/bases/{base}/folders", json={"name": "x", "parent_id": at}) == (400, "bad_request")


# Documents


def test_text_becomes_a_document_that_is_read_cut_and_searched(api: Api):
    base = api.base("Read")
    content = "# Pumps\n\nOil it monthly.\n\n" + "\n\n".join(f"Paragraph {n} of many words." for n in range(400))
    document = api.text(base, "pumps", content, tags=["a", "b"], metadata={"year": 2024})
    assert (document["name"], document["outcome"], document["index_status"]) == ("pumps.md", "added", "queued")
    assert (document["tags"], document["metadata"]) == (["a", "b"], {"year": 2024})
    path = f"/documents/{document['id']}"
    unread = api.ask("GET", f"{path}/content")
    assert (unread["text"], unread["total"], unread["document"]["index_status"]) == ("", 0, "queued")
    ingest(api.live)
    read = api.ask("GET", path)
    assert (read["index_status"], read["failure"], read["title"]) == ("success", None, "Pumps")
    excerpt = api.ask("GET", f"{path}/content", params={"offset": 2, "limit": 10})
    assert excerpt["total"] == read["characters"] > 1000
    assert (len(excerpt["text"]), excerpt["offset"], excerpt["next_offset"]) == (10, 2, 12)
    whole = api.ask("GET", f"{path}/content", params={"limit": 100_000})
    assert whole["text"][2:12] == excerpt["text"]
    assert whole["next_offset"] is None
    found = api.ask("GET", f"{path}/passages", params={"limit": 2})
    rest = api.ask("GET", f"{path}/passages", params={"offset": 2})
    assert found["total"] == read["passages"] == len(found["items"]) + len(rest["items"])
    assert (found["has_more"], rest["has_more"]) == (True, False)
    assert [it["ordinal"] for it in found["items"]] == [0, 1]
    piece = rest["items"][-1]
    assert whole["text"][piece["start"] : piece["end"]] == piece["text"]
    assert api.refused("GET", f"{path}/content", params={"page": 1}) == (400, "bad_request")
    assert api.refused("GET", f"{path}/content", params={"page": 1, "limit": 5}) == (400, "bad_request")


def test_what_cannot_be_read_says_why_and_can_be_tried_again(api: Api):
    base = api.base("Broken")
    sent = {"file": ("broken.pdf", b"%PDF-1.7\nnot really")}
    document = api.add(base, files=sent)["id"]
    ingest(api.live)
    failed = api.ask("GET", f"/documents/{document}")
    assert failed["index_status"] == "failed"
    assert failed["failure"].keys() == {"stage", "code", "message", "retryable", "occurred_at"}
    assert api.ask("POST", f"/bases/{base}/retry") == {"count": 1}
    assert api.ask("POST", f"/bases/{base}/retry") == {"count": 0}
    again = api.ask("GET", f"/documents/{document}")
    assert (again["index_status"], again["generation"], again["failure"]) == ("queued", 2, None)
    assert api.ask("POST", f"/documents/{document}/reindex")["generation"] == 3


def test_a_document_is_changed_moved_and_hidden_in_one_request(api: Api):
    base, other = api.base("From"), api.base("To")
    folder = api.folder(other, "there")
    document = api.text(base)["id"]
    changed = api.ask(
        "PATCH",
        f"/documents/{document}",
        json={"name": "new.md", "tags": ["x"], "metadata": {"a": [1]}, "is_enabled": False, "base_id": other,
              "folder_id": folder},
    )  # fmt: skip
    told = {name: changed[name] for name in ("name", "tags", "metadata", "is_enabled", "base_id", "folder_id")}
    assert told == {
        "name": "new.md", "tags": ["x"], "metadata": {"a": [1]}, "is_enabled": False, "base_id": other,
        "folder_id": folder,
    }  # fmt: skip
    assert api.ask("PATCH", f"/documents/{document}", json={"is_enabled": True})["name"] == "new.md"
    api.text(other, "taken.md", folder_id=folder)
    assert api.refused("PATCH", f"/documents/{document}", json={"name": "taken.md"}) == (409, "conflict")
    half = {"folder_id": 0, "name": "a/b"}
    assert api.refused("PATCH", f"/documents/{document}", json=half) == (400, "bad_request")
    assert api.ask("GET", f"/documents/{document}")["folder_id"] == folder  # nothing of it was done
    assert api.refused("PATCH", f"/documents/{document}", json={}) == (400, "bad_request")


def test_a_name_that_is_taken_is_refused_replaced_or_numbered_as_asked(api: Api):
    base = api.base("Names")
    first = api.text(base, "a.md", "one")
    path = f"/bases/{base}/documents"
    assert api.refused("POST", path, json={"name": "a.md", "content": "two"}) == (409, "conflict")
    replaced = api.add(base, 200, json={"name": "a.md", "content": "two", "if_exists": "replace"})
    assert (replaced["id"], replaced["outcome"], replaced["generation"]) == (first["id"], "replaced", 2)
    same = api.add(base, 200, json={"name": "a.md", "content": "two", "if_exists": "replace"})
    assert (same["id"], same["outcome"], same["generation"]) == (first["id"], "unchanged", 2)
    both = api.add(base, 201, json={"name": "a.md", "content": "two", "if_exists": "keep_both"})
    assert (both["name"], both["outcome"]) == ("a (2).md", "added")


def test_a_batch_is_done_to_all_or_to_none(api: Api):
    base = api.base("Many")
    folder = api.folder(base, "there")
    ids = [api.text(base, f"{number}.md")["id"] for number in range(3)]

    def batch(action: str, **more: Any) -> dict[str, Any]:
        return {"action": action, "ids": ids, **more}

    def seen(name: str) -> list[Any]:
        return [api.ask("GET", f"/documents/{id}")[name] for id in ids]

    assert api.ask("POST", "/documents/batch", json=batch("move", folder_id=folder)) == {"count": 3}
    assert seen("folder_id") == [folder] * 3
    api.ask("POST", "/documents/batch", json=batch("disable"))
    assert seen("is_enabled") == [False] * 3
    api.ask("POST", "/documents/batch", json=batch("enable"))
    assert seen("is_enabled") == [True] * 3
    api.ask("POST", "/documents/batch", json=batch("reindex"))
    assert seen("generation") == [2] * 3
    mixed = {"action": "delete", "ids": [*ids, 987_654_321]}
    assert api.refused("POST", "/documents/batch", json=mixed) == (404, "not_found")
    assert seen("generation") == [2] * 3
    api.ask("POST", "/documents/batch", json=batch("delete"))
    assert {api.refused("GET", f"/documents/{id}") for id in ids} == {(404, "not_found")}
    api.ask("POST", "/documents/batch", json=batch("restore"))
    assert seen("folder_id") == [folder] * 3
    wrongs: list[dict[str, Any]] = [
        batch("move"),
        batch("delete", folder_id=1),
        batch("delete", base_id=1),
        batch("burn"),
        {"action": "delete", "ids": []},
        {"action": "delete", "ids": list(range(1, 502))},
        {"action": "delete", "ids": ["1"]},
        {"action": "delete", "ids": [True]},
        {"action": "delete", "ids": [2**63]},
    ]
    for wrong in wrongs:
        assert api.refused("POST", "/documents/batch", json=wrong) == (400, "bad_request"), wrong


def test_a_removed_document_is_in_the_trash_until_it_is_restored(api: Api):
    base = api.base("Trash")
    document = api.text(base)["id"]
    api.ask("DELETE", f"/documents/{document}", 204)
    assert api.refused("DELETE", f"/documents/{document}") == (404, "not_found")
    [found] = api.ask("GET", f"/bases/{base}/trash")["items"]
    assert (found["kind"], found["id"], found["name"]) == ("document", document, "notes.md")
    assert api.ask("POST", f"/documents/{document}/restore")["name"] == "notes.md"
    assert api.refused("POST", f"/documents/{document}/restore") == (404, "not_found")
    page = api.ask("GET", f"/bases/{base}/trash")
    assert (page["items"], page["has_more"]) == ([], False)


# Downloads

CONTENT = b"The quick brown fox jumps over the lazy dog.\n" * 50


@pytest.fixture
def document(api: Api) -> int:
    base = api.base("Files")
    sent = {"file": ('Übung "1" ; x.txt', CONTENT)}
    return api.add(base, files=sent, data={"name": 'Übung "1"; x%41.txt'})["id"]


def credential(api: Api, document: int, disposition: str = "inline") -> dict[str, Any]:
    answer = api.ask("POST", f"/documents/{document}/download", json={"disposition": disposition})
    [(header, token)] = answer["headers"].items()
    assert header == "X-Almanac-Download-Token"
    return {**answer, "token": token}


def fetch(live: Running, document: int, token: str, method: str = "GET", **headers: str) -> Any:
    sent = {"x-almanac-download-token": token, **{name.replace("_", "-"): value for name, value in headers.items()}}
    return live.http.request(method, f"/api/v1/documents/{document}/file", headers=sent)


def test_a_file_is_fetched_with_its_credential_and_without_a_token(api: Api, document: int):
    given = credential(api, document)
    assert given["url"].endswith(f"/api/v1/documents/{document}/file")
    assert (given["expires_in"], given["size"]) == (300, len(CONTENT))
    got = fetch(api.live, document, given["token"])
    assert (got.status_code, got.content) == (200, CONTENT)
    name = "%C3%9Cbung%20%221%22%3B%20x%2541.txt"
    assert got.headers["content-disposition"] == f"inline; filename=\"{name}\"; filename*=UTF-8''{name}"
    assert got.headers["x-content-type-options"] == "nosniff"
    assert got.headers["content-security-policy"] == "sandbox; default-src 'none'"
    assert got.headers["cache-control"] == "private, no-store"
    assert got.headers["content-type"] == "text/plain; charset=utf-8"
    assert got.headers["etag"] == f'"{api.ask("GET", f"/documents/{document}")["sha256"]}"'
    linked = api.live.http.get(f"/api/v1/documents/{document}/file", params={"token": given["token"]})
    assert (linked.status_code, linked.content) == (200, CONTENT)
    attached = fetch(api.live, document, credential(api, document, "attachment")["token"])
    assert attached.headers["content-disposition"].startswith("attachment; ")


def test_a_file_is_fetched_in_ranges(api: Api, document: int):
    token, size = credential(api, document)["token"], len(CONTENT)
    for asked, status, content, told in (
        ("bytes=0-3", 206, CONTENT[:4], f"bytes 0-3/{size}"),
        ("bytes=-5", 206, CONTENT[-5:], f"bytes {size - 5}-{size - 1}/{size}"),
        (f"bytes={size - 2}-", 206, CONTENT[-2:], f"bytes {size - 2}-{size - 1}/{size}"),
        (f"bytes=0-{size * 2}", 206, CONTENT, f"bytes 0-{size - 1}/{size}"),
        (f"bytes={size}-", 416, b"", f"bytes */{size}"),
    ):
        got = fetch(api.live, document, token, range=asked)
        assert (got.status_code, got.content, got.headers["content-range"]) == (status, content, told), asked
        assert got.headers["x-request-id"]
    several = fetch(api.live, document, token, range="bytes=0-1,10-12")
    assert several.status_code == 206
    assert several.headers["content-type"].startswith("multipart/byteranges")
    assert CONTENT[10:13] in several.content
    etag = fetch(api.live, document, token).headers["etag"]
    assert fetch(api.live, document, token, range="bytes=0-3", if_range=etag).status_code == 206
    assert fetch(api.live, document, token, range="bytes=0-3", if_range='"another"').status_code == 200
    head = fetch(api.live, document, token, "HEAD")
    assert (head.status_code, head.content, head.headers["content-length"]) == (200, b"", str(size))


def test_what_a_browser_could_run_is_sent_as_an_attachment_only(api: Api):
    base = api.base("Pages")
    page = b"<!doctype html><html><body><script>alert(1)</script></body></html>"
    document = api.add(base, files={"file": ("page.html", page)})
    assert document["mime_type"] == "text/html"
    path = f"/documents/{document['id']}/download"
    assert api.refused("POST", path, json={"disposition": "inline"}) == (415, "unsupported_media_type")
    got = fetch(api.live, document["id"], credential(api, document["id"], "attachment")["token"])
    assert got.headers["content-disposition"].startswith("attachment; ")
    assert got.headers["content-security-policy"] == "sandbox; default-src 'none'"


def test_a_credential_is_good_for_nothing_else(api: Api, document: int):
    token = credential(api, document)["token"]
    other = api.text(api.base("Another"))["id"]
    assert fetch(api.live, other, token).status_code == 401
    assert api.by(token).refused("GET", f"/documents/{document}") == (401, "unauthorized")
    head, body, signature = token.split(".")
    flipped = ("A" if signature[0] != "A" else "B") + signature[1:]
    unsigned = "eyJhbGciOiJub25lIiwidHlwIjoiSldUIn0." + body + "."
    for wrong in ("", "x", "a.b.c", f"{head}.{body}.{flipped}", unsigned, "x" * 5000, api.token):
        got = fetch(api.live, document, wrong)
        assert (got.status_code, got.json()["code"]) == (401, "unauthorized"), wrong
        assert got.headers["www-authenticate"] == 'Bearer realm="almanac"'
    assert fetch(api.live, document, token, authorization=f"Bearer {api.token}").status_code == 200
    bare = api.live.http.get(f"/api/v1/documents/{document}/file", headers={"authorization": f"Bearer {api.token}"})
    assert bare.status_code == 401


def test_a_credential_ends_with_time_role_token_and_document(api: Api, monkeypatch: pytest.MonkeyPatch):
    base = api.base("Ending")
    document = api.add(base, files={"file": ("a.txt", b"hello")})["id"]
    secret = api.live.new_token("otto")
    api.ask("PUT", f"/bases/{base}/shares", 204, json={"role": "Reporter", "user": "otto"})
    otto = api.by(secret)
    token = credential(otto, document)["token"]
    assert fetch(api.live, document, token).status_code == 200

    ago = clock.now() - (downloads.DOWNLOAD_TOKEN_SECONDS + 1) * clock.SECOND
    with monkeypatch.context() as patch:
        patch.setattr(clock, "now", lambda: ago)
        stale = credential(otto, document)["token"]
    assert fetch(api.live, document, stale).status_code == 401

    api.ask("DELETE", f"/bases/{base}/shares", 204, params={"user": "otto"})
    assert fetch(api.live, document, token).status_code == 403
    api.ask("PUT", f"/bases/{base}/shares", 204, json={"role": "RestrictedAnalyst", "user": "otto"})
    assert fetch(api.live, document, token).status_code == 403
    api.ask("PUT", f"/bases/{base}/shares", 204, json={"role": "Reporter", "user": "otto"})
    assert fetch(api.live, document, token).status_code == 200

    api.ask("DELETE", f"/documents/{document}", 204)
    assert fetch(api.live, document, token).status_code == 404
    api.ask("POST", f"/documents/{document}/restore")
    assert fetch(api.live, document, token).status_code == 200

    async def revoke(tx: Transaction) -> None:
        holder = await principals.get_by_name(tx, (await orgs.get_by_name(tx, first_start.ORG)).id, "otto")
        for each in await tokens.find(tx, holder):
            await tokens.revoke(tx, each.id)

    api.live.run(lambda db: db.write(revoke))
    assert fetch(api.live, document, token).status_code == 401


def test_a_download_is_in_the_trail_as_its_holder_s(api: Api, document: int):
    token = credential(api, document)["token"]
    fetch(api.live, document, token, x_request_id="a-download-1")
    [row] = audit_of(api.live, "a-download-1")
    assert (row["surface"], row["tool"], row["outcome"], row["actor"]) == ("rest", "download_file", "ok", "admin")
    assert f"document:{document}" in row["touched"].split()
