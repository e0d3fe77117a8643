"""Run the official MCP conformance suites against a server, and the Inspector's command line.

    python scripts/conformance.py --url http://127.0.0.1:8000/mcp
    python scripts/conformance.py --serve ".venv/bin/python -m tests.conformance.surface {port} HOME" --only 0.2

A suite passes if each of its scored scenarios ran, with at least one successful check and no failed one. The suites
themselves are less strict: they let a scenario without checks pass.
"""

import argparse
import fcntl
import json
import os
import platform
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
TOOLS = ROOT / ".tools" / "node"
MODULES = TOOLS / "node_modules"
READY = TOOLS / "ready"  # the installed versions; written when the installation is complete
RESULTS = ROOT / "results" / "conformance"

NODE_VERSION = "24.21.0"
# The folders of node_modules with their packages and exact versions. With version ranges, a new release of a suite
# could fail a build that changed nothing.
PINS = {
    "conformance-0.1": ("@modelcontextprotocol/conformance", "0.1.16"),
    "conformance-0.2": ("@modelcontextprotocol/conformance", "0.2.0-alpha.12"),
    "@modelcontextprotocol/inspector": ("@modelcontextprotocol/inspector", "2.12.0"),
    "@modelcontextprotocol/sdk": ("@modelcontextprotocol/sdk", "1.32.2"),
}

NPM_TIMEOUT_SECONDS = 600
SUITE_TIMEOUT_SECONDS = 600
START_TIMEOUT_SECONDS = 60
STOP_TIMEOUT_SECONDS = 10


# --- the Node packages ---------------------------------------------------------------------------------------------


