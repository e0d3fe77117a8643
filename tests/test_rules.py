"""Rules of the design and the style, checked in every file."""

import ast
import functools
import importlib.util
import re
import sys
from collections.abc import Iterable, Iterator
from configparser import ConfigParser
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from importlinter.cli import EXIT_STATUS_SUCCESS, lint_imports

from almanac.app import SURFACES
from almanac.core import scopes
from almanac.core.errors import AlmanacError
from almanac.core.settings import Settings, environment_names

ROOT = Path(__file__).parent.parent
CODE = ROOT / "almanac"
REFERENCE = ROOT / "docs" / "reference"
TESTS = ROOT / "tests"
FILES = sorted(CODE.rglob("*.py"))

# One worker runs all rules, so that each file is parsed once.
pytestmark = pytest.mark.xdist_group("rules")

MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 60
VAGUE_NAMES = {"service", "services", "utils", "util", "helpers", "helper", "manager", "base", "common", "misc"}

# SQL that only one of the databases supports, and the files that may contain it.
DIALECT = re.compile(
    r"\bPRAGMA\b|\bSKIP LOCKED\b|\bsqlite_\w+|\bpg_\w+|\bAUTOINCREMENT\b|\bILIKE\b|\bJSONB\b|\bdatetime\('now'"
    r"|\bBYTEA\b|\bSERIAL\b|\bGLOB\b|\bROWID\b|\bjson_extract\b|\bto_tsvector\b|\bNOTIFY\b|\bstrftime\('%",
    re.IGNORECASE,
)
CAST = re.compile(r"[\w)\]'\"]::\w+")
SQL = re.compile(r"\b(SELECT|INSERT INTO|UPDATE \w+ SET|DELETE FROM|CREATE (TABLE|INDEX)|ON CONFLICT)\b")
# The last one parses source code in any language, SQL included.
DIALECT_FILES = re.compile(r"^(db/.*|jobs/queue\.py|search/index/.*|knowledge/parsers/text/source_code\.py)$")

# Files that may catch every exception: one failing call, job, write or request must not end the others.
CATCHERS = {
    "operations/pipeline/pipeline.py",
    "surfaces/dispatcher.py",
    "surfaces/external/auth.py",
    "audit/trail.py",
    "jobs/worker.py",
    "db/sqlite_writer.py",
    "sandbox/child.py",
    "core/loop_turns.py",
}

# The functions that turn a search result into the form of a protocol or a page, one for each form.
RESULT_FORMS = {
    "operations/search.py:_result": "our tools and REST",
    "operations/notes.py:recall": "our tools and REST, of a note",
    "operations/notes.py:remember": "our tools and REST, of a similar note",
    "operations/namespace_search.py:_document_metadata": "the catalogue and the gateway, of a document",
    "assist/weknora/weknora_result.py:of_document": "WeKnora, as the agent and the tool read it, and in its document",
    "assist/weknora/weknora_result.py:server_form": "WeKnora's server",
    "knowledge/knowledge_runtime.py:_record": "a knowledge runtime and the external surface",
    "surfaces/memory/tools.py:_result": "the memory surface",
    "surfaces/memory/tools.py:store_knowledge": "the memory surface, of a similar note",
}

# Tests wait for events and conditions. These files may sleep, for the given reason.
SLEEPERS = {
    "waiting.py": "polls states for which there is no event",
    "conformance/fixtures.py": "the conformance suites require pauses between notifications",
    "core/test_timers.py": "timers that start at different moments",
    "db/test_sqlite.py": "a transaction that waits for something else is refused",
    "kill/indexer.py": "the duration of an embedding, during which a kill can happen",
    "kill/program.py": "the duration of a job, during which a kill can happen",
    "kill/test_kill.py": "kills at random moments, and clients that last until the last one",
    "kill/test_kill_index.py": "kills at random moments",
    "kill/test_kill_ingest.py": "kills at random moments, and clients that last until the last one",
    "operations/pipeline/test_guard.py": "a blocked event loop, so that two deadlines pass at once",
    "quotas/test_rate_limits.py": "limits of a period, counted with the clock of Redis",
    "sandbox/hostile_work.py": "work that does not end",
    "surfaces/test_mcp_endpoint.py": "a client that sends slowly",
    "surfaces/trial.py": "a tool that takes as long as its caller says",
    "web/test_multipart.py": "a client that sends slowly",
    "web/test_rest.py": "an operation that takes as long as its caller says",
}


# Tests use public names. These files replace or call a private one, for the given reason.
PRIVATE_USERS = {
    "memory/test_note_search.py": "the setting of a statement in the database is visible to that statement only",
    "search/index/embedded/test_embedded_index.py": "how much is compared, and in which thread, shows in no result",
}


