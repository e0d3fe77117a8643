"""`almanac stdio`: the tools on standard input and output."""

import asyncio
import os
import signal
from typing import Annotated

import typer
import uvloop

from almanac.app import open_app
from almanac.cli.support.options import Home
from almanac.cli.support.startup import command_settings
from almanac.core.errors import Unauthorized
from almanac.core.settings import Settings
from almanac.identity import tokens
from almanac.surfaces.sdk_server import serve_stdio


def stdio(
    token: Annotated[
        str, typer.Option("--token", envvar="ALMANAC_TOKEN", help="The token of the caller.", show_default=False)
    ],
    home: Home = None,
) -> None:
    """Serve the tools on standard input and output, for clients that launch a process.

    Example: [bold]claude mcp add almanac -- almanac stdio --token wg-…[/bold]
    """
    uvloop.run(_serve_until_stopped(command_settings(home), token))


async def _serve_until_stopped(settings: Settings, token: str) -> None:
    async with open_app(settings) as running:
        db = running.context.db
        if await tokens.resolve(db, token) is None:
            raise Unauthorized(remedy="Give --token one that is not expired or revoked: almanac token add USER.")
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        serving = asyncio.ensure_future(serve_stdio(running.dispatchers[0], lambda: tokens.resolve(db, token)))
        stopping = asyncio.ensure_future(stop.wait())
        await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not stopping.done():
            stopping.cancel()
            await serving
    if stop.is_set():
        # A thread still waits for standard input and cannot be cancelled. All data is written, so end the process.
        os._exit(0)
