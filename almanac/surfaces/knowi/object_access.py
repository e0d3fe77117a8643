"""Access to objects by the ids of callers.

An object of the caller's organisation that the caller may not use is denied, and the denial is logged. Any other
object, such as one of another organisation, does not exist.
"""

import re

from almanac.core.arguments import MAX_ID
from almanac.core.errors import BadRequest, Forbidden, NotFound
from almanac.data import datasets
from almanac.data.dataset import Dataset
from almanac.knowledge import documents
from almanac.knowledge.documents import Document
from almanac.operations.context import RequestContext
from almanac.surfaces.knowi.responses import AccessDenied

_DOCUMENT_ID = re.compile(r"(?:document:)?([1-9][0-9]{0,18})", re.ASCII)


async def get_document(ctx: RequestContext, id: str, action: str = "read") -> Document:
    """Return a document on which the caller may perform the action."""
    number = _number_of(id)
    try:
        return await documents.get(ctx.db, ctx, number, action)
    except NotFound:
        # The same two queries run for every id, so that no answer takes longer than another.
        if not await documents.exists(ctx, number):
            raise NotFound(
                f"There is no document {id[:100]}.", remedy="Use knowi_list_documents to find IDs."
            ) from None
        raise _denied(ctx, "document", id, "access") from None
    except Forbidden:
        raise _denied(ctx, "document", id, "change") from None


async def get_dataset(ctx: RequestContext, id: int, action: str = "read") -> Dataset:
    """Return a dataset on which the caller may perform the action. Every member of its organisation may read it."""
    try:
        return await datasets.get(ctx.db, ctx, id, action)
    except NotFound:
        raise missing("dataset", id) from None
    except Forbidden:
        raise dataset_denied(ctx, await datasets.get(ctx.db, ctx, id)) from None


def dataset_denied(ctx: RequestContext, dataset: Dataset) -> AccessDenied:
    """Return the denial of a change of a dataset that the caller may read."""
    return _denied(ctx, "dataset", str(dataset.id), "change", f"Ask its owner, {dataset.owner_name}.")


def missing(kind: str, id: int) -> NotFound:
    """Return the error for an id that the caller's organisation does not have."""
    return NotFound(f"There is no {kind} {id}.", remedy="Use an id that a tool has returned.")


def require_confirmation(confirm: bool) -> None:
    """Refuse a deletion that is not confirmed."""
    if not confirm:
        raise BadRequest("confirm must be true to confirm deletion.", remedy="Ask the user, then call again with true.")


def _number_of(id: str) -> int:
    """Return the number in an id; 0, which no document has, for any other text."""
    match = _DOCUMENT_ID.fullmatch(id)
    return int(match[1]) if match and int(match[1]) <= MAX_ID else 0


def _denied(ctx: RequestContext, kind: str, id: str, action: str, remedy: str = "") -> AccessDenied:
    ctx.app.denial_log.record(ctx, kind, id)
    ctx.record_access(kind, id)  # the audit row then names the object, with the outcome access_denied
    return AccessDenied(kind, id, action, remedy)
