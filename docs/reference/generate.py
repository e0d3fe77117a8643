"""Writes the pages of this folder from the code, or checks that they agree with the code.

python docs/reference/generate.py [--check]
"""

import argparse
import inspect
import json
import pkgutil
import re
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import MISSING, Field, fields
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import typer.main
from rich.text import Text
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

import almanac
from almanac.app import SURFACES
from almanac.cli import build
from almanac.core import scopes
from almanac.core.errors import AlmanacError
from almanac.core.settings import Settings, environment_names
from almanac.operations.operation import Operation, Rest
from almanac.operations.pipeline.file_answer import FileAnswer
from almanac.surfaces import contracts
from almanac.surfaces.weknora.tools import CONTRACT
from almanac.web import openapi
from almanac.web.agents.cards import AGENTS_PREFIX
from almanac.web.agents.messages import AGENT_OPERATIONS
from almanac.web.api_v1 import API_OPERATIONS
from almanac.web.catalogue.routes import CATALOGUE_OPERATIONS, CATALOGUE_PREFIX
from almanac.web.login import MANAGEMENT_OPERATIONS, MANAGEMENT_PREFIX
from almanac.web.rest import API_PREFIX

FOLDER = Path(__file__).parent
GENERATED = "<!-- Written by docs/reference/generate.py from the code. Change the code, then run it. -->"


def settings_page() -> str:
    """Every setting, under the headings of the table in `core/settings.py`."""
    parts = [
        "# Settings\n",
        "A value comes from, in this order: a command-line option, the environment, the settings file, the\n"
        "default. The file is `almanac.toml` in the working folder, or the one that `ALMANAC_CONFIG` names; its\n"
        "entries have the names of the first column. `almanac doctor` prints the value and the source of every\n"
        "setting.\n",
        "Each secret can also be in a file: `ALMANAC_SECRET_FILE=/run/secrets/almanac` reads `ALMANAC_SECRET` from\n"
        'there. Every variable with the type "text, secret" has such a form, with the ending `_FILE`. White space\n'
        "around the content is ignored. A missing or empty file is an error, and so are both variables at once.\n",
    ]
    for heading, items in _sections():
        rows = [
            [f"`{item.name}`", _variables(item), _kind(item), _default(item), item.metadata["help"]] for item in items
        ]
        parts += [f"## {heading}\n", _table(["Setting", "Environment", "Type", "Default", "Meaning"], rows)]
    return _page(parts)


def scopes_page() -> str:
    """Every scope, and its default holders."""
    rows = [[f"`{name}`", meaning, _holders(name)] for name, meaning in scopes.SCOPES.items()]
    return _page(
        [
            "# Scopes\n",
            "A scope is a permission of a token. A tool that needs a missing scope is neither listed for the token\n"
            "nor callable with it. Name scopes with `almanac token add NAME --scope SCOPE`, once for each;\n"
            "without any, a token gets those of its holder's kind. Only an administrator's token may have\n"
            "`audit:read` and `admin`. On the memory surface every tool is listed, and a call without its scope is\n"
            "refused with `auth.insufficient_scope`.\n",
            _table(["Scope", "Allows to", "Without --scope, a token of"], rows),
        ]
    )


def errors_page() -> str:
    """Every error code."""
    for module in pkgutil.walk_packages(almanac.__path__, "almanac."):
        if not module.name.endswith("__main__"):
            import_module(module.name)  # otherwise the page would depend on the modules that are imported so far
    kinds = {kind.code: kind for kind in sorted(_errors(), key=lambda kind: len(kind.__mro__), reverse=True)}
    ordered = sorted(kinds.values(), key=lambda kind: (kind.status, kind.code))
    rows = [[f"`{kind.code}`", str(kind.status), _sentence(kind), kind.remedy or "—"] for kind in ordered]
    return _page(
        [
            "# Errors\n",
            "Every failure has a stable code, a sentence, and usually a remedy. A tool answers with a result marked\n"
            "as an error; its text begins with the code. A request that reaches no tool is answered with the status\n"
            'and a body of `{"error": …, "code": …}`. The sentence below is the usual one. An error with more\n'
            "information, such as the name of a wrong argument, has a sentence of its own.\n",
            _table(["Code", "Status", "Usual sentence", "Usual remedy"], rows),
        ]
    )


