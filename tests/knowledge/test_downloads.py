"""Download credentials: good for one document, one person and a few minutes, and checked again when they are used."""

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
from tests.knowledge.library import Library

KEY = b"a key that is long enough for HS256"
OTHER_KEY = b"another key, no less long than that one"


async def redeem(library: Library, token: str, document_id: int, key: bytes = KEY) -> downloads.Download:
    """As the file endpoint does."""
    actor, disposition = await downloads.token_holder(library.db, key, token, document_id)
    return await downloads.open_with_token(Call(actor, library.db, "r"), library.files, document_id, disposition)


async def claims_for(library: Library, document: Document) -> dict[str, Any]:
    credential = await downloads.issue(library.call, KEY, document.id)
    return jwt.decode(credential.token, KEY, ["HS256"])


def signed(claims: dict[str, Any], key: bytes = KEY) -> str:
    return jwt.encode(claims, key, "HS256")


async def reader(library: Library) -> tuple[principals.Principal, Call]:
    """Somebody with whom the base is shared."""
    maria = await library.town.add("maria")
    await library.do(lambda tx: bases.share(library.call, tx, library.base.id, Role.Reporter, user="maria"))
    return maria, library.town.call(await library.town.actor(maria))


async def test_a_credential_says_what_the_contract_says_and_opens_the_file(library: Library):
    document = await library.shelve("a.txt", "A text.")
    for disposition in ("inline", "attachment", " Inline "):
        credential = await downloads.issue(library.call, KEY, document.id, disposition)
        claims = jwt.decode(credential.token, KEY, ["HS256"])
        assert claims["type"] == "external_knowledge_document_download"
        assert claims["user_id"] == library.librarian.id
        assert claims["document_id"] == document.id
        assert claims["disposition"] == credential.disposition == disposition.strip().lower()
        assert 298 <= claims["exp"] - clock.now() // clock.SECOND <= 300
        assert credential.seconds == 300
        download = await redeem(library, credential.token, document.id)
        assert download.path.read_text() == "A text."
        assert (download.disposition, download.document.id) == (credential.disposition, document.id)


async def test_two_credentials_are_never_the_same(library: Library):
    document = await library.shelve("a.txt", "A text.")
    issued = {(await downloads.issue(library.call, KEY, document.id)).token for _ in range(5)}
    assert len(issued) == 5


@pytest.mark.parametrize("disposition", ["", "both", "attachment; filename=x", "inline\n"])
async def test_a_disposition_is_one_of_two(library: Library, disposition: str):
    document = await library.shelve("a.txt", "A text.")
    if disposition.strip() in downloads.DISPOSITIONS:
        assert (await downloads.issue(library.call, KEY, document.id, disposition)).disposition == "inline"
    else:
        with pytest.raises(BadRequest, match="disposition must be either inline or attachment"):
            await downloads.issue(library.call, KEY, document.id, disposition)


async def test_a_credential_is_good_for_its_own_document_only(library: Library):
    document, other = await library.shelve("a.txt", "A."), await library.shelve("b.txt", "B.")
    credential = await downloads.issue(library.call, KEY, document.id)
    with pytest.raises(BadCredential):
        await redeem(library, credential.token, other.id)


async def test_a_credential_is_good_until_it_expires_and_not_a_second_longer(library: Library):
    document = await library.shelve("a.txt", "A.")
    claims = await claims_for(library, document)
    now = clock.now() // clock.SECOND
    await redeem(library, signed({**claims, "exp": now + 5}), document.id)
    for late in (now, now - 1, now - 1_000_000, 0, -1):
        with pytest.raises(BadCredential, match="Invalid or expired download token"):
            await redeem(library, signed({**claims, "exp": late}), document.id)


@pytest.mark.parametrize("claim", ["exp", "type", "user_id", "document_id", "disposition", "token_id"])
async def test_a_credential_that_lacks_a_claim_is_none(library: Library, claim: str):
    document = await library.shelve("a.txt", "A.")
    claims = await claims_for(library, document)
    del claims[claim]
    with pytest.raises(BadCredential):
        await redeem(library, signed(claims), document.id)


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
async def test_a_claim_of_another_kind_is_refused_even_with_our_signature(library: Library, claim: str, value: Any):
    document = await library.shelve("a.txt", "A.")
    claims = await claims_for(library, document)
    assert document.id == 1  # so that True, 1.0 and "1" would pass where a comparison is loose
    with pytest.raises(BadCredential):
        await redeem(library, signed({**claims, claim: value}), document.id)


async def test_a_credential_that_was_tampered_with_is_refused(library: Library):
    document = await library.shelve("a.txt", "A.")
    claims = await claims_for(library, document)
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
            await redeem(library, bad, document.id)
    await redeem(library, token, document.id)
    with pytest.raises(BadCredential):
        await redeem(library, token, document.id, OTHER_KEY)


