"""Download tokens are valid for one document, one user and a few minutes, and are checked again on use."""

import base64
import json
from typing import Any

import jwt
import pytest

from almanac.core import clock, scopes
from almanac.core.call import Call
from almanac.core.errors import BadRequest, NotFound
from almanac.identity import principals, tokens
from almanac.identity.roles import Role
from almanac.knowledge import bases, documents, downloads
from almanac.knowledge.documents import Document
from almanac.knowledge.downloads import BadCredential, DownloadForbidden, FileUnavailable, NotPreviewable
from tests.knowledge.workspace import Workspace

KEY = b"a key that is long enough for HS256"
OTHER_KEY = b"another key, no less long than that one"


async def redeem(workspace: Workspace, token: str, document_id: int, key: bytes = KEY) -> downloads.Download:
    """Use a download token as the file endpoint does."""
    actor, disposition = await downloads.token_holder(workspace.db, key, token, document_id)
    return await downloads.open_with_token(Call(actor, workspace.db, "r"), workspace.files, document_id, disposition)


async def claims_for(workspace: Workspace, document: Document) -> dict[str, Any]:
    credential = await downloads.issue(workspace.call, KEY, document.id)
    return jwt.decode(credential.token, KEY, ["HS256"])


def signed(claims: dict[str, Any], key: bytes = KEY) -> str:
    return jwt.encode(claims, key, "HS256")


async def reader(workspace: Workspace) -> tuple[principals.Principal, Call]:
    """A user with whom the base is shared."""
    maria = await workspace.town.add("maria")
    await workspace.do(lambda tx: bases.share(workspace.call, tx, workspace.base.id, Role.Reporter, user="maria"))
    return maria, workspace.town.call(await workspace.town.actor(maria))


async def test_a_download_token_has_the_claims_of_the_contract_and_opens_the_file(workspace: Workspace):
    document = await workspace.add_parsed("a.txt", "A text.")
    for disposition in ("inline", "attachment", " Inline "):
        credential = await downloads.issue(workspace.call, KEY, document.id, disposition)
        claims = jwt.decode(credential.token, KEY, ["HS256"])
        assert claims["type"] == "external_knowledge_document_download"
        assert claims["user_id"] == workspace.owner.id
        assert claims["document_id"] == document.id
        assert claims["disposition"] == credential.disposition == disposition.strip().lower()
        assert 298 <= claims["exp"] - clock.now() // clock.SECOND <= 300
        assert credential.seconds == 300
        download = await redeem(workspace, credential.token, document.id)
        assert download.path.read_text() == "A text."
        assert (download.disposition, download.document.id) == (credential.disposition, document.id)


async def test_two_download_tokens_are_never_the_same(workspace: Workspace):
    document = await workspace.add_parsed("a.txt", "A text.")
    issued = {(await downloads.issue(workspace.call, KEY, document.id)).token for _ in range(5)}
    assert len(issued) == 5


@pytest.mark.parametrize("disposition", ["", "both", "attachment; filename=x", "inline\n"])
async def test_only_two_dispositions_are_accepted(workspace: Workspace, disposition: str):
    document = await workspace.add_parsed("a.txt", "A text.")
    if disposition.strip() in downloads.DISPOSITIONS:
        assert (await downloads.issue(workspace.call, KEY, document.id, disposition)).disposition == "inline"
    else:
        with pytest.raises(BadRequest, match="disposition must be either inline or attachment"):
            await downloads.issue(workspace.call, KEY, document.id, disposition)


async def test_a_download_token_is_valid_for_its_own_document_only(workspace: Workspace):
    document, other = await workspace.add_parsed("a.txt", "A."), await workspace.add_parsed("b.txt", "B.")
    credential = await downloads.issue(workspace.call, KEY, document.id)
    with pytest.raises(BadCredential):
        await redeem(workspace, credential.token, other.id)


async def test_a_download_token_is_valid_until_it_expires(workspace: Workspace):
    document = await workspace.add_parsed("a.txt", "A.")
    claims = await claims_for(workspace, document)
    now = clock.now() // clock.SECOND
    await redeem(workspace, signed({**claims, "exp": now + 5}), document.id)
    for late in (now, now - 1, now - 1_000_000, 0, -1):
        with pytest.raises(BadCredential, match="Invalid or expired download token"):
            await redeem(workspace, signed({**claims, "exp": late}), document.id)


