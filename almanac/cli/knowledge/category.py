"""`almanac category`: the tree of categories in a catalogue."""

from typing import Annotated, Any

import typer

from almanac.catalogue import categories
from almanac.catalogue.categories import TOP, Tree
from almanac.cli.support import operator_call
from almanac.cli.support.options import Json, Name, OrgName, command_group
from almanac.cli.support.output import print_line, print_rows
from almanac.cli.support.startup import database_command
from almanac.core.database import Database

categories_app = command_group("Categories: the tree that groups the entities of the catalogue.")


@categories_app.command("add")
@database_command
async def add_category(
    db: Database,
    name: Name,
    parent: Annotated[
        str | None,
        typer.Option("--parent", help="Put it below this category: its id, alias, name or path.", show_default=False),
    ] = None,
    alias: Annotated[
        str | None, typer.Option("--alias", help="The key or id of its alias.", show_default=False)
    ] = None,
    description: Annotated[str, typer.Option("--description", help="A summary of its entities.")] = "",
    org: OrgName = None,
) -> None:
    """Add a category to the catalogue, at the top or below another one; prints its id.

    Example: [bold]almanac category add "Pressure washers" --description "Machines that clean with water"[/bold]
    """
    call = await operator_call.call_for_org(db, org)
    added = await db.write(
        lambda tx: categories.add(tx, call, name, description=description, alias=alias, parent=parent)
    )
    print_line(added.id)


@categories_app.command("list")
@database_command
async def list_categories(db: Database, org: OrgName = None, as_json: Json = False) -> None:
    """List the categories of the catalogue with their paths. "entities" counts those directly in a category.

    Example: [bold]almanac category list[/bold]
    """
    call = await operator_call.call_for_org(db, org)
    tree = await categories.tree(db, call.actor.org_id)
    counts = await categories.counts(db, call.actor.org_id)
    print_rows(_rows(tree, counts, TOP), as_json, empty="No category yet: almanac category add NAME")


def _rows(tree: Tree, counts: dict[int, int], parent: int) -> list[dict[str, Any]]:
    """Return the categories below one, each followed by those below it."""
    rows: list[dict[str, Any]] = []
    for category in tree.children(parent):
        rows.append(
            {
                "id": category.id,
                "path": "/".join(tree.path(category.number)),
                "alias": category.alias_key,
                "entities": counts.get(category.number, 0),
                "description": category.description,
            }
        )
        rows += _rows(tree, counts, category.number)
    return rows
