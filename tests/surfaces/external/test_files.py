"""The file endpoint: a credential for one user, one document and one disposition, and the checks at its use."""

import time
from typing import Any

import jwt
import pytest

from almanac.bootstrap import signing_key
from almanac.core.database import Database
from almanac.files.file_store import FileStore
from almanac.identity.roles import Role
from almanac.knowledge import bases, documents
from tests.surfaces.external.caller import HEADER, PAGE, TEXTS, Caller, Town, acting, add_document, failed
from tests.surfaces.wire import audit_of

pytestmark = pytest.mark.xdist_group("external")

OTHER_KEY = "another key, no shorter than the algorithm asks for"
REFUSED = failed("unauthorized", "Invalid or expired download token")


def claims_of(credential: Any) -> dict[str, Any]:
    return jwt.decode(credential["headers"][HEADER], options={"verify_signature": False})


def signed(ada: Caller, claims: dict[str, Any]) -> str:
    return jwt.encode(claims, signing_key(ada.live.settings), "HS256")


def test_a_file_is_sent_as_it_came_and_named(town: Town, ada: Caller):
    credential = ada.download(document_id=town["guide"], disposition="attachment")
    response = ada.redeem(credential)
    assert (response.status_code, response.text) == (200, TEXTS["guide"])
    assert response.headers["content-type"].startswith("text/markdown")
    assert response.headers["content-disposition"] == ("attachment; filename=\"guide.md\"; filename*=UTF-8''guide.md")
    assert response.headers["x-content-type-options"] == "nosniff"
    inline = ada.redeem(ada.download(document_id=town["guide"]))
    assert inline.headers["content-disposition"].startswith("inline; ")


def test_a_name_is_sent_percent_encoded(town: Town, bob: Caller):
    name = "plan & „Pumpe' 水.txt"
    document = bob.live.run(lambda db: _added(db, bob, town, name))
    response = bob.redeem(bob.download(document_id=document))
    encoded = "plan%20%26%20%E2%80%9EPumpe%27%20%E6%B0%B4.txt"
    assert response.headers["content-disposition"] == f"inline; filename=\"{encoded}\"; filename*=UTF-8''{encoded}"


async def _added(db: Database, bob: Caller, town: Town, name: str) -> int:
    files = FileStore(bob.live.settings.home, 1_000_000)
    made = await add_document(db, files, await acting(db, bob), town["bobs"], name, f"Text of {name}\n")
    files.close()
    return made


def test_a_credential_is_a_signed_statement_of_what_it_is_good_for(town: Town, ada: Caller):
    before = time.time()
    credential = ada.download(document_id=town["guide"])
    token = credential["headers"][HEADER]
    claims = jwt.decode(token, signing_key(ada.live.settings), ["HS256"])
    assert claims["type"] == "external_knowledge_document_download"
    assert (claims["user_id"], claims["document_id"], claims["disposition"]) == (town["ada"], town["guide"], "inline")
    assert 299 <= claims["exp"] - before <= 301


def test_no_bearer_is_asked_for_and_none_helps(town: Town, ada: Caller):
    credential = ada.download(document_id=town["guide"])
    assert ada.redeem(credential).status_code == 200
    for token in (None, "", "x.y.z"):
        response = ada.fetch(town["guide"], token, authorization=f"Bearer {ada.token}")
        assert (response.status_code, response.json()) == (401, REFUSED)


def test_a_credential_for_another_document_user_or_disposition_or_past_its_time_is_refused(town: Town, ada: Caller):
    credential = ada.download(document_id=town["guide"])
    token, claims = credential["headers"][HEADER], claims_of(credential)
    head, body, mark = token.split(".")
    wrong = [
        (town["page"], token),  # another document
        (town["guide"], signed(ada, {**claims, "exp": int(time.time()) - 1})),
        (town["guide"], signed(ada, {**claims, "type": "session"})),
        (town["guide"], signed(ada, {**claims, "disposition": "both"})),
        (town["guide"], signed(ada, {**claims, "user_id": str(claims["user_id"])})),
        (town["guide"], signed(ada, {**claims, "document_id": str(town["guide"])})),
        (town["guide"], signed(ada, {**claims, "user_id": town["bob"]})),  # not the caller who requested it
        (town["guide"], f"{head}.{body}.{mark[:-2]}AA"),
        (town["guide"], jwt.encode({**claims, "disposition": "attachment"}, OTHER_KEY, "HS256")),
        (town["guide"], jwt.encode({**claims, "user_id": town["bob"]}, OTHER_KEY, "HS256")),
        (9_999_999_999_999_999_999, token),
        (10**40, token),
    ]
    for document_id, each in wrong:
        response = ada.fetch(document_id, each)
        assert (response.status_code, response.json()) == (401, REFUSED)
    assert ada.fetch(town["guide"], token).status_code == 200


