"""`almanac contracts`: the contract.json files of the surfaces."""

from typing import Annotated

import typer

from almanac.app import SURFACES
from almanac.cli.support.options import Json
from almanac.cli.support.output import print_json, print_line
from almanac.surfaces import contracts as contract_files


def contracts(
    check: Annotated[bool, typer.Option("--check", help="Compare only; exit with 1 where they differ.")] = False,
    as_json: Json = False,
) -> None:
    """Write each surface's contract.json from its served tools, or check that they are equal.

    Example: [bold]almanac contracts --check[/bold]
    """
    if not check:
        paths = [str(file) for surface in SURFACES if (file := contract_files.write(surface)) is not None]
        if as_json:
            print_json({"written": paths})
        else:
            print_line("\n".join(paths))
        return
    differing = contract_files.differences(SURFACES)
    if as_json:
        print_json({"differing": differing})
    for name, tools in () if as_json else differing.items():
        print_line(f"{name}: {', '.join(tools)}")
    if differing:
        raise typer.Exit(1)
    if not as_json:
        print_line(f"{len(SURFACES)} contract(s) equal the served tools")