def name(file: Path) -> str:
    return file.relative_to(CODE).as_posix()


@functools.cache
def tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text("utf-8"), str(file))


@functools.cache
def nodes(file: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(tree(file)))


def imports(below: Iterable[ast.AST]) -> Iterator[tuple[str, int]]:
    """Return the imported modules, with their lines."""
    for each in below:
        if isinstance(each, ast.Import):
            yield from ((alias.name, each.lineno) for alias in each.names)
        elif isinstance(each, ast.ImportFrom):
            yield each.module or "", each.lineno


def functions(file: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (each for each in nodes(file) if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef))


def texts(file: Path) -> Iterator[tuple[str, int]]:
    """Return every string that is not a docstring, with its line."""
    documented = {
        id(each.body[0].value)
        for each in nodes(file)
        if isinstance(each, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and each.body
        and isinstance(each.body[0], ast.Expr)
    }
    for each in nodes(file):
        if isinstance(each, ast.Constant) and isinstance(each.value, str) and id(each) not in documented:
            yield each.value, each.lineno


@pytest.fixture(scope="module")
def generator() -> Any:
    """Return docs/reference/generate.py, a script outside the package."""
    spec = importlib.util.spec_from_file_location("reference_generator", REFERENCE / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


# Imports


def test_imports_follow_the_order_of_the_layers(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(ROOT)
    assert lint_imports(config_filename=str(ROOT / ".importlinter"), no_cache=True) == EXIT_STATUS_SUCCESS


def test_the_layers_are_those_of_the_design():
    config = ConfigParser()
    config.read(ROOT / ".importlinter")
    order = config["importlinter:contract:order"]
    layers = [re.findall(r"\w+", line) for line in order["layers"].split("\n") if line.strip()]
    assert order["exhaustive"] == "true"
    assert layers == [
        ["__main__"],
        ["cli"],
        ["app"],
        ["external", "weknora"],
        ["surfaces", "web", "reactions"],
        ["operations"],
        ["assist"],
        ["delivery"],
        ["boards"],
        ["knowledge", "catalogue", "memory", "data"],
        ["search"],
        ["identity", "audit", "quotas"],
        ["jobs"],
        ["bootstrap", "telemetry"],
        ["db", "ai", "files", "net", "sandbox"],
        ["core"],
    ]
    assert all("|" in line for line in order["layers"].split("\n") if len(re.findall(r"\w+", line)) > 1)


def test_the_mcp_sdk_is_imported_in_one_file():
    importers = {
        name(file)
        for file in FILES
        for module, _ in imports(nodes(file))
        if module.split(".")[0] in ("mcp", "mcp_types")
    }
    assert importers == {"surfaces/sdk_server.py"}


def test_only_functions_that_need_an_extra_import():
    found = {
        (name(file), function.name)
        for file in FILES
        for function in functions(file)
        for _ in imports(ast.walk(function))
    }
    assert found == {
        ("telemetry.py", "open_tracer_provider"),  # [telemetry]
        ("ai/embedder_choice.py", "_find"),  # [multilingual]
        ("knowledge/parsers/pdf/ocr.py", "_load_extra"),  # 227 MB, in the confined child only
        ("knowledge/parsers/pdf/ocr.py", "load_engine"),
    }


def test_core_does_not_reach_outside_the_process():
    outside = {"socket", "subprocess", "sqlite3", "asyncpg", "redis", "httpx2", "requests", "os", "shutil"}
    found = {
        (name(file), module)
        for file in FILES
        if name(file).startswith("core/")
        for module, _ in imports(nodes(file))
        if module.split(".")[0] in outside or module == "urllib.request"
    }
    assert found == set()


# Style


def test_no_file_has_a_vague_name():
    assert [name(file) for file in FILES if VAGUE_NAMES & set(file.relative_to(CODE).with_suffix("").parts)] == []


def test_no_file_is_too_long():
    assert {name(f): n for f in FILES if (n := len(f.read_text("utf-8").splitlines())) > MAX_FILE_LINES} == {}


def test_no_function_is_too_long():
    found = {
        f"{name(file)}: {function.name}": lines
        for file in FILES
        for function in functions(file)
        if (lines := (function.end_lineno or 0) - function.lineno + 1) > MAX_FUNCTION_LINES
    }
    assert found == {}


def test_most_functions_are_short():
    lengths = sorted((f.end_lineno or 0) - f.lineno + 1 for file in FILES for f in functions(file))
    assert lengths[len(lengths) // 2] <= 9
    assert lengths[len(lengths) * 95 // 100] <= 45


def test_every_file_has_a_docstring():
    missing = [name(file) for file in FILES if file.read_text("utf-8").strip() and not ast.get_docstring(tree(file))]
    assert missing == []


def test_only_listed_files_catch_every_exception():
    found: set[str] = set()
    for file in FILES:
        for each in nodes(file):
            if not isinstance(each, ast.ExceptHandler):
                continue
            caught = {node.id for node in ast.walk(each.type) if isinstance(node, ast.Name)} if each.type else {"all"}
            passes_on = isinstance(each.body[-1], ast.Raise) and each.body[-1].exc is None
            if caught & {"all", "Exception", "BaseException"} and not passes_on:
                found.add(name(file))
    assert found == CATCHERS


def test_no_code_suppresses_every_exception():
    found = [
        f"{name(file)}:{each.lineno}"
        for file in FILES
        for each in nodes(file)
        if isinstance(each, ast.Call)
        and ast.unparse(each.func) in ("suppress", "contextlib.suppress")
        and {ast.unparse(argument) for argument in each.args} & {"Exception", "BaseException"}
    ]
    assert found == []


def test_sql_of_one_database_stays_in_its_files():
    found: list[str] = []
    for file in FILES:
        if DIALECT_FILES.match(name(file)):
            continue
        for text, line in texts(file):
            if DIALECT.search(text) or (SQL.search(text) and CAST.search(text)):
                found.append(f"{name(file)}:{line}")
    assert found == []


def test_the_patterns_recognise_sql_of_one_database():
    for text in ("PRAGMA x", "... FOR UPDATE SKIP LOCKED", "SELECT name FROM sqlite_master", "pg_advisory_lock($1)",
                 "a ILIKE b", "datetime('now')"):  # fmt: skip
        assert DIALECT.search(text), text
    assert CAST.search("SELECT id::text FROM orgs")
    assert not CAST.search("http://[::1]:80")


def test_only_database_files_ask_for_the_dialect():
    compares = {
        name(file)
        for file in FILES
        for each in nodes(file)
        if isinstance(each, ast.Compare)
        and any(isinstance(node, ast.Attribute) and node.attr == "dialect" for node in ast.walk(each))
    }
    assert all(DIALECT_FILES.match(file) for file in compares), compares


def test_each_form_of_a_search_result_has_one_function():
    # A form has the text of a result: `DocumentResult.found.text`, or the `snippet` of a note.
    packages = ("operations", "assist", "knowledge", "memory", "catalogue", "surfaces", "web")
    found = {
        f"{name(file)}:{function.name}"
        for file in FILES
        if name(file).startswith(packages)
        for function in functions(file)
        for node in ast.walk(function)
        if isinstance(node, ast.Attribute)
        and (node.attr == "snippet" or (node.attr == "found" and _reads_text(function)))
    }
    assert found == set(RESULT_FORMS)


def _reads_text(function: ast.AST) -> bool:
    return any(isinstance(node, ast.Attribute) and node.attr == "text" for node in ast.walk(function))


def test_no_code_is_marked_as_unfinished():
    marks = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
    assert [name(file) for file in FILES if marks.search(file.read_text("utf-8"))] == []


MIN_TIMEOUT_SECONDS = 1  # a shorter one is expected to pass, so it is a sleep


def is_sleep(each: ast.AST) -> bool:
    """Return whether a node imports `sleep`, calls it, or waits for something that is not expected to happen.

    `sleep(0)` waits for no time: it lets other tasks run.
    """
    if isinstance(each, ast.ImportFrom):
        return each.module in ("time", "asyncio") and any(alias.name == "sleep" for alias in each.names)
    if not isinstance(each, ast.Call) or not isinstance(each.func, ast.Attribute):
        return False
    timeouts = [*each.args, *(keyword.value for keyword in each.keywords if keyword.arg == "timeout")]
    numbers = [number.value for number in timeouts if isinstance(number, ast.Constant)]
    match each.func.attr:
        case "sleep":
            return numbers != [0]
        case "wait" | "wait_for":  # of an event, a barrier, a condition, or of asyncio
            return any(isinstance(number, int | float) and 0 < number < MIN_TIMEOUT_SECONDS for number in numbers)
        case "select":
            return len(each.args) == 4 and all(isinstance(it, ast.List) and not it.elts for it in each.args[:3])
        case _:
            return False


def test_only_listed_tests_sleep():
    files = TESTS.rglob("*.py")
    assert {file.relative_to(TESTS).as_posix() for file in files if any(map(is_sleep, nodes(file)))} == set(SLEEPERS)


@pytest.mark.parametrize(
    "code",
    [
        *("time.sleep(1)", "await asyncio.sleep(x)", "from time import sleep as nap", "threading.Event().wait(0.03)"),
        *("await asyncio.wait([task], timeout=0.3)", "barrier.wait(0.2)", "select.select([], [], [], 0.1)"),
    ],
)
def test_the_rule_recognises_a_sleep(code: str):
    assert any(map(is_sleep, ast.walk(ast.parse(code))))
    harmless = "await asyncio.sleep(0); event.wait(10); process.wait(30); select.select([a], [], [], 0)"
    assert not any(map(is_sleep, ast.walk(ast.parse(harmless))))


def names_private(each: ast.AST) -> bool:
    """Return whether a node replaces or reads a private name of another module."""
    if isinstance(each, ast.Attribute):
        is_other = isinstance(each.value, ast.Name) and each.value.id not in ("self", "cls")
        return is_other and re.match("_[a-z]", each.attr) is not None and each.attr != "_replace"
    if not isinstance(each, ast.Call):
        return False
    called = each.func.attr if isinstance(each.func, ast.Attribute) else getattr(each.func, "id", "")
    words = [word.value for word in each.args if isinstance(word, ast.Constant) and isinstance(word.value, str)]
    return called in ("setattr", "getattr") and any(re.search(r"(^|\.)_[a-zA-Z]", word) for word in words)


def test_only_listed_tests_use_private_names():
    files = TESTS.rglob("test_*.py")
    assert {file.relative_to(TESTS).as_posix() for file in files if any(map(names_private, nodes(file)))} == set(
        PRIVATE_USERS
    )


@pytest.mark.parametrize("code", ['patch.setattr(m, "_x", 1)', 'patch.setattr("a.b._C.d", 1)', "module._x()"])
def test_the_rule_recognises_a_private_name(code: str):
    assert any(map(names_private, ast.walk(ast.parse(code))))
    assert not any(map(names_private, ast.walk(ast.parse('self._x, patch.setattr(m, "x_y", 1), m.__name__'))))


# Documentation


@pytest.mark.parametrize(
    "page",
    [
        *("settings.md", "cli.md", "scopes.md", "errors.md", "tools.md", "rest.md", "knowledge-base.md", "agents.md"),
        "management.md",
        *("../../.env.example", "../../llms.txt"),
    ],
)
def test_the_reference_pages_are_up_to_date(generator: Any, page: str):
    assert (REFERENCE / page).read_text("utf-8") == generator.PAGES[page](), "run: python docs/reference/generate.py"


def rows(page: str) -> dict[str, list[str]]:
    """Return the cells of each row of a page's tables, by the first cell."""
    lines = [line for line in (REFERENCE / page).read_text("utf-8").splitlines() if line.startswith("| `")]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return {row[0].strip("`"): row[1:] for row in cells}


def test_every_setting_is_documented_with_its_names_and_help():
    found = rows("settings.md")
    assert list(found) == [item.name for item in fields(Settings)]
    for item in fields(Settings):
        assert found[item.name][0] == " or ".join(f"`{variable}`" for variable in environment_names(item))
        assert found[item.name][-1] == item.metadata["help"]


def test_every_command_is_documented_with_an_example(generator: Any):
    page = (REFERENCE / "cli.md").read_text("utf-8")
    paths = [path for path, _ in generator.commands()]
    assert len(paths) > 20
    for path, command in generator.commands():
        assert f"\n## almanac {path}\n" in page
        assert "Example:" in generator.text(command), f"almanac {path} --help has no example"
        assert re.search(rf"almanac {path}\b", generator.text(command).partition("Example:")[2])


def test_every_scope_is_documented():
    assert {scope: cells[0] for scope, cells in rows("scopes.md").items()} == scopes.SCOPES


def test_every_error_code_is_documented_with_its_status(generator: Any):
    def below(kind: type[AlmanacError]) -> Iterator[type[AlmanacError]]:
        yield kind
        for each in kind.__subclasses__():
            yield from below(each)

    found = rows("errors.md")
    ours = {kind for kind in below(AlmanacError) if kind.__module__.startswith("almanac.")}
    assert {kind.code for kind in ours} == set(found)
    for code, cells in found.items():
        assert int(cells[0]) in {kind.status for kind in ours if kind.code == code}


def test_every_tool_is_documented():
    page = (REFERENCE / "tools.md").read_text("utf-8")
    for surface in SURFACES:
        for tool in surface.operations:
            assert f"\n### {tool.name}\n" in page
