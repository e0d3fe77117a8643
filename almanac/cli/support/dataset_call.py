"""The caller of a command about datasets, and the dataset that it names."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Annotated, cast

import typer

from almanac.bootstrap import signing_key
from almanac.cli.support import operator_call
from almanac.core.call import Call
from almanac.core.database import Database
from almanac.core.errors import Conflict, NotFound
from almanac.core.settings import Settings
from almanac.data import datasets
from almanac.data.dataset import Dataset
from almanac.data.engine import DataEngine, open_data
from almanac.files.file_store import FileStore
from almanac.identity import orgs, principals
from almanac.operations.context import AppContext, RequestContext
from almanac.operations.models import MAX_PAGE_ITEMS

DatasetKey = Annotated[str, typer.Argument(metavar="NAME", help="A dataset, by its name or id.", show_default=False)]
ActAs = Annotated[
    str | None,
    typer.Option(
        "--user",
        help="Act as this user or agent, with their permissions; without it, as the operator, who may do everything.",
        show_default=False,
    ),
]


@dataclass(frozen=True, slots=True)
class DataResources:
    """The part of `AppContext` that a command about rows opens. Opening all of it takes seconds."""

    settings: Settings
    db: Database
    data: DataEngine


async def call_as(db: Database, org: str | None, user: str | None) -> Call:
    """Return a call of a user or agent with their permissions, or of the operator."""
    if user is None:
        return await operator_call.call_for_org(db, org)
    organisation = await orgs.get_by_name(db, org)
    principal = await principals.get_by_name(db, organisation.id, user)
    return operator_call.call_as_principal(db, organisation, principal)


async def call_on(db: Database, org: str | None, user: str | None, key: str) -> tuple[Call, Dataset]:
    """Return a call on a dataset. The operator acts in the name of its owner, because a change has an author."""
    call = await call_as(db, org, user)
    dataset = await datasets.get_by_key(db, call, key)
    if user is None:
        call = await operator_call.call_for_org(db, call.actor.org_name, dataset.owner_name)
    return call, dataset


async def call_on_removed(db: Database, org: str | None, user: str | None, key: str) -> tuple[Call, Dataset]:
    """Do the same for a dataset in the trash."""
    call = await call_as(db, org, user)
    page = await datasets.find(call, removed=True, limit=MAX_PAGE_ITEMS)
    named = [each for each in page.items if datasets.fold(key) == datasets.fold(each.name)]
    found = named or [each for each in page.items if key == str(each.id)]
    if not found:
        raise NotFound(f"There is no dataset {key!r} in the trash.", remedy="See 'almanac data trash'.")
    if len(found) > 1:
        ids = ", ".join(str(each.id) for each in found)
        raise Conflict(f"{len(found)} datasets named {key!r} are in the trash.", remedy=f"Use an id: {ids}.")
    if user is None:
        call = await operator_call.call_for_org(db, call.actor.org_name, found[0].owner_name)
    return call, found[0]


@asynccontextmanager
async def open_data_request(settings: Settings, call: Call) -> AsyncGenerator[RequestContext]:
    """Return the request of a call, for operations on rows."""
    files = FileStore(settings.home, settings.max_file_bytes)
    try:
        async with open_data(files, signing_key(settings), settings) as data:
            app = cast("AppContext", DataResources(settings, call.db, data))
            yield RequestContext(call.actor, call.db, call.request_id, app=app)
    finally:
        files.close()