def cli_page() -> str:
    """Every command with its arguments and options."""
    parts = [
        "# Command line\n",
        "`almanac COMMAND --help` prints the same text. A failure is one line on standard error that names the\n"
        "remedy, and the exit status is 1 (2 if the command itself was mistyped). `--json` prints JSON for\n"
        "programs.\n",
        _table(["Command", "Effect"], [[f"`almanac {path}`", _first(text(it))] for path, it in commands()]),
    ]
    for path, command in commands():
        what, example = _split(text(command))
        parts += [f"## almanac {path}\n", f"{what}\n", f"```sh\n{example}\n```\n"]
        rows = [[_spelling(parameter), _help(parameter)] for parameter in _visible(command)]
        parts += [_table(["Argument or option", "Meaning"], rows)] if rows else []
    return _page(parts)


def tools_page() -> str:
    """Every tool of every surface, from the committed contracts."""
    parts = [
        "# Tools\n",
        "The tools of each surface, from its contract (`almanac/surfaces/*/contract.json`), which equals the served\n"
        "tools. A token may call only the tools that its scopes and limits allow; most surfaces list no others.\n",
    ]
    for surface in SURFACES:
        parts += [f"## {surface.title or surface.name}, at `{surface.path}`\n"]
        for tool in contracts.committed_tools(surface):
            parts += [f"### {tool['name']}\n", f"{tool['description']}\n", f"{_behaviour(tool)}\n"]
            needed = next(each.scopes for each in surface.operations if each.name == tool["name"])
            parts += [f"Needs the scopes {', '.join(sorted(needed))}.\n" if needed else "Needs no scope.\n"]
            parts += list(_schema("Argument", "Takes no arguments.", tool["inputSchema"]))
            parts += list(_schema("Answer", "", tool.get("outputSchema", {})))
    parts += ["## WeKnora, in process\n", "Made by `almanac.weknora.create_weknora_server`; not served over HTTP.\n"]
    for tool in CONTRACT:
        parts += [f"### {tool['name']}\n", f"{tool['description']}\n"]
        parts += list(_schema("Argument", "Takes no arguments.", tool["inputSchema"]))
    return _page(parts)


def agents_page() -> str:
    """Every endpoint of the agent."""
    parts = [
        "# The agent over HTTP\n",
        "The agent answers from knowledge bases, with citations. `GET /.well-known/agent-card.json` is its card, as\n"
        f"the A2A protocol has it; `POST {AGENTS_PREFIX}/{{agent}}` is the protocol itself (JSON-RPC, version 1.0:\n"
        "`SendMessage`, `SendStreamingMessage`, `GetTask`, `CancelTask`). WeKnora's clients use the requests below;\n"
        f"`GET {AGENTS_PREFIX}/openapi.json` is the same as OpenAPI 3.1. Send a token as in [REST](rest.md), or\n"
        "in the message's own context as `api_key`.\n",
        _table(
            ["Request", "Name", "Effect"],
            _overview(AGENT_OPERATIONS),
        ),
    ]
    return _page([*parts, *_requests(AGENT_OPERATIONS)])


def rest_page() -> str:
    """Every REST endpoint, from the table that serves them."""
    parts = [
        "# REST\n",
        f"Everything below is under `{API_PREFIX}`; `GET {API_PREFIX}/openapi.json` is the same as OpenAPI 3.1. Send a "
        "token as\n"
        "`Authorization: Bearer …` or `X-API-Key: …`, and bodies as JSON. A number in a body must be a JSON number;\n"
        'a field that is not in the table is refused. A failure is `{"error": …, "code": …}` with the status\n'
        "of [its code](errors.md). A reached limit answers 429 with `Retry-After`. Every answer has an\n"
        "`x-request-id`, yours if you sent one. Objects that you may not see and objects that do not exist give the\n"
        "same 404.\n",
        _table(
            ["Request", "Name", "Effect"],
            _overview(API_OPERATIONS),
        ),
        "The name is the one in the audit trail, and the one that a token's `--tool` takes.\n",
    ]
    return _page([*parts, *_requests(API_OPERATIONS)])


def management_page() -> str:
    """Every endpoint of the management API."""
    parts = [
        "# Management API\n",
        f"At the paths that Knowi's contract gives them, below `{MANAGEMENT_PREFIX}`;\n"
        f"`GET {MANAGEMENT_PREFIX}/openapi.json` is the same as OpenAPI 3.1. `almanac client add USER` makes the\n"
        "credentials of a login. Errors are as in [REST](rest.md).\n",
        _table(
            ["Request", "Name", "Effect"],
            _overview(MANAGEMENT_OPERATIONS),
        ),
    ]
    return _page([*parts, *_requests(MANAGEMENT_OPERATIONS)])


