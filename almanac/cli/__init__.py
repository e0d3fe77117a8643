"""The command line: one small program for whoever runs the server."""

import inspect
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption
from typer.models import CommandInfo

from almanac import __version__
from almanac.cli.support.terminal import print_error, print_line
from almanac.core.errors import AlmanacError

# Where each command is. Only the one that is asked for is loaded: the server takes a second, a command should not.
COMMANDS = {
    "serve": "serve:serve",
    "worker": "worker:worker",
    "stdio": "serve:stdio",
    "migrate": "worker:migrate",
    "ingest": "ingest:ingest",
    "search": "search:search",
    "docs": "docs:docs",
    "read": "docs:read",
    "retry": "ingest:retry",
    "doctor": "doctor:doctor",
    "audit": "records:audit",
    "contracts": "doctor:contracts",
    "org": "people:orgs_app",
    "user": "people:users_app",
    "agent": "people:agents_app",
    "group": "people:groups_app",
    "token": "token:tokens_app",
    "kb": "kb:kb_app",
    "doc": "kb:doc_app",
    "catalogue": "catalogue:catalogue_app",
    "index": "index:index_app",
    "memory": "memory:memory_app",
    "quota": "memory:quota_app",
    "jobs": "records:jobs_app",
    "bench": "benching:bench_app",
}


def build(only: str | None = None) -> typer.Typer:
    """The program, or as much of it as one command needs."""
    app = typer.Typer(
        name="almanac",
        cls=_Group,
        rich_markup_mode="rich",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    app.callback()(_common)
    for name in COMMANDS if only is None else [only]:
        module, _, part = COMMANDS[name].partition(":")
        found: Any = getattr(import_module(f"almanac.cli.{module}"), part)
        if isinstance(found, typer.Typer):
            app.add_typer(found, name=name, cls=_Group)
        else:
            app.command(name)(found)
        for command in found.registered_commands if isinstance(found, typer.Typer) else app.registered_commands[-1:]:
            _dress(command)
    return app


def main() -> None:
    """Run the command; a failure we know of is one line that names the fix, never a stack trace."""
    asked = next((word for word in sys.argv[1:] if not word.startswith("-")), "")
    try:
        build(asked if asked in COMMANDS else None)()
    except AlmanacError as error:
        print_error(error)
        sys.exit(1)


class _Command(TyperCommand):
    """A command whose help does not say that a flag is a truth value."""

    def get_params(self, ctx: Any) -> Any:
        return _plain(super().get_params(ctx))


class _Group(TyperGroup):
    """The same for a family of commands."""

    def get_params(self, ctx: Any) -> Any:
        return _plain(super().get_params(ctx))


def _plain(parameters: Sequence[Any]) -> Sequence[Any]:
    for each in parameters:
        if isinstance(each, TyperOption) and each.is_flag:
            each.metavar = ""
    return parameters


def _dress(command: CommandInfo) -> None:
    """Let the paragraphs of a command's help run as wide as the terminal is, not as the source is."""
    command.cls = _Command
    paragraphs = inspect.cleandoc(command.help or inspect.getdoc(command.callback) or "").split("\n\n")
    command.help = "\n\n".join(" ".join(each.split()) for each in paragraphs)


def _version(asked: bool) -> None:
    if asked:
        print_line(f"almanac {__version__}")
        raise typer.Exit


def _common(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_version)
    ] = False,
) -> None:
    """One server that gives AI agents everything an organisation knows.

    Start it with [bold]almanac serve[/bold]; the first start prints a token.
    """
