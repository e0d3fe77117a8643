"""The catalogue at the command line: import, dry run, export and sharing."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.catalogue.sample_catalogue import FILE, POWERJET
from tests.cli.conftest import Almanac


@pytest.fixture
def filled(peopled: Almanac) -> Almanac:
    assert peopled("catalogue", "import", str(FILE)).code == 0
    return peopled


def test_a_dry_run_lists_what_an_import_then_does(peopled: Almanac):
    looked = peopled("catalogue", "import", str(FILE), "--dry-run")
    assert looked.code == 0
    assert "add category Products/Washers/Electric\n" in looked.out
    assert "add entity PowerJet 1800\n" in looked.out
    assert "7 × entity: would be added\n" in looked.out
    done = peopled("catalogue", "import", str(FILE))
    assert "7 × entity: added\n" in done.out
    again = json.loads(peopled("catalogue", "import", str(FILE), "--json").out)
    assert again["counts"]["entity"] == {"same": 7}
    assert again["changes"] == []


def test_categories_are_added_and_listed_in_their_tree(peopled: Almanac):
    assert peopled("category", "list").err == "No category yet: almanac category add NAME\n"
    added = peopled("category", "add", "Washers", "--description", "They clean")
    assert (added.code, added.err) == (0, "")
    assert peopled("category", "add", "Hot", "--parent", "Washers").code == 0
    assert peopled("category", "add", "Small", "--parent", "Washers/Hot").code == 0
    rows = json.loads(peopled("category", "list", "--json").out)
    assert [(row["path"], row["entities"]) for row in rows] == [
        ("Washers", 0), ("Washers/Hot", 0), ("Washers/Hot/Small", 0),
    ]  # fmt: skip
    assert rows[0]["id"] == added.out.strip()
    assert rows[0]["description"] == "They clean"
    assert "Washers/Hot/Small" in peopled("category", "list").out
    assert peopled("category", "add", "Cold", "--parent", "Nowhere").complaint().startswith("There is no category")
    assert "Washers" in peopled("category", "add", "Washers").complaint()


def test_what_is_exported_is_imported_again(filled: Almanac, tmp_path: Path):
    written = tmp_path / "out.json"
    assert filled("catalogue", "export", str(written)).code == 0
    whole = json.loads(written.read_text("utf-8"))
    assert {each["name"] for each in whole["entities"]} >= {"PowerJet 1800", "Meadow 40"}
    assert filled("catalogue", "export").out == written.read_text("utf-8")
    again = json.loads(filled("catalogue", "import", str(written), "--json").out)
    assert {action for counts in again["counts"].values() for action in counts} == {"same"}


@pytest.mark.parametrize("form", ["jsonl", "csv"])
def test_entities_alone_come_out_line_by_line(filled: Almanac, tmp_path: Path, form: str):
    written = tmp_path / f"out.{form}"
    assert filled("catalogue", "export", str(written), "--format", form).code == 0
    assert len(written.read_text("utf-8").splitlines()) == (7 if form == "jsonl" else 8)
    report = json.loads(filled("catalogue", "import", str(written), "--json", "--dry-run").out)
    # A CSV has no column for a list in the metadata. The import keeps keys that the file does not name.
    assert report["counts"]["entity"] == {"same": 7}


@pytest.mark.parametrize("form", ["json", "jsonl", "csv"])
def test_an_import_of_one_field_changes_this_field_alone(filled: Almanac, tmp_path: Path, form: str):
    def exported() -> dict[str, dict[str, Any]]:
        return {entity["_id"]: entity for entity in json.loads(filled("catalogue", "export").out)["entities"]}

    fields = {
        "description": "Light",
        "details": "# New",
        "source": "fair",
        "sku": "X-9",
        "status": "draft",
        "tags": ["new"],
    }
    for name, value in fields.items():
        before = exported()
        entity = before[POWERJET]
        named = {**{key: entity[key] for key in ("_id", "name", "category")}, name: value}
        text = json.dumps(named) if form != "csv" else f"_id,name,category,{name}\n{','.join(cells(named))}\n"
        (tmp_path / f"in.{form}").write_text(f"[{text}]" if form == "json" else text)
        assert filled("catalogue", "import", str(tmp_path / f"in.{form}")).code == 0
        assert exported() == {**before, POWERJET: {**entity, name: value}}


def cells(entity: dict[str, Any]) -> list[str]:
    return [",".join(value) if isinstance(value, list) else value for value in entity.values()]  # pyright: ignore[reportUnknownArgumentType,reportUnknownVariableType]


def test_what_is_wrong_is_said_in_a_line(peopled: Almanac, tmp_path: Path):
    for name, content, problem in (
        ("a.txt", "", "cannot be imported"),
        ("a.json", "{", "not valid JSON"),
        ("b.json", '[{"name": "x", "category": "nowhere"}]', "There is no category 'nowhere'."),
    ):
        (tmp_path / name).write_text(content)
        answer = peopled("catalogue", "import", str(tmp_path / name))
        assert answer.code == 1
        assert problem in answer.err
    assert peopled("catalogue", "import", str(tmp_path / "none.json")).code == 1
    assert "There is no format 'xml'." in peopled("catalogue", "export", "--format", "xml").err


def test_the_catalogue_is_shared_and_taken_back(filled: Almanac):
    assert filled("catalogue", "share", "--user", "maria").code == 0
    assert filled("catalogue", "share", "--user", "maria", "--withdraw").code == 0
    assert filled("catalogue", "share").code == 1
    assert filled("catalogue", "share", "--user", "nobody").code == 1
