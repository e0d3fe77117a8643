"""The operations that hand out a download token and send the file for it."""

import re

from almanac.knowledge import downloads
from almanac.knowledge.downloads import BadCredential
from almanac.net.http_exchange import HttpExchange
from almanac.net.query_string import read_query_string
from almanac.operations.context import AppContext, Authentication, RequestContext
from almanac.operations.document_models import DownloadDocument, DownloadFile, DownloadInfo
from almanac.operations.models import read_operation
from almanac.operations.operation import Example, Mcp, Rest
from almanac.operations.pipeline.file_answer import FileAnswer

_NUMBER = re.compile(r"[0-9]{1,19}")
_HEADER = downloads.DOWNLOAD_HEADER.lower().encode()


async def download_document(ctx: RequestContext, args: DownloadDocument) -> DownloadInfo:
    """Where to fetch the original file, with a credential good for five minutes."""
    token = await downloads.issue(ctx, ctx.app.key, args.document_id, args.disposition)
    document = token.document
    return DownloadInfo(
        url=f"{ctx.app.settings.url}{token.path}",
        headers={downloads.DOWNLOAD_HEADER: token.token},
        expires_in=token.seconds,
        file_name=document.name,
        mime_type=document.mime_type,
        size=document.size,
        disposition=token.disposition,
    )


async def by_download_token(app: AppContext, http: HttpExchange) -> Authentication:
    """Authenticate the holder of the download token in the header or in the query string."""
    token = http.headers.get(_HEADER, b"").decode("latin-1") or read_query_string(http).get("token", "")
    document_id = http.scope["path_params"]["document_id"]
    if not token or not _NUMBER.fullmatch(document_id):
        raise BadCredential()
    return Authentication(*await downloads.token_holder(app.db, app.key, token, int(document_id)))


async def download_file(ctx: RequestContext, args: DownloadFile) -> FileAnswer:
    """The original file, for the holder of a download token; whole or in ranges."""
    download = await downloads.open_with_token(ctx, ctx.app.files, args.document_id, ctx.claims)
    return FileAnswer(download.path, download.document.mime_type, download.headers, download.state)


OPERATIONS = (
    read_operation(
        download_document,
        title="Download a document",
        rest=Rest("POST", "/documents/{document_id}/download"),
        mcp=Mcp(),
        covers=("download_file",),
        example=Example(
            {"disposition": "attachment"},
            DownloadInfo(
                url="https://almanac.example.org/api/v1/documents/12/file",
                headers={downloads.DOWNLOAD_HEADER: "eyJhbGciOi…"},
                expires_in=300,
                file_name="pump.pdf",
                mime_type="application/pdf",
                size=48213,
                disposition="attachment",
            ),
        ),
    ),
    read_operation(
        download_file,
        rest=Rest(
            "GET",
            "/documents/{document_id}/file",
            other_statuses={206: "The requested ranges.", 416: "There is no such range."},
            authenticate=by_download_token,
            credentials=("download", "link"),
        ),
    ),
)
