"""Arguments and options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

from almanac.core import clock
from almanac.core.errors import BadRequest

Home = Annotated[Path | None, typer.Option("--home", help="Folder with the data (ALMANAC_HOME).", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")]
Withdraw = Annotated[bool, typer.Option("--withdraw", help="Take their role back.")]
OrgName = Annotated[
    str | None, typer.Option("--org", help="Organisation; may be left out while there is only one.", show_default=False)
]
SearchMode = Annotated[
    str, typer.Option("--mode", help="hybrid, vector (by meaning) or keyword (by exact words).", metavar="MODE")
]
NoWait = Annotated[bool, typer.Option("--no-wait", help="Only queue the documents; the worker of a server reads them.")]
WaitForVectors = Annotated[bool, typer.Option("--wait", help="Also embed the passages, and wait for their vectors.")]

Name = Annotated[str, typer.Argument(metavar="NAME", help="Its name.", show_default=False)]
UserName = Annotated[str, typer.Argument(metavar="USER", help="A user's or agent's name.", show_default=False)]
BaseKey = Annotated[str, typer.Argument(metavar="KB", help="Its id or name, from 'almanac kb list'.")]
DocumentId = Annotated[int, typer.Argument(metavar="DOC_ID", help="Its id, from 'almanac docs KB'.")]
DocumentIds = Annotated[list[int], typer.Argument(metavar="DOC_ID", help="Their ids, from 'almanac docs KB'.")]


def parse_duration(text: str) -> int:
    """Return the duration that an option such as `--since 7d` names."""
    try:
        return clock.parse_duration(text)
    except ValueError as error:
        raise BadRequest(f"{error}.") from None


def command_group(help: str) -> typer.Typer:
    """Return an empty group of commands, such as `almanac kb`."""
    return typer.Typer(help=help, no_args_is_help=True, rich_markup_mode="rich")
