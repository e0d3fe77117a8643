"""The reverse proxies of the tests: nginx, HAProxy and Node, as separate processes."""

import os
import shutil
import socket
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.waiting import wait_for_port

HERE = Path(__file__).parent
NAMES = ("nginx", "haproxy", "node")


@contextmanager
def proxy(name: str, upstream: int, folder: Path) -> Generator[int]:
    """Run a reverse proxy in front of a port, and return its own port."""
    program = shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin")
    if program is None:
        pytest.fail(f"{name} is needed: run make test-hostile", pytrace=False)
    port = free_port()
    process = subprocess.Popen([program, *arguments(name, port, upstream, folder)])
    try:
        wait_for_port(port)
        yield port
    finally:
        process.terminate()
        process.wait()


def arguments(name: str, port: int, upstream: int, folder: Path) -> list[str]:
    if name == "node":
        return [str(HERE / "proxy.js"), str(port), str(upstream)]
    template = HERE / {"nginx": "nginx.conf", "haproxy": "haproxy.cfg"}[name]
    config = folder / template.name
    config.write_text(template.read_text().format(port=port, upstream=upstream, folder=folder))
    return {"nginx": ["-p", str(folder), "-c", str(config)], "haproxy": ["-f", str(config)]}[name]


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]
