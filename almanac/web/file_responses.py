"""Downloads over REST: a credential, and the file it is good for, sent in a way that no browser runs anything of it."""

import re
from dataclasses import replace

from starlette.responses import FileResponse

from almanac.knowledge import downloads
from almanac.knowledge.downloads import BadCredential
from almanac.net.http_exchange import HttpExchange
from almanac.web.rest import Admission, Ask, Rest, read_query
from almanac.web.shapes import AskDownload, AtDocument, AtFile, DownloadFacts

_NUMBER = re.compile(r"[0-9]{1,19}")


async def issue(ask: Ask, at: AtDocument, given: AskDownload) -> DownloadFacts:
    """A credential for a document's file."""
    credential = await downloads.issue(ask, ask.rest.key, at.document_id, given.disposition)
    document = credential.document
    return DownloadFacts(
        url=f"{ask.rest.settings.url}{credential.path}",
        header=downloads.HEADER,
        token=credential.token,
        expires_in=credential.seconds,
        disposition=credential.disposition,
        file_name=document.name,
        mime_type=document.mime_type,
        size=document.size,
    )


async def by_credential(rest: Rest, exchange: HttpExchange) -> Admission:
    """Whoever the credential in the header, or in the query, was given to."""
    given = exchange.headers.get(downloads.HEADER.lower().encode(), b"").decode("latin-1")
    token = given or read_query(exchange).get("token", "")
    document_id = exchange.scope["path_params"]["document_id"]
    if not token or not _NUMBER.fullmatch(document_id):
        raise BadCredential()
    actor, disposition = await downloads.token_holder(rest.db, rest.key, token, int(document_id))
    # The credential itself says what may be done with it, whatever tools its holder's token is limited to.
    return Admission(replace(actor, tools=None), disposition)


async def send(ask: Ask, at: AtFile, _: None) -> FileResponse:
    """The file itself, or the ranges of it that were asked for."""
    found = await downloads.open_with_token(ask, ask.rest.files, at.document_id, ask.says)
    return FileResponse(found.path, headers=found.headers, media_type=found.document.mime_type, stat_result=found.state)
