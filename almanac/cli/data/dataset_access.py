"""The commands that share datasets and restrict their rows. They act in the name of the dataset's owner."""

from typing import Annotated

import typer

from almanac.cli.support.dataset_call import DatasetKey, call_on, open_data_request
from almanac.cli.support.operation_call import parse_arguments, print_answer, request_of
from almanac.cli.support.options import Json, OrgName, Withdraw
from almanac.cli.support.output import print_json, print_rows
from almanac.cli.support.startup import database_command
from almanac.core.database import Database
from almanac.core.errors import BadRequest
from almanac.core.settings import Settings
from almanac.identity import grants
from almanac.operations import datasets as operations
from almanac.operations.datasets import Holder, OneDataset, PutRule, ShareDataset

HolderUser = Annotated[str | None, typer.Option("--user", help="This user or agent.", show_default=False)]
HolderGroup = Annotated[str | None, typer.Option("--group", help="Every member of this group.", show_default=False)]


@database_command
async def share_dataset(
    db: Database,
    name: DatasetKey,
    user: HolderUser = None,
    group: HolderGroup = None,
    role: Annotated[
        str | None, typer.Option("--role", help="Owner, Maintainer, Developer, Reporter or RestrictedAnalyst.")
    ] = None,
    withdraw: Withdraw = False,
    org: OrgName = None,
) -> None:
    """Share a dataset with a user, an agent or a group: Developers push rows, Maintainers manage it. Every member of
    the organisation may query it anyway; a row rule restricts that.

    Example: [bold]almanac data share Orders --user bot --role Developer[/bold]
    """
    if (role is None) != withdraw:
        raise BadRequest("Give either --role or --withdraw.")
    call, dataset = await call_on(db, org, None, name)
    if role is None:
        holder = parse_arguments(Holder, dataset_id=dataset.id, user=user, group=group)
        await operations.unshare_dataset(request_of(call), holder)
    else:
        share = parse_arguments(ShareDataset, dataset_id=dataset.id, user=user, group=group, role=role)
        await operations.share_dataset(request_of(call), share)


@database_command
async def list_shares(db: Database, name: DatasetKey, org: OrgName = None, as_json: Json = False) -> None:
    """List the roles of users, agents and groups on a dataset.

    Example: [bold]almanac data shares Orders[/bold]
    """
    _, dataset = await call_on(db, org, None, name)
    shares = await grants.find(db, dataset.protected_object)
    rows = [{"kind": share.kind, "name": share.name, "role": share.role.name} for share in shares]
    if as_json:
        print_json({"items": rows})
    else:
        print_rows(rows, False, empty="Not shared: almanac data share NAME --user USER --role ROLE")


@database_command
async def set_rule(
    db: Database,
    settings: Settings,
    name: DatasetKey,
    user: HolderUser = None,
    group: HolderGroup = None,
    where: Annotated[
        str, typer.Option("--where", help="Only rows that meet this condition, in SQL; without it, all rows.")
    ] = "",
    hidden: Annotated[
        list[str] | None, typer.Option("--hide", help="A field that they do not see; may be repeated.")
    ] = None,
    lift: Annotated[bool, typer.Option("--lift", help="Remove their rule.")] = False,
    org: OrgName = None,
    as_json: Json = False,
) -> None:
    """Limit the rows and fields of a dataset that a user, an agent or the members of a group see. It replaces their
    rule; if several rules name a caller, all of them apply. Maintainers and owners of the dataset see all of it.

    Example: [bold]almanac data rule Orders --group south --where "region = 'south'" --hide margin[/bold]
    """
    if lift and (where or hidden):
        raise BadRequest("Give either --lift or a rule.")
    call, dataset = await call_on(db, org, None, name)
    if lift:
        holder = parse_arguments(Holder, dataset_id=dataset.id, user=user, group=group)
        await operations.lift_row_rule(request_of(call), holder)
        return
    rule = parse_arguments(PutRule, dataset_id=dataset.id, user=user, group=group, condition=where, hidden=hidden or [])
    async with open_data_request(settings, call) as ctx:
        answer = await operations.set_row_rule(ctx, rule)
    if as_json:
        print_answer(answer)


@database_command
async def list_rules(db: Database, name: DatasetKey, org: OrgName = None, as_json: Json = False) -> None:
    """List the row rules of a dataset, each for a user, an agent or a group.

    Example: [bold]almanac data rules Orders[/bold]
    """
    call, dataset = await call_on(db, org, None, name)
    answer = await operations.list_row_rules(request_of(call), OneDataset(dataset_id=dataset.id))
    if as_json:
        print_answer(answer)
    else:
        rows = [
            {"kind": rule.kind, "name": rule.name, "where": rule.condition, "hidden": ", ".join(rule.hidden)}
            for rule in answer.items
        ]
        print_rows(rows, False, empty="No rule: everyone in the organisation sees all rows.")