async def test_whoever_was_removed_cannot_use_what_they_were_given(library: Library):
    document = await library.shelve("a.txt", "A.")
    maria, call = await reader(library)
    credential = await downloads.issue(call, KEY, document.id)
    await redeem(library, credential.token, document.id)
    await library.do(lambda tx: principals.remove(tx, maria))
    with pytest.raises(BadCredential):
        await redeem(library, credential.token, document.id)


async def test_a_credential_ends_with_the_token_it_was_asked_for_with(library: Library):
    document = await library.shelve("a.txt", "A.")
    maria, call = await reader(library)
    other = library.town.call(await library.town.actor(maria))
    credential, through_other = [await downloads.issue(c, KEY, document.id) for c in (call, other)]
    await library.do(lambda tx: tokens.revoke(tx, call.actor.token_id))
    with pytest.raises(BadCredential):
        await redeem(library, credential.token, document.id)
    await redeem(library, through_other.token, document.id)


async def test_a_credential_of_a_token_that_has_expired_meanwhile_is_refused(library: Library):
    document = await library.shelve("a.txt", "A.")
    credential = await downloads.issue(library.call, KEY, document.id)
    await library.do(lambda tx: tx.execute("UPDATE tokens SET expires_at = $1", clock.now() - 1))
    with pytest.raises(BadCredential):
        await redeem(library, credential.token, document.id)


async def test_a_token_s_own_limits_hold_for_its_credentials(library: Library):
    document = await library.shelve("a.txt", "A.")
    claims = await claims_for(library, document)
    limited = await library.town.actor(library.librarian, bases=[9_999])
    with pytest.raises(DownloadForbidden):
        await redeem(library, signed({**claims, "token_id": limited.token_id}), document.id)


async def test_permission_is_asked_for_again_when_the_file_is_fetched(library: Library):
    document = await library.shelve("a.txt", "A.")
    _, call = await reader(library)
    credential = await downloads.issue(call, KEY, document.id)
    await library.do(lambda tx: bases.share(library.call, tx, library.base.id, None, user="maria"))
    with pytest.raises(DownloadForbidden, match="Access denied to this document"):
        await redeem(library, credential.token, document.id)


async def test_a_document_that_was_removed_meanwhile_is_not_sent(library: Library):
    document = await library.shelve("a.txt", "A.")
    credential = await downloads.issue(library.call, KEY, document.id)
    await library.do(lambda tx: documents.remove(library.call, tx, [document.id]))
    with pytest.raises(NotFound):
        await redeem(library, credential.token, document.id)


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
async def test_what_a_browser_would_run_is_sent_as_a_file_to_keep_and_never_inline(
    library: Library, name: str, content: str
):
    document = (await library.add(name, content)).document
    with pytest.raises(NotPreviewable, match="not previewable"):
        await downloads.issue(library.call, KEY, document.id)
    claims = jwt.decode((await downloads.issue(library.call, KEY, document.id, "attachment")).token, KEY, ["HS256"])
    assert (await redeem(library, signed(claims), document.id)).disposition == "attachment"
    with pytest.raises(NotPreviewable):
        await redeem(library, signed({**claims, "disposition": "inline"}), document.id)


async def test_an_inline_credential_does_not_outlive_a_replacement_by_something_else(library: Library):
    document = await library.shelve("a.txt", "A.")
    credential = await downloads.issue(library.call, KEY, document.id)
    await library.replace(document.id, "<!DOCTYPE html><html><body><script>alert(1)</script></body></html>")
    with pytest.raises(NotPreviewable):
        await redeem(library, credential.token, document.id)


async def test_a_file_that_has_gone_from_the_disk_is_said_to_be_unavailable(library: Library):
    document = await library.shelve("a.txt", "A.")
    credential = await downloads.issue(library.call, KEY, document.id)
    library.files.path(document.blob_name).unlink()
    with pytest.raises(FileUnavailable, match="Document file is unavailable") as caught:
        await redeem(library, credential.token, document.id)
    assert str(library.home) not in caught.value.text
    with pytest.raises(FileUnavailable):
        await downloads.issue(library.call, KEY, document.id, files=library.files)


async def test_a_user_whom_a_gateway_vouches_for_has_credentials_without_a_token(library: Library):
    document = await library.shelve("a.txt", "A.")
    actor = await tokens.actor_for_trusted_user(library.db, library.librarian.id)
    assert actor is not None
    assert (actor.name, actor.token_id, actor.scopes) == ("librarian", 0, scopes.UNPRIVILEGED_SCOPES)
    credential = await downloads.issue(library.town.call(actor), KEY, document.id)
    assert (await redeem(library, credential.token, document.id)).path.read_text() == "A."
    await library.do(lambda tx: principals.remove(tx, library.librarian))
    with pytest.raises(BadCredential):
        await redeem(library, credential.token, document.id)


def _part(value: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()
