"""The wheel with pip's resolver and the tool with uv, in temporary folders: installed, started and called."""

import os
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest

ROOT = Path(__file__).parent.parent.parent
UV = str(ROOT / "scripts" / "uv")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run([UV, "build", "--quiet", "--wheel", "--out-dir", str(folder)], check=True, cwd=ROOT)
    [built] = folder.glob("*.whl")
    assert built.name.startswith("almanac_server-")
    return built


def start_and_call(program: Path, home: Path) -> None:
    """Run the installed program outside the checkout: the version, a server, and a call of it."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("ALMANAC_", "PYTHON"))}
    version = subprocess.run([program, "--version"], capture_output=True, text=True, check=True, env=clean, cwd=home)
    assert version.stdout.startswith("almanac ")
    with subprocess.Popen(
        [program, "serve", "--port", "0", "--home", str(home / "data")],
        stdout=subprocess.PIPE, text=True, env=clean, cwd=home,
    ) as server:  # fmt: skip
        try:
            call_and_search(server, program, home, clean)
        finally:
            server.terminate()


def call_and_search(server: "subprocess.Popen[str]", program: Path, home: Path, env: dict[str, str]) -> None:
    """Call a started server, and search a file that the installed command has ingested."""
    assert server.stdout is not None
    url = server.stdout.readline().removeprefix("Almanac is at ").strip()
    token = server.stdout.readline().rpartition(" ")[2].strip()
    headers = {"authorization": f"Bearer {token}"}
    assert httpx2.get(f"{url}/api/v1/whoami", headers=headers, timeout=60).json()["name"] == "admin"
    data = ["--home", str(home / "data")]
    subprocess.run([program, "kb", "add", "Here", "--owner", "admin", *data], check=True, env=env, cwd=home)
    (home / "pump.md").write_text("# Pump\n\nForty turns a minute.")
    subprocess.run([program, "ingest", "Here", "pump.md", "--wait", *data], check=True, env=env, cwd=home)
    found = httpx2.post(f"{url}/api/v1/search", json={"query": "turns a minute"}, headers=headers, timeout=30)
    assert found.json()["results"], "the embedding model and the parsers are in the wheel"


def test_the_wheel_runs_in_a_new_environment(wheel: Path, tmp_path: Path):
    python = tmp_path / "venv" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True)
    subprocess.run([python, "-m", "pip", "install", "--quiet", str(wheel)], check=True, cwd=tmp_path)
    start_and_call(python.parent / "almanac", tmp_path)


def test_the_tool_is_installed_with_uv(wheel: Path, tmp_path: Path):
    folders = {"UV_TOOL_DIR": str(tmp_path / "tools"), "UV_TOOL_BIN_DIR": str(tmp_path / "bin")}
    command = [UV, "tool", "install", "--quiet", "--python", sys.executable, str(wheel)]
    subprocess.run(command, check=True, cwd=tmp_path, env={**os.environ, **folders})
    start_and_call(tmp_path / "bin" / "almanac", tmp_path)