def knowledge_base_page() -> str:
    """Every REST endpoint of the catalogue."""
    parts = [
        "# REST of the catalogue\n",
        f"At the paths that the gateway's contract gives them; `GET {CATALOGUE_PREFIX}/openapi.json` is the same as\n"
        "OpenAPI 3.1. Send a key as `X-API-Key`, `X-Access-Key` or `Authorization: Bearer`: the first that is not\n"
        "empty counts. Everything else is as in [REST](rest.md). Every member of the organisation may read,\n"
        "with the scope `catalogue:read`; writing needs `catalogue:write` and the role Developer on the catalogue\n"
        "(`almanac catalogue share`), or an administrator.\n",
        _table(
            ["Request", "Name", "Effect"],
            _overview(CATALOGUE_OPERATIONS),
        ),
    ]
    return _page([*parts, *_requests(CATALOGUE_OPERATIONS)])


def _overview(operations: Sequence[Operation]) -> list[list[str]]:
    return [[f"`{_rest(it).method} {_rest(it).path}`", f"`{it.name}`", it.summary] for it in operations]


def _rest(operation: Operation) -> Rest:
    assert operation.rest is not None
    return operation.rest


def _requests(operations: Sequence[Operation]) -> Iterator[str]:
    """Each operation, then the models of the answers."""
    yield "## Requests\n"
    for operation in operations:
        yield from _operation(operation)
    yield "## Answers\n"
    models = cast("dict[str, dict[str, Any]]", openapi.describe(operations)["components"]["schemas"])
    bodies = {model.__name__ for operation in operations if (model := openapi.body_model(operation)) is not None}
    for name, model in sorted(models.items()):
        if name not in bodies:
            yield f"### {name}\n"
            yield f"{model.get('description', 'Part of another model.')}\n"
            if "properties" in model:
                always = model.get("required", [])
                yield _fields(
                    "Field", {key: {**each, "required": key in always} for key, each in model["properties"].items()}
                )
            else:
                yield f"It is {_meaning(model, is_always=True).partition('.')[0]}.\n"


def environment_file() -> str:
    """Every setting as a comment, for programs that start the server with variables from a file."""
    lines = [
        "# Written by docs/reference/generate.py from the code. Change the code, then run it.",
        "# Every setting with its default. Almanac does not read this file: see docs/how-to/install.md.",
        "# A secret can be in a file instead: ALMANAC_SECRET_FILE=/run/secrets/almanac",
    ]
    for heading, items in _sections():
        lines += ["", f"## {heading}"]
        for item in items:
            value = "" if _default(item) == "empty" else _default(item).strip("`")
            help_lines = textwrap.wrap(f"{item.metadata['help']}{' Secret.' * item.metadata['secret']}", 118)
            lines += [*(f"# {line}" for line in help_lines), f"#{environment_names(item)[0]}={value}"]
    return "\n".join(lines) + "\n"


def documentation_index() -> str:
    """The documentation for language models, in the form of llmstxt.org: the links of docs/README.md."""
    page = (FOLDER.parent / "README.md").read_text("utf-8")
    lines = [
        "# Almanac\n",
        "> One self-hosted server that gives AI agents an organisation's knowledge: documents, a catalogue and",
        "> notes, over MCP, REST and a command line.\n",
        "The distribution is `almanac-server`, the command `almanac`. Clients connect to `/mcp` with a bearer token.",
    ]
    for section in page.split("\n## ")[1:]:
        heading, _, body = section.partition("\n")
        links = re.findall(r"\[([^\]]+)\]\(([^)#]+\.md)\)", body.replace("\n", " "))
        if links:
            named = (f"- [{' '.join(name.split())}](docs/{target})" for name, target in links)
            lines += ["", f"## {heading}", "", *named]
    return "\n".join(lines) + "\n"


PAGES: dict[str, Callable[[], str]] = {
    "settings.md": settings_page,
    "cli.md": cli_page,
    "scopes.md": scopes_page,
    "errors.md": errors_page,
    "tools.md": tools_page,
    "rest.md": rest_page,
    "knowledge-base.md": knowledge_base_page,
    "agents.md": agents_page,
    "management.md": management_page,
    "../../.env.example": environment_file,
    "../../llms.txt": documentation_index,
}


def commands() -> Iterator[tuple[str, TyperCommand]]:
    """Every command: `("token add", …)`."""

    def below(path: str, node: Any) -> Iterator[tuple[str, TyperCommand]]:
        if isinstance(node, TyperGroup):
            if node.invoke_without_command and path:
                yield path, cast(TyperCommand, node)
            for name, child in node.commands.items():
                yield from below(f"{path} {name}".strip(), child)
        else:
            yield path, cast(TyperCommand, node)

    return below("", typer.main.get_command(build()))