def test_permission_that_was_revoked_after_the_credential_was_given_is_forbidden(town: Town, ada: Caller):
    async def share(db: Database, role: Role | None) -> None:
        call = await acting(db, ada)
        await db.write(lambda tx: bases.share(call, tx, town["own"], role, user="bob"))

    bob = town.caller("bob")
    ada.live.run(lambda db: share(db, Role.Reporter))
    credential = bob.download(document_id=town["guide"])
    assert bob.redeem(credential).status_code == 200
    for role in (Role.RestrictedAnalyst, None):
        ada.live.run(lambda db, role=role: share(db, role))
        response = bob.redeem(credential)
        assert (response.status_code, response.json()) == (403, failed("forbidden", "Access denied to this document"))


def test_a_document_that_is_gone_is_not_found_and_a_file_that_is_gone_unavailable(town: Town, bob: Caller):
    document = bob.live.run(lambda db: _added(db, bob, town, "gone.txt"))
    credential = bob.download(document_id=document)

    async def blob(db: Database) -> str:
        return (await documents.get(db, await acting(db, bob), document)).blob_name

    path = FileStore(bob.live.settings.home, 1).path(bob.live.run(blob))
    hidden = path.rename(path.with_suffix(".hidden"))
    unavailable = failed("file_unavailable", "Document file is unavailable")
    response = bob.redeem(credential)
    assert (response.status_code, response.json()) == (404, unavailable)
    assert bob.download(document_id=document) == unavailable
    hidden.rename(path)

    async def remove(db: Database) -> None:
        call = await acting(db, bob)
        await db.write(lambda tx: documents.remove(call, tx, [document]))

    bob.live.run(remove)
    response = bob.redeem(credential)
    assert (response.status_code, response.json()) == (404, failed("not_found", "Document not found"))


def test_what_became_unfit_for_preview_is_not_sent_inline(town: Town, ada: Caller):
    attachment = ada.download(document_id=town["page"], disposition="attachment")
    claims = claims_of(attachment)
    response = ada.fetch(town["page"], signed(ada, {**claims, "disposition": "inline"}))
    assert (response.status_code, response.json()) == (
        415, failed("unsupported_media_type", "Document file is not previewable")
    )  # fmt: skip
    assert ada.redeem(attachment).text == PAGE


def test_a_part_of_a_file_can_be_asked_for(town: Town, ada: Caller):
    credential = ada.download(document_id=town["guide"])
    response = ada.live.http.get(credential["resource_url"], headers={**credential["headers"], "range": "bytes=2-6"})
    assert (response.status_code, response.text) == (206, "Pumps")
    assert ada.live.http.post(credential["resource_url"], headers=credential["headers"]).status_code == 405


def test_two_credentials_in_one_request_are_refused(town: Town, ada: Caller):
    token = ada.download(document_id=town["guide"])["headers"][HEADER]
    response = ada.live.http.get(
        f"/mcp/knowledge-external/documents/{town['guide']}/file", headers=[(HEADER, token), (HEADER, token)]
    )
    assert response.status_code == 400


@pytest.mark.parametrize("outcome", ["ok", "forbidden"])
def test_every_download_with_a_good_credential_is_in_the_audit_trail(town: Town, ada: Caller, outcome: str):
    credential = ada.download(document_id=town["guide"])
    if outcome == "forbidden":
        token = signed(ada, {**claims_of(credential), "document_id": town["secret"]})
        status = ada.fetch(town["secret"], token, **{"x-request-id": f"file-{outcome}"}).status_code
        assert status == 403
    else:
        headers = {**credential["headers"], "x-request-id": f"file-{outcome}"}
        assert ada.live.http.get(credential["resource_url"], headers=headers).status_code == 200
    [row] = audit_of(ada.live, f"file-{outcome}")
    assert (row["actor"], row["surface"], row["tool"], row["outcome"]) == ("ada", "external", "document_file", outcome)
