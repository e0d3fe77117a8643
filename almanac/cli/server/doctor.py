"""`almanac doctor`: every setting with its source, and checks of all that the server needs."""

import asyncio
from dataclasses import fields

import typer

from almanac.bootstrap import load_settings
from almanac.cli.support.doctor_checks import run_checks
from almanac.cli.support.options import Home, Json
from almanac.cli.support.output import print_json, print_line, print_rows
from almanac.core.settings import Settings, shown


def doctor(home: Home = None, as_json: Json = False) -> None:
    """Print every setting with its source, and check all that the server needs; also that the index agrees with the
    database. Each check is ok, a warning (it works, or will soon) or a problem, and names the remedy.

    Example: [bold]almanac doctor --json[/bold]. Exits with 1 if there is a problem.
    """
    loaded = load_settings({"home": home})
    settings = [
        {"setting": item.name, "value": shown(item, loaded.settings), "from": loaded.sources[item.name]}
        for item in fields(Settings)
    ]
    checks = asyncio.run(run_checks(loaded.settings))
    if as_json:
        print_json({"settings": settings, "checks": checks})
    else:
        print_rows(settings, False, empty="")
        print_line("")
        print_rows([{name: check[name] for name in ("check", "state", "detail")} for check in checks], False, empty="")
    if not all(check["ok"] for check in checks):
        raise typer.Exit(1)