@pytest.mark.parametrize("claim", ["exp", "type", "user_id", "document_id", "disposition", "token_id"])
async def test_a_download_token_without_a_claim_is_refused(workspace: Workspace, claim: str):
    document = await workspace.add_parsed("a.txt", "A.")
    claims = await claims_for(workspace, document)
    del claims[claim]
    with pytest.raises(BadCredential):
        await redeem(workspace, signed(claims), document.id)


@pytest.mark.parametrize(
    ("claim", "value"),
    [
        ("type", "session"),
        ("user_id", "1"),
        ("user_id", True),
        ("user_id", 1.0),
        ("user_id", None),
        ("user_id", 999_999),
        ("document_id", "1"),
        ("document_id", True),
        ("document_id", [1]),
        ("token_id", 999_999),
        ("token_id", "1"),
        ("token_id", None),
        ("disposition", "both"),
        ("disposition", None),
        ("exp", "soon"),
        ("nbf", 99_999_999_999),
    ],
)
async def test_an_invalid_claim_is_refused_even_with_a_valid_signature(workspace: Workspace, claim: str, value: Any):
    document = await workspace.add_parsed("a.txt", "A.")
    claims = await claims_for(workspace, document)
    assert document.id == 1  # True, 1.0 and "1" would pass a loose comparison
    with pytest.raises(BadCredential):
        await redeem(workspace, signed({**claims, claim: value}), document.id)


async def test_a_manipulated_download_token_is_refused(workspace: Workspace):
    document = await workspace.add_parsed("a.txt", "A.")
    claims = await claims_for(workspace, document)
    token = signed(claims)
    head, body, mark = token.split(".")
    unsigned = _part({"alg": "none", "typ": "JWT"})
    forged = _part({**claims, "document_id": document.id, "user_id": 2})
    for bad in (
        signed(claims, OTHER_KEY),
        f"{head}.{forged}.{mark}",
        f"{unsigned}.{body}.",
        f"{unsigned}.{body}.{mark}",
        f"{_part({'alg': 'HS512', 'typ': 'JWT'})}.{body}.{mark}",
        f"{_part({'alg': 'RS256', 'typ': 'JWT'})}.{body}.{mark}",
        jwt.encode(claims, KEY * 2, "HS512"),
        f"{head}.{body}.",
        f"{head}.{body}",
        token[:-4],
        token + "A",
        "",
        "..",
        "not a token",
        "\ud800",
        "x" * 100_000,
    ):
        with pytest.raises(BadCredential):
            await redeem(workspace, bad, document.id)
    await redeem(workspace, token, document.id)
    with pytest.raises(BadCredential):
        await redeem(workspace, token, document.id, OTHER_KEY)


async def test_the_download_token_of_a_removed_user_is_refused(workspace: Workspace):
    document = await workspace.add_parsed("a.txt", "A.")
    maria, call = await reader(workspace)
    credential = await downloads.issue(call, KEY, document.id)
    await redeem(workspace, credential.token, document.id)
    await workspace.do(lambda tx: principals.remove(tx, maria))
    with pytest.raises(BadCredential):
        await redeem(workspace, credential.token, document.id)


async def test_a_download_token_ends_with_the_token_of_its_request(workspace: Workspace):
    document = await workspace.add_parsed("a.txt", "A.")
    maria, call = await reader(workspace)
    other = workspace.town.call(await workspace.town.actor(maria))
    credential, through_other = [await downloads.issue(c, KEY, document.id) for c in (call, other)]
    await workspace.do(lambda tx: tokens.revoke(tx, call.actor.token_id))
    with pytest.raises(BadCredential):
        await redeem(workspace, credential.token, document.id)
    await redeem(workspace, through_other.token, document.id)


async def test_a_download_token_is_refused_after_the_token_of_its_request_has_expired(workspace: Workspace):
    document = await workspace.add_parsed("a.txt", "A.")
    credential = await downloads.issue(workspace.call, KEY, document.id)
    await workspace.do(lambda tx: tx.execute("UPDATE tokens SET expires_at = $1", clock.now() - 1))
    with pytest.raises(BadCredential):
        await redeem(workspace, credential.token, document.id)


