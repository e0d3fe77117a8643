"""Commands that run: the server, a job worker, the stdio server, migrations."""

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
import uvloop
from uvicorn.supervisors import Multiprocess

from almanac.app import SUPERVISOR_PID_ENV, check_settings, open_app
from almanac.bootstrap import configure_logs, load_settings, open_database, server_lock, signing_key
from almanac.cli.support.terminal import Home, print_line, settings_at
from almanac.core.errors import BadRequest, Unauthorized
from almanac.core.settings import Settings
from almanac.identity import first_start, tokens
from almanac.surfaces.sdk_server import serve_stdio

_log = structlog.get_logger("almanac.serve")

_RESTART_AFTER = 1.0  # seconds before a worker that died is started again


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
    _pass_on(host=host, port=port, home=home, workers=workers)
    settings = load_settings().settings
    configure_logs(settings)
    check_settings(settings)
    listener = _listen(settings)
    _pass_on(port=listener.getsockname()[1])
    settings = load_settings().settings
    signing_key(settings)
    with server_lock(settings):
        token = asyncio.run(_prepare(settings))
        with _job_workers(settings):
            _run_server(settings, listener, token)


def stdio(
    token: Annotated[
        str, typer.Option("--token", envvar="ALMANAC_TOKEN", help="Whose calls these are.", show_default=False)
    ],
    home: Home = None,
) -> None:
    """Serve the tools on standard input and output, for clients that launch a process.

    Example: [bold]claude mcp add almanac -- almanac stdio --token wg-…[/bold]
    """
    settings = settings_at(home)
    uvloop.run(_stdio(settings, token))


def _pass_on(**options: object) -> None:
    # Server and worker processes read the environment, so options reach them through it.
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
            remedy="Choose another with --port, or stop what is using it.",
        ) from None
    return listener


async def _prepare(settings: Settings) -> str | None:
    async with open_database(settings) as db:
        return await first_start.create_first_admin(db)


def _greet(settings: Settings, token: str | None) -> None:
    url = f"{settings.url}/mcp"
    print_line(f"Almanac is at {settings.url}")
    if token is None:
        print_line(f"MCP endpoint: {url}   (make a token with: almanac token add USER)")
        return
    print_line(f"First token (administrator 'admin'; shown once, keep it safe): {token}")
    print_line("Connect Claude Code with:")
    print_line(f'  claude mcp add --transport http almanac {url} --header "Authorization: Bearer {token}"')


class _Server(uvicorn.Server):
    """uvicorn, which says where it is once it is there."""

    def __init__(self, config: uvicorn.Config, settings: Settings, token: str | None) -> None:
        super().__init__(config)
        self._settings, self._token = settings, token

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            _greet(self._settings, self._token)


def _run_server(settings: Settings, listener: socket.socket, token: str | None) -> None:
    config = uvicorn.Config(
        "almanac.app:from_environment",
        factory=True,
        workers=settings.workers,
        loop="uvloop",
        http="httptools",
        lifespan="on",
        access_log=False,
        log_config=None,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=max(1, round(settings.shutdown_grace_seconds)),
    )
    server = _Server(config, settings, token)
    # uvicorn raises the signal that stopped it once more at its end; by then there is still a worker to stop.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _ignore)
    if settings.workers == 1:
        server.run(sockets=[listener])
        if not server.started:
            if token is not None:
                _greet(settings, token)  # it exists, and there is no other moment to show it
            raise typer.Exit(1)
        return
    _greet(settings, token)
    os.environ[SUPERVISOR_PID_ENV] = str(os.getpid())
    with _shared_metrics():
        Multiprocess(config, sockets=[listener]).run()


@contextlib.contextmanager
def _shared_metrics():
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
    keepers = [threading.Thread(target=_keep_worker, args=(settings, stopping)) for _ in range(number)]
    for keeper in keepers:
        keeper.start()
    try:
        yield
    finally:
        stopping.set()
        for keeper in keepers:
            keeper.join()


def _keep_worker(settings: Settings, stopping: threading.Event) -> None:
    while not stopping.is_set():
        # The child holds our end of its standard input: when this process is gone, however it went, it reads the end.
        child = subprocess.Popen([sys.executable, "-m", "almanac", "worker", "--with-parent"], stdin=subprocess.PIPE)
        while child.poll() is None and not stopping.wait(0.1):
            pass
        if child.poll() is None:
            child.send_signal(signal.SIGTERM)
            try:
                child.wait(settings.shutdown_grace_seconds + 2)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
        elif not stopping.is_set():
            if child.returncode:  # 0: told to stop along with us, by a signal to all
                _log.error("job_worker_died", code=child.returncode)
            stopping.wait(_RESTART_AFTER)


async def _stdio(settings: Settings, token: str) -> None:
    async with open_app(settings) as running:
        db = running.context.db
        if await tokens.resolve(db, token) is None:
            raise Unauthorized(remedy="Give --token one that is not expired or revoked: almanac token add USER.")
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        serving = asyncio.ensure_future(serve_stdio(running.dispatchers[0], lambda: tokens.resolve(db, token)))
        told = asyncio.ensure_future(stop.wait())
        await asyncio.wait({serving, told}, return_when=asyncio.FIRST_COMPLETED)
        if not told.done():
            told.cancel()
            await serving
    if stop.is_set():
        # A thread still waits for standard input and cannot be called back; all that matters is written.
        os._exit(0)


def _ignore(_: int, __: object) -> None:
    """A signal that has already done its work."""
