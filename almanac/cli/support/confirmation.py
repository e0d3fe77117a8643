"""The question before a command removes something."""

import sys

import typer

from almanac.cli.support.output import printable
from almanac.core.errors import BadRequest


def confirm(question: str, yes: bool) -> None:
    """Ask on the terminal, unless `yes`; the command ends if the answer is no."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise BadRequest(
            "Removing needs a confirmation, and there is no terminal to ask.", remedy="Repeat it with --yes."
        )
    typer.confirm(printable(question), abort=True, err=True)
