"""The command line of the operator."""

import inspect
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption
from typer.models import CommandInfo

from almanac import __version__
from almanac.cli.support.output import print_error, print_line
from almanac.core.errors import AlmanacError

# The module of each command and the name in it. Only the module of the given command is imported, because importing the
# server takes a second.
COMMANDS = {
    "serve": "serve:serve",
    "worker": "worker:worker",
    "stdio": "stdio:stdio",
    "migrate": "migrate:migrate",
    "ingest": "ingest:ingest",
    "search": "search:search",
    "docs": "docs:docs",
    "read": "read:read",
    "retry": "retry:retry",
    "doctor": "doctor:doctor",
    "audit": "audit:audit",
    "contracts": "contracts:contracts",
    "org": "org:orgs_app",
    "user": "user:users_app",
    "agent": "agent:agents_app",
    "group": "group:groups_app",
    "token": "token:tokens_app",
    "kb": "kb:kb_app",
    "doc": "doc:doc_app",
    "catalogue": "catalogue:catalogue_app",
    "index": "index:index_app",
    "memory": "memory:memory_app",
    "quota": "quota:quota_app",
    "jobs": "jobs:jobs_app",
    "bench": "bench:bench_app",
}


def build(only: str | None = None) -> typer.Typer:
    """Return the program with all commands, or with one."""
    app = typer.Typer(
        name="almanac",
        cls=_HelpGroup,
        rich_markup_mode="rich",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    app.callback()(_common)
    for name in COMMANDS if only is None else [only]:
        module, _, attribute = COMMANDS[name].partition(":")
        command: Any = getattr(import_module(f"almanac.cli.{module}"), attribute)
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name, cls=_HelpGroup)
            registered = command.registered_commands
        else:
            app.command(name)(command)
            registered = app.registered_commands[-1:]
        for info in registered:
            _prepare_help(info)
    return app


def main() -> None:
    """Run the command. An expected failure prints one line that names the fix, never a stack trace."""
    name = next((word for word in sys.argv[1:] if not word.startswith("-")), "")
    try:
        build(name if name in COMMANDS else None)()
    except AlmanacError as error:
        print_error(error)
        sys.exit(1)


class _HelpCommand(TyperCommand):
    """A command. Its help shows no type for flags."""

    def get_params(self, ctx: Any) -> Any:
        return _without_flag_types(super().get_params(ctx))


class _HelpGroup(TyperGroup):
    """A group of commands. Its help shows no type for flags."""

    def get_params(self, ctx: Any) -> Any:
        return _without_flag_types(super().get_params(ctx))


def _without_flag_types(parameters: Sequence[Any]) -> Sequence[Any]:
    for parameter in parameters:
        if isinstance(parameter, TyperOption) and parameter.is_flag:
            parameter.metavar = ""
    return parameters


def _prepare_help(command: CommandInfo) -> None:
    """Join the lines of each paragraph of the help, so that the terminal wraps them."""
    command.cls = _HelpCommand
    paragraphs = inspect.cleandoc(command.help or inspect.getdoc(command.callback) or "").split("\n\n")
    command.help = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


def _print_version(is_given: bool) -> None:
    if is_given:
        print_line(f"almanac {__version__}")
        raise typer.Exit


def _common(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """One server that gives AI agents the knowledge of an organisation.

    Start it with [bold]almanac serve[/bold]; the first start prints a token.
    """
