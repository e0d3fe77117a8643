"""The command line of the operator."""

import gc
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

# The module and the name of each command in it, and its line in the list of all commands. Only the module of the given
# command is imported, and none for the list: importing the server takes a second.
COMMANDS = {
    "serve": ("server.serve:serve", "Start the server. The first start prints a token."),
    "worker": ("server.worker:worker", "Run background jobs until stopped."),
    "stdio": ("server.stdio:stdio", "Serve the tools to a client that launches this command."),
    "migrate": ("server.migrate:migrate", "Bring the database to this version's schema."),
    "ingest": ("knowledge.ingest:ingest", "Add files to a knowledge base."),
    "search": ("knowledge.search:search", "Search as a user or agent, with their permissions."),
    "docs": ("knowledge.docs:docs", "List the documents of a knowledge base."),
    "read": ("knowledge.read:read", "Print the text of a document."),
    "retry": ("knowledge.retry:retry", "Parse the failed documents of a knowledge base again."),
    "doctor": ("server.doctor:doctor", "Print the settings and check the installation."),
    "audit": ("server.audit:audit_app", "Read the audit trail, and the executions of agents."),
    "contracts": ("server.contracts:contracts", "Write or check the contracts of the surfaces."),
    "org": ("accounts.org:orgs_app", "Organisations: nothing is shared between two of them."),
    "user": ("accounts.user:users_app", "Users: people who hold tokens."),
    "agent": ("accounts.agent:agents_app", "Agents: programs that hold tokens of their own."),
    "group": ("accounts.group:groups_app", "Groups: people and agents who share things."),
    "token": ("accounts.token:tokens_app", "Tokens: a client sends one to prove its identity."),
    "client": ("accounts.client:clients_app", "Clients: an id and a secret with which a program logs in."),
    "kb": ("knowledge.kb:kb_app", "Knowledge bases: add, list, share, remove, restore."),
    "doc": ("knowledge.doc:doc_app", "Single documents: into the trash and out of it."),
    "catalogue": ("knowledge.catalogue:catalogue_app", "The catalogue: import, export, and the right to change it."),
    "category": (
        "knowledge.category:categories_app",
        "Categories: the tree that groups the entities of the catalogue.",
    ),
    "index": ("server.index:index_app", "The search index: its status, and rebuilding it."),
    "data": ("data.data:data_app", "Datasets: push and query rows, versions, row rules, receipts."),
    "memory": ("knowledge.memory:memory_app", "The notes of agents: export and import."),
    "quota": ("accounts.quota:quota_app", "Monthly quotas of an organisation."),
    "jobs": ("server.jobs:jobs_app", "Background jobs: list, retry, discard."),
    "bench": ("server.bench:bench_app", "Measurements of this program on your own machine."),
}


def build(only: str | None = None) -> typer.Typer:
    """Return the program with all commands, or with one."""
    app = _program()
    for name in COMMANDS if only is None else [only]:
        target, summary = COMMANDS[name]
        module, _, attribute = target.partition(":")
        command: Any = getattr(import_module(f"almanac.cli.{module}"), attribute)
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name, cls=_HelpGroup, short_help=summary)
            registered = command.registered_commands
        else:
            app.command(name, short_help=summary)(command)
            registered = app.registered_commands[-1:]
        for info in registered:
            _prepare_help(info)
    return app


def build_overview() -> typer.Typer:
    """Return the program that only lists the commands, prints the version or refuses an unknown command."""
    app = _program()
    for name, (_, summary) in COMMANDS.items():
        app.command(name, short_help=summary)(_not_loaded)
    return app


def main() -> None:
    """Run the command. An expected failure prints one line that names the fix, never a stack trace."""
    name = next(iter(sys.argv[1:]), "")
    try:
        gc.disable()  # imports create objects that stay, and each collection would examine them again
        app = build(name) if name in COMMANDS else build_overview()
        gc.enable()
        app()
    except AlmanacError as error:
        print_error(error)
        sys.exit(1)


def _program() -> typer.Typer:
    app = typer.Typer(
        name="almanac",
        cls=_HelpGroup,
        rich_markup_mode="rich",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    app.callback()(_common)
    return app


def _not_loaded() -> None:
    """A command in the list of all commands. It is never run: `main` imports the given command."""


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
