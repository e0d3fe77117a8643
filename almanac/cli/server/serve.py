"""`almanac serve`: the server, with a job worker beside it on SQLite."""

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from typing import Annotated

import structlog
import typer
import uvicorn
from uvicorn.supervisors import Multiprocess

from almanac.app import SUPERVISOR_PID_ENV, check_settings
from almanac.bootstrap import (
    configure_logs,
    load_settings,
    open_database,
    server_lock,
    signing_key,
    warn_of_unknown_variables,
)
from almanac.cli.support.options import Home
from almanac.cli.support.output import print_line
from almanac.core.errors import BadRequest
from almanac.core.settings import Settings
from almanac.identity import first_start
from almanac.net.connection_table import raise_open_files_limit
from almanac.net.http_server import ServerConfig

_log = structlog.get_logger("almanac.serve")

_WORKER_RESTART_SECONDS = 1.0
_WORKER_POLL_SECONDS = 0.1


def serve(
    host: Annotated[str | None, typer.Option("--host", help="Address to listen on.", show_default="127.0.0.1")] = None,
    port: Annotated[int | None, typer.Option("--port", help="Port; 0 for any free one.", show_default="8000")] = None,
    home: Home = None,
    workers: Annotated[
        int | None,
        typer.Option("--workers", help="Server processes; more than one needs PostgreSQL and Redis.", show_default="1"),
    ] = None,
) -> None:
    """Start the server. The first start creates an organisation, an administrator and a token, and prints it once.

    Example: [bold]almanac serve --port 9000 --home /srv/almanac[/bold]
    """
    load_settings({"host": host, "port": port, "home": home, "workers": workers})  # an error names the option
    _export_options(host=host, port=port, home=home, workers=workers)
    os.environ["PYTHONSAFEPATH"] = "1"  # server and worker processes import nothing from the current folder
    settings = load_settings().settings
    configure_logs(settings)
    warn_of_unknown_variables()
    check_settings(settings)
    listener = _listen(settings)
    _export_options(port=listener.getsockname()[1])
    settings = load_settings().settings
    signing_key(settings)
    with server_lock(settings):
        token = asyncio.run(_create_first_token(settings))
        with _job_workers(settings):
            _run_server(settings, listener, token)


def _export_options(**options: object) -> None:
    # Server and worker processes read their options from the environment.
    for name, value in options.items():
        if value is not None:
            os.environ[f"ALMANAC_{name.upper()}"] = str(value)


def _listen(settings: Settings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, settings.port))
    except OSError as error:
        listener.close()
        raise BadRequest(
            f"Cannot listen on {settings.host} port {settings.port}: {error.strerror or error}.",
            remedy="Choose another port with --port, or stop the program that uses it.",
        ) from None
    return listener


async def _create_first_token(settings: Settings) -> str | None:
    async with open_database(settings) as db:
        return await first_start.create_first_admin(db)


def _print_addresses(settings: Settings, token: str | None) -> None:
    url = f"{settings.url}/mcp"
    print_line(f"Almanac is at {settings.url}")
    if token is None:
        print_line(f"MCP endpoint: {url}   (make a token with: almanac token add USER)")
        return
    print_line(f"First token (administrator 'admin'; shown once, keep it safe): {token}")
    print_line("Connect Claude Code with:")
    print_line(f'  claude mcp add --transport http almanac {url} --header "Authorization: Bearer {token}"')


class _UvicornServer(uvicorn.Server):
    """A uvicorn server that prints its addresses once it is listening."""

    def __init__(self, config: uvicorn.Config, settings: Settings, token: str | None) -> None:
        super().__init__(config)
        self._settings, self._token = settings, token

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            _print_addresses(self._settings, self._token)


def _run_server(settings: Settings, listener: socket.socket, token: str | None) -> None:
    raise_open_files_limit(settings.max_connections)
    config = ServerConfig(
        "almanac.app:from_environment",
        settings,
        factory=True,
        workers=settings.workers,
        timeout_graceful_shutdown=max(1, round(settings.shutdown_grace_seconds)),
    )
    server = _UvicornServer(config, settings, token)
    # At its end uvicorn raises again the signal that stopped it; the job worker must still be stopped then.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _ignore)
    if settings.workers == 1:
        server.run(sockets=[listener])
        if not server.started:
            if token is not None:
                _print_addresses(settings, token)  # the token exists, and it cannot be shown later
            raise typer.Exit(1)
        return
    _print_addresses(settings, token)
    os.environ[SUPERVISOR_PID_ENV] = str(os.getpid())
    with _metrics_folder():
        Multiprocess(config, sockets=[listener]).run()


@contextlib.contextmanager
def _metrics_folder():
    folder = tempfile.mkdtemp(prefix="almanac-metrics-")
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = folder
    try:
        yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _job_workers(settings: Settings):
    number = settings.job_workers if settings.job_workers >= 0 else int(settings.on_sqlite)
    stopping = threading.Event()
    threads = [threading.Thread(target=_keep_worker, args=(settings, stopping)) for _ in range(number)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stopping.set()
        for thread in threads:
            thread.join()


def _keep_worker(settings: Settings, stopping: threading.Event) -> None:
    while not stopping.is_set():
        # The child reads the end of its standard input when this process has ended, even if it was killed.
        child = subprocess.Popen([sys.executable, "-m", "almanac", "worker", "--with-parent"], stdin=subprocess.PIPE)
        while child.poll() is None and not stopping.wait(_WORKER_POLL_SECONDS):
            pass
        if child.poll() is None:
            child.send_signal(signal.SIGTERM)
            try:
                child.wait(settings.shutdown_grace_seconds + 2)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
        elif not stopping.is_set():
            if child.returncode:  # 0: a signal to the process group stopped it as well
                _log.error("job_worker_died", code=child.returncode)
            stopping.wait(_WORKER_RESTART_SECONDS)


def _ignore(_: int, __: object) -> None:
    """Ignore a signal that has been handled."""
