"""The files at the top of the repository agree with the package and with each other."""

import json
import re
import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from almanac import __version__
from almanac.core.settings import Settings, environment_names
from almanac.core.settings_loader import load

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
VARIABLES = {name for item in fields(Settings) for name in environment_names(item)}
PAGES = [
    "README.md",
    "SECURITY.md",
    "AGENTS.md",
    "CONTRIBUTING.md",
    "llms.txt",
    "docs/README.md",
    "docs/how-to/install.md",
]


def read(name: str) -> str:
    return (ROOT / name).read_text("utf-8")


def test_the_registry_entry_describes_the_package():
    entry: dict[str, Any] = json.loads(read("server.json"))
    assert entry["$schema"] == "https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json"
    assert re.fullmatch(r"[a-zA-Z0-9.-]+/[a-zA-Z0-9._-]+", entry["name"])
    assert len(entry["description"]) <= 100
    [package] = entry["packages"]
    assert entry["version"] == package["version"] == PROJECT["version"] == __version__
    assert (package["identifier"], package["registryType"]) == (PROJECT["name"], "pypi")
    assert f"<!-- mcp-name: {entry['name']} -->" in read("README.md"), "the registry looks for it in the package"
    assert {each["name"] for each in package["environmentVariables"]} == {"ALMANAC_TOKEN", "ALMANAC_HOME"}
    [argument] = package["packageArguments"]
    assert argument == {"type": "positional", "value": "stdio"}


def test_the_command_of_the_registry_entry_exists():
    # `uvx almanac-server` runs the command with the name of the distribution.
    assert PROJECT["scripts"] == {"almanac": "almanac.cli:main", PROJECT["name"]: "almanac.cli:main"}


def test_the_example_of_an_environment_sets_every_setting_to_its_default():
    lines = read(".env.example").splitlines()
    values = dict(line[1:].split("=", 1) for line in lines if re.match(r"#[A-Z_0-9]+=", line))
    assert set(values) == {environment_names(item)[0] for item in fields(Settings)}
    assert load(values).settings == Settings()
    assert [line for line in lines if line and not line.startswith("#")] == []


def test_the_image_uses_files_and_settings_that_exist():
    recipe = read("Containerfile")
    copied = [name for line in re.findall(r"^COPY (?!--from)(.+)$", recipe, re.MULTILINE) for name in line.split()[:-1]]
    assert copied
    kept = {line.removeprefix("!") for line in read(".containerignore").splitlines() if line.startswith("!")}
    assert set(copied) == kept
    assert all((ROOT / name).exists() for name in copied)
    assert set(re.findall(r"ALMANAC_\w+", recipe)) <= VARIABLES
    [version] = re.findall(r"uv==([\d.]+)", recipe)
    assert f"version={version}" in read("scripts/uv")


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_files(page: str):
    targets = re.findall(r"\]\((?!https?:)([^)#]+)", read(page))
    missing = [target for target in targets if not ((ROOT / page).parent / target).exists()]
    assert missing == []


def test_the_index_for_language_models_lists_every_page():
    pages = {str(page.relative_to(ROOT)) for page in (ROOT / "docs").glob("*/*.md")}
    assert pages == set(re.findall(r"\((docs/[a-z-]+/[^)]+)\)", read("llms.txt")))


def test_the_commands_for_coding_agents_exist():
    targets = set(re.findall(r"^([a-z-]+):", read("Makefile"), re.MULTILINE))
    for page in ("AGENTS.md", "CONTRIBUTING.md", "docs/how-to/install.md"):
        assert set(re.findall(r"`?make ([a-z-]+)", read(page))) - {"help"} <= targets


def test_every_client_line_gives_the_server_the_same_name():
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    lines = [
        line
        for page in pages
        for line in page.read_text("utf-8").splitlines()
        if re.search(r"mcp add .*(/mcp\b(?!/)|stdio)", line)
    ]
    assert len(lines) > 5
    assert [line for line in lines if " almanac " not in line] == []