def node_package() -> str:
    """The package with the Node binary for this machine.

    npm's `node` package fetches this one in an install script. If it is installed directly, no scripts are needed and
    all of them stay disabled.
    """
    machine = {"x86_64": "x64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    return f"node-{platform.system().lower()}-{machine}"


def packages() -> dict[str, tuple[str, str]]:
    return {"node": (node_package(), NODE_VERSION), **PINS}


def manifest() -> str:
    dependencies = {folder: f"npm:{package}@{version}" for folder, (package, version) in packages().items()}
    return json.dumps({"private": True, "dependencies": dependencies}, indent=2)


def install() -> None:
    npm = shutil.which("npm")
    if npm is None:
        raise SystemExit("npm is needed to fetch the conformance suites: install your system's npm package")
    shutil.rmtree(MODULES, ignore_errors=True)  # npm would keep the incomplete files of an interrupted installation
    (TOOLS / "package.json").write_text(manifest())
    # Without a lock file, no registry address is stored.
    quiet = ["--ignore-scripts", "--no-package-lock", "--no-audit", "--no-fund", "--loglevel=error"]
    subprocess.run([npm, "install", "--prefix", str(TOOLS), *quiet], check=True, timeout=NPM_TIMEOUT_SECONDS)
    READY.write_text(manifest())


def ensure_node() -> Path:
    """The path of the Node binary, after all packages of `PINS` are installed. Concurrent calls wait."""
    TOOLS.mkdir(parents=True, exist_ok=True)
    with (TOOLS / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not READY.exists() or READY.read_text() != manifest():
            install()
    return MODULES / "node" / "bin" / "node"


# --- suites ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Suite:
    """One run of one version of the suite.

    `requirements` is a revision of the protocol with a fixed list of scored scenarios. Version 0.1 has no such lists:
    it scores all scenarios except `pending`. It does not run these, but its list contains them.
    """

    name: str
    folder: str
    requirements: str | None = None
    pending: frozenset[str] = frozenset()


SUITES = (
    Suite("0.1.16", "conformance-0.1", pending=frozenset({"json-schema-2020-12", "server-sse-polling"})),
    Suite("0.2 at 2025-11-25", "conformance-0.2", requirements="2025-11-25"),
    Suite("0.2 at 2026-07-28", "conformance-0.2", requirements="2026-07-28"),
)


@dataclass(frozen=True)
class Outcome:
    """The result of one scenario. `ran` is false if the scenario left no result."""

    scenario: str
    scored: bool
    ran: bool = False
    successes: int = 0
    warnings: int = 0
    failures: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        return self.successes > 0 and not self.failures


Results = dict[str, list[Outcome]]


def conformance(suite: Suite, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(ensure_node()), str(MODULES / suite.folder / "dist" / "index.js"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=SUITE_TIMEOUT_SECONDS, check=False)


def scenarios(suite: Suite) -> dict[str, bool]:
    """The server scenarios of a suite by name, and whether each is scored."""
    choice = ["--requirements", suite.requirements] if suite.requirements else ["--server"]
    listing = conformance(suite, "list", *choice).stdout
    scored, _, rest = listing.partition("Client scenarios")
    names = dict.fromkeys(re.findall(r"^  - (\S+)", scored, re.MULTILINE), True)
    names |= dict.fromkeys(re.findall(r"^    - (\S+) \[server\]", rest, re.MULTILINE), False)
    return {name: is_scored for name, is_scored in names.items() if name not in suite.pending}


def checks_of(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """The checks of each scenario, from folders named `server-SCENARIO-TIMESTAMP`."""
    checks: dict[str, list[dict[str, Any]]] = {}
    for path in folder.glob("*/checks.json"):
        match = re.fullmatch(r"server-(.+)-\d{4}-\d\d-\d\dT[\d-]+Z", path.parent.name)
        if match:
            checks[match[1]] = json.loads(path.read_text())
    return checks


def outcome_of(scenario: str, scored: bool, checks: list[dict[str, Any]] | None) -> Outcome:
    if checks is None:
        return Outcome(scenario, scored)
    statuses = [check["status"] for check in checks]
    failures = tuple(
        f"{check['id']}: {check.get('errorMessage', 'failed')}" for check in checks if check["status"] == "FAILURE"
    )
    return Outcome(scenario, scored, True, statuses.count("SUCCESS"), statuses.count("WARNING"), failures)


def run_suite(suite: Suite, url: str) -> list[Outcome]:
    folder = RESULTS / suite.name.replace(" ", "-")
    shutil.rmtree(folder, ignore_errors=True)
    choice = ["--requirements", suite.requirements] if suite.requirements else []
    run = conformance(suite, "server", "--url", url, "--output-dir", str(folder), *choice)
    checks = checks_of(folder)
    outcomes = [outcome_of(name, scored, checks.get(name)) for name, scored in scenarios(suite).items()]
    if run.returncode != 0 or not any(outcome.scored for outcome in outcomes):
        error = run.stderr.strip() or f"exit status {run.returncode}"
        outcomes.append(Outcome("the suite itself", scored=True, ran=True, failures=(error,)))
    return outcomes


# --- the report --------------------------------------------------------------------------------------------


def verdict(outcome: Outcome | None) -> str:
    if outcome is None:
        return ""
    if not outcome.ran:
        word, count = "DID NOT RUN", ""
    else:
        word, count = "pass" if outcome.passed else "FAIL", f" {outcome.successes}"
    failed = f", {len(outcome.failures)} failed" if outcome.failures else ""
    warned = f", {outcome.warnings} warned" if outcome.warnings else ""
    return word + count + failed + warned if outcome.scored else f"({word.lower()}{count}{failed}{warned})"


def report(console: Console, results: Results) -> None:
    """Print a row for each scenario and a column for each suite, with unscored scenarios in brackets."""
    table = Table("scenario", *results, caption="successful checks; in brackets: run, but not scored")
    by_name = [{each.scenario: each for each in outcomes} for outcomes in results.values()]
    for scenario in dict.fromkeys(each.scenario for outcomes in results.values() for each in outcomes):
        table.add_row(scenario, *(verdict(outcomes.get(scenario)) for outcomes in by_name))
    console.print(table)
    for suite, outcomes in results.items():
        scored = [each for each in outcomes if each.scored]
        console.print(f"{suite}: {sum(each.passed for each in scored)} of {len(scored)} scored scenarios passed")
        for each in scored:
            for failure in each.failures:
                console.print(f"  {each.scenario}: {failure}", markup=False)


# --- the server --------------------------------------------------------------------------


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def wait_until_open(process: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + START_TIMEOUT_SECONDS
    while not is_open(port):
        if process.poll() is not None:
            raise SystemExit(f"the server ended with status {process.returncode} before it accepted connections")
        if time.monotonic() > deadline:
            raise SystemExit(
                f"the server did not accept connections on port {port} within {START_TIMEOUT_SECONDS} seconds"
            )
        time.sleep(0.1)


def stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextmanager
def serving(command: str, port: int) -> Generator[None]:
    """Run a command, with its `{port}` filled in, within the block."""
    process = subprocess.Popen(shlex.split(command.replace("{port}", str(port))), cwd=ROOT)
    try:
        wait_until_open(process, port)
        yield
    finally:
        stop(process)


# --- the Inspector -----------------------------------------------------------------------------------------


def run_inspector(
    url: str, method: str, *options: str, headers: dict[str, str] | None = None, era: str = "legacy"
) -> dict[str, Any]:
    """Send one request to a server with the Inspector's command line, and return its output.

        run_inspector(url, "tools/list", headers={"Authorization": f"Bearer {token}"})
        run_inspector(url, "tools/call", "--tool-name", "whoami", "--tool-args-json", "{}", era="modern")

    The answer is `{"result": …}` or `{"error": …}`. An error of a tool has both; then only the result matters.
    """
    launcher = MODULES / "@modelcontextprotocol" / "inspector" / "clients" / "launcher" / "build" / "index.js"
    pairs = [part for name, value in (headers or {}).items() for part in ("--header", f"{name}: {value}")]
    # The target comes first: after an option with several values, it would become one of these.
    command = [str(ensure_node()), str(launcher), "--cli", url, "--transport", "http", *pairs]
    command += ["--protocol-era", era, "--method", method, *options, "--format", "json", "--quiet"]
    # The Inspector stores a list of servers in the home folder. Here it gets a folder of its own.
    environment = os.environ | {"HOME": str(TOOLS)}
    # Without a terminal, nobody can log in: with `--stored-auth-only`, the Inspector reports a refusal as an error.
    run = subprocess.run(
        [*command, "--stored-auth-only"], capture_output=True, text=True, env=environment, timeout=60, check=False
    )
    return json.loads(run.stdout or run.stderr)


# --- the command -------------------------------------------------------------------------------------------


def run_suites(url: str, only: str) -> Results:
    return {suite.name: run_suite(suite, url) for suite in SUITES if suite.name.startswith(only)}


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--url", default="http://127.0.0.1:{port}/mcp", help="the address of the server")
    parser.add_argument("--serve", metavar="COMMAND", help="start this server first; {port} becomes a free port")
    parser.add_argument("--only", choices=("0.1.16", "0.2"), default="", help="run one version of the suite")
    options = parser.parse_args(arguments)
    if options.serve is None and "{port}" in options.url:
        parser.error("give --url, or --serve to start a server")
    return options


def main(arguments: Sequence[str]) -> int:
    options = parse(arguments)
    ensure_node()
    if options.serve is None:
        results = run_suites(options.url, options.only)
    else:
        port = free_port()
        with serving(options.serve, port):
            results = run_suites(options.url.replace("{port}", str(port)), options.only)
    # Wide enough for the longest scenario: without a terminal, rich assumes 80 columns and truncates names.
    report(Console(width=120), results)
    return 0 if all(each.passed for outcomes in results.values() for each in outcomes if each.scored) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