def text(command: TyperCommand) -> str:
    """A command's help as plain text."""
    return Text.from_markup(inspect.cleandoc(command.help or "")).plain


def stale() -> list[str]:
    """The pages that differ from the code."""
    current = {name: (FOLDER / name).read_text("utf-8") if (FOLDER / name).exists() else "" for name in PAGES}
    return [name for name, page in PAGES.items() if current[name] != page()]


def main() -> int:
    """Write the pages, or with --check only compare; the exit status."""
    parser = argparse.ArgumentParser(description="Write the reference pages from the code.")
    parser.add_argument("--check", action="store_true", help="compare only; exit with 1 if a page is out of date")
    if parser.parse_args().check:
        found = stale()
        for name in found:
            sys.stdout.write(f"docs/reference/{name} is out of date: run python docs/reference/generate.py\n")
        return int(bool(found))
    for name, page in PAGES.items():
        (FOLDER / name).write_text(page(), "utf-8")
        sys.stdout.write(f"docs/reference/{name}\n")
    return 0


def _page(parts: Sequence[str]) -> str:
    title, *rest = parts
    return "\n".join([title, GENERATED + "\n", *rest])


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    cells = [[cell.replace("|", "\\|").replace("<", "&lt;") for cell in row] for row in rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in (columns, ["---"] * len(columns), *cells))


def _sections() -> Iterator[tuple[str, list["Field[Any]"]]]:
    """The settings under the comments that head them in the source."""
    items = {item.name: item for item in fields(Settings)}
    heading: str = ""
    found: list[Field[Any]] = []
    for line in inspect.getsource(Settings).splitlines():
        if comment := re.match(r"^    # (.+)$", line):
            if found:
                yield heading, found
            heading, found = comment[1], []
        elif (field := re.match(r"^    (\w+): ", line)) and field[1] in items:
            found.append(items[field[1]])
    yield heading, found


def _variables(item: "Field[Any]") -> str:
    return " or ".join(f"`{name}`" for name in environment_names(item))


def _kind(item: "Field[Any]") -> str:
    names = {"str": "text", "int": "whole number", "float": "number", "bool": "true or false", "Path": "path"}
    kind = names.get(getattr(item.type, "__name__", ""), "list")
    row = item.metadata
    if row["choices"]:
        return " or ".join(f"`{choice}`" for choice in row["choices"] if choice)
    if row["max"] is not None:
        return f"{kind}, {row['min']:g} to {row['max']:g}"
    if row["secret"]:
        return f"{kind}, secret"
    return kind if row["min"] is None else f"{kind}, at least {row['min']:g}"


def _default(item: "Field[Any]") -> str:
    default = item.default
    if default is MISSING or default in ("", ()):
        return "empty"
    if isinstance(default, tuple):
        return f"`{', '.join(cast('tuple[str, ...]', default))}`"
    return f"`{str(default).lower() if isinstance(default, bool) else default}`"


def _holders(scope: str) -> str:
    holders = ["an administrator"]
    holders += ["a user"] if scope in scopes.UNPRIVILEGED_SCOPES else []
    holders += ["an agent"] if scope in scopes.DEFAULT_AGENT_SCOPES else []
    return ", ".join(holders)


def _errors(kind: type[AlmanacError] = AlmanacError) -> Iterator[type[AlmanacError]]:
    """The errors that are raised, without base classes, which have no code of their own."""
    below = kind.__subclasses__()
    ours = kind.__module__.startswith("almanac.") and kind is not AlmanacError
    if ours and ("code" in vars(kind) or not below):
        yield kind
    for each in below:
        yield from _errors(each)


def _sentence(kind: type[AlmanacError]) -> str:
    return " ".join((kind.__doc__ or "").split())


def _split(help: str) -> tuple[str, str]:
    """The description of a command, and its example."""
    what, _, rest = help.partition("Example:")
    example, _, after = rest.strip().partition(". ")
    return f"{what.strip()} {after}".strip(), example


def _first(help: str) -> str:
    return _split(help)[0].partition(". ")[0].rstrip(".")


def _visible(command: TyperCommand) -> list[TyperOption | TyperArgument]:
    parameters = cast("list[TyperOption | TyperArgument]", command.params)
    return [each for each in parameters if not each.hidden and each.name != "help"]


def _spelling(parameter: TyperOption | TyperArgument) -> str:
    if isinstance(parameter, TyperArgument):
        return f"`{parameter.metavar or (parameter.name or '').upper()}`"
    takes = "" if parameter.is_flag else f" {parameter.opts[0].strip('-').replace('-', '_').upper()}"
    return f"`{parameter.opts[0]}{takes}`"