async def test_the_limits_of_a_token_apply_to_its_download_tokens(workspace: Workspace):
    document = await workspace.add_parsed("a.txt", "A.")
    claims = await claims_for(workspace, document)
    limited = await workspace.town.actor(workspace.owner, bases=[9_999])
    with pytest.raises(DownloadForbidden):
        await redeem(workspace, signed({**claims, "token_id": limited.token_id}), document.id)


async def test_permission_is_checked_again_when_the_file_is_downloaded(workspace: Workspace):
    document = await workspace.add_parsed("a.txt", "A.")
    _, call = await reader(workspace)
    credential = await downloads.issue(call, KEY, document.id)
    await workspace.do(lambda tx: bases.share(workspace.call, tx, workspace.base.id, None, user="maria"))
    with pytest.raises(DownloadForbidden, match="Access denied to this document"):
        await redeem(workspace, credential.token, document.id)


async def test_a_document_that_was_removed_in_the_meantime_is_not_sent(workspace: Workspace):
    document = await workspace.add_parsed("a.txt", "A.")
    credential = await downloads.issue(workspace.call, KEY, document.id)
    await workspace.do(lambda tx: documents.remove(workspace.call, tx, [document.id]))
    with pytest.raises(NotFound):
        await redeem(workspace, credential.token, document.id)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.html", "<!DOCTYPE html><html><body><script>alert(1)</script></body></html>"),
        ("a.txt", "<!DOCTYPE html><html><body><script>alert(1)</script></body></html>"),
        ("a.svg", '<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>'),
        ("a.png", "<svg xmlns='http://www.w3.org/2000/svg' onload='alert(1)'/>"),
        ("a.xml", "<?xml version='1.0'?><a/>"),
    ],
)
async def test_a_file_that_a_browser_would_run_is_never_sent_inline(workspace: Workspace, name: str, content: str):
    document = (await workspace.add(name, content)).document
    with pytest.raises(NotPreviewable, match="not previewable"):
        await downloads.issue(workspace.call, KEY, document.id)
    claims = jwt.decode((await downloads.issue(workspace.call, KEY, document.id, "attachment")).token, KEY, ["HS256"])
    assert (await redeem(workspace, signed(claims), document.id)).disposition == "attachment"
    with pytest.raises(NotPreviewable):
        await redeem(workspace, signed({**claims, "disposition": "inline"}), document.id)


async def test_an_inline_download_token_is_refused_after_the_file_type_has_changed(workspace: Workspace):
    document = await workspace.add_parsed("a.txt", "A.")
    credential = await downloads.issue(workspace.call, KEY, document.id)
    await workspace.replace(document.id, "<!DOCTYPE html><html><body><script>alert(1)</script></body></html>")
    with pytest.raises(NotPreviewable):
        await redeem(workspace, credential.token, document.id)


async def test_a_file_missing_on_disk_is_unavailable(workspace: Workspace):
    document = await workspace.add_parsed("a.txt", "A.")
    credential = await downloads.issue(workspace.call, KEY, document.id)
    workspace.files.path(document.blob_name).unlink()
    with pytest.raises(FileUnavailable, match="Document file is unavailable") as caught:
        await redeem(workspace, credential.token, document.id)
    assert str(workspace.home) not in caught.value.text
    with pytest.raises(FileUnavailable):
        await downloads.issue(workspace.call, KEY, document.id, files=workspace.files)


async def test_a_user_authenticated_by_a_gateway_gets_download_tokens_without_a_token(workspace: Workspace):
    document = await workspace.add_parsed("a.txt", "A.")
    actor = await tokens.actor_for_trusted_user(workspace.db, workspace.owner.id)
    assert actor is not None
    assert (actor.name, actor.token_id, actor.scopes) == ("owner", 0, scopes.UNPRIVILEGED_SCOPES)
    credential = await downloads.issue(workspace.town.call(actor), KEY, document.id)
    assert (await redeem(workspace, credential.token, document.id)).path.read_text() == "A."
    await workspace.do(lambda tx: principals.remove(tx, workspace.owner))
    with pytest.raises(BadCredential):
        await redeem(workspace, credential.token, document.id)


def _part(value: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()
