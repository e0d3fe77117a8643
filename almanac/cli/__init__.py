"""The command line: one small program for whoever runs the server."""

import sys
from typing import Annotated

import typer

from almanac import __version__
from almanac.cli import ingesting, knowledge, people, reading, running, watching
from almanac.cli.terminal import complain, say
from almanac.core.errors import AlmanacError

app = typer.Typer(
    name="almanac",
    rich_markup_mode="rich",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

for command in (running.serve, running.worker, running.stdio, running.migrate):
    app.command()(command)
for command in (ingesting.ingest, reading.docs, reading.read, ingesting.retry):
    app.command()(command)
for command in (watching.doctor, watching.audit, watching.contracts):
    app.command()(command)
app.add_typer(people.orgs_app, name="org")
app.add_typer(people.users_app, name="user")
app.add_typer(people.agents_app, name="agent")
app.add_typer(people.groups_app, name="group")
app.add_typer(people.tokens_app, name="token")
app.add_typer(knowledge.kb_app, name="kb")
app.add_typer(knowledge.doc_app, name="doc")
app.add_typer(watching.jobs_app, name="jobs")


def _version(asked: bool) -> None:
    if asked:
        say(f"almanac {__version__}")
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_version)
    ] = False,
) -> None:
    """One server that gives AI agents everything an organisation knows.

    Start it with [bold]almanac serve[/bold]; the first start prints a token.
    """


def main() -> None:
    """Run the command; a failure we know of is one line that names the fix, never a stack trace."""
    try:
        app()
    except AlmanacError as error:
        complain(error)
        sys.exit(1)