def _help(parameter: TyperOption | TyperArgument) -> str:
    default = parameter.show_default if isinstance(parameter.show_default, str) else None
    if default is None and isinstance(parameter.default, int | str) and not isinstance(parameter.default, bool):
        default = str(parameter.default)
    return (parameter.help or "") + (f" Default: `{default}`." if default else "")


def _operation(operation: Operation) -> Iterator[str]:
    rest = _rest(operation)
    scopes = ", ".join(f"`{scope}`" for scope in sorted(operation.scopes))
    yield f"### {rest.method} {rest.path}\n"
    needs = "The credential is in the body." if _rest(operation).credentials is None else "Any token will do."
    yield f"{operation.summary.rstrip('.')}. {f'Needs the scope {scopes}.' if scopes else needs}\n"
    if found := openapi.parameters(operation):
        rows = [
            [f"`{it['name']}`", it["in"], _meaning({**it["schema"], **it}, is_always=it["required"])] for it in found
        ]
        yield _table(["Parameter", "In", "Meaning"], rows)
    if (model := openapi.body_model(operation)) is not None:
        yield _fields("Body", openapi.fields(model, openapi.body_omits(operation)))
        yield f"```json\n{json.dumps(operation.example.arguments or {})}\n```\n"
    if (form := openapi.form_schema(operation)) is not None:
        yield "Or as `multipart/form-data`:\n"
        yield _fields(
            "Part", {name: {**it, "required": name in form["required"]} for name, it in form["properties"].items()}
        )
    if rest.form is not None and rest.form.takes_raw_bytes:
        yield "Or the file itself, as `application/octet-stream`.\n"
    yield f"{_answers(operation)}\n"


def _answers(operation: Operation) -> str:
    rest = _rest(operation)
    answer = operation.answer
    content = "nothing" if answer is None else "the file" if answer is FileAnswer else _link(answer)
    further = "".join(f" {status}: {text}" for status, text in rest.other_statuses.items())
    return f"Answers {rest.status} with {content}.{further}"


def _link(shape: Any) -> str:
    return f"[{shape.__name__}](#{shape.__name__.lower()})"


def _fields(heading: str, found: dict[str, dict[str, Any]]) -> str:
    rows = [[f"`{name}`", _meaning(each, is_always=each["required"])] for name, each in found.items()]
    return _table([heading, "Meaning"], rows)


def _meaning(schema: dict[str, Any], *, is_always: bool) -> str:
    """The type of a field, whether it is optional, its description and its default."""
    ways = cast("list[dict[str, Any]]", schema.get("anyOf", [schema]))
    description = next((it["description"] for it in [schema, *ways] if "description" in it), "")
    default = schema.get("default")
    default_text = f"Default: `{json.dumps(default)}`." if default not in (None, "", [], {}) else ""
    kind = " or ".join(_named(it) for it in ways)
    return " ".join(filter(None, [f"{kind}{'' if is_always else ', optional'}.", description, default_text]))


def _named(schema: dict[str, Any]) -> str:
    if "enum" in schema:
        return " or ".join(f"`{choice}`" for choice in schema["enum"])
    if schema.get("type") == "array":
        return f"array of {_named(schema.get('items', {}))}"
    name = _type(schema)
    return f"[{name}](#{name.lower()})" if "$ref" in schema else name


def _behaviour(tool: dict[str, Any]) -> str:
    hints = tool.get("annotations")
    if hints is None:
        return "Its contract does not say whether it changes data."
    sentences = [
        "Only reads data." if hints.get("readOnlyHint") else "Changes data.",
        "May destroy data." if hints.get("destructiveHint", not hints.get("readOnlyHint")) else "",
        "May be repeated." if hints.get("idempotentHint") else "",
    ]
    return " ".join(filter(None, sentences))


def _schema(heading: str, without: str, schema: dict[str, Any]) -> Iterator[str]:
    named = cast("dict[str, dict[str, Any]]", schema.get("properties", {}))
    if not named:
        yield from ([f"{without}\n"] if without else [])
        return
    required = schema.get("required", [])
    rows = [[f"`{name}`", _type(each), "yes" if name in required else "no", each.get("description", "")]
            for name, each in named.items()]  # fmt: skip
    yield _table([heading, "Type", "Always", "Meaning"], rows)


def _type(schema: dict[str, Any]) -> str:
    if "anyOf" in schema:
        return " or ".join(_type(each) for each in schema["anyOf"])
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    return str(schema.get("type", "any"))


if __name__ == "__main__":
    sys.exit(main())
