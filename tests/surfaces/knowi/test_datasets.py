"""The tools for datasets: pushing and reading rows, details and deletion, and the bounds between callers."""

import json
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from almanac.app import open_app
from almanac.core.database import Database
from almanac.core.errors import AlmanacError
from almanac.operations.context import RequestContext
from almanac.surfaces.knowi.tools import SURFACE
from tests.catalogue.sample_catalogue import call_of
from tests.live_server import ERAS, Running, settings_for
from tests.statements import Recorder, Statement
from tests.surfaces.knowi.caller import PATH, Caller, caller
from tests.surfaces.wire import audit_of

ANOTHER_ORG = "acme"
NEVER = 999_999_999
ORDERS: list[dict[str, Any]] = [
    {"City": "Graz", "Net amount": 10, "day": "2026-01-02", "paid": True, "tags": ["a"], "who": {"name": "Eva"}},
    {"City": "Wien", "Net amount": 20, "day": "2026-01-03", "paid": False, "tags": [], "who": {"name": "Dan"}},
    {"City": "Graz", "Net amount": 30, "day": None, "paid": None, "tags": None, "who": None},
]


@pytest.fixture(scope="module")
def ada(live: Running) -> Caller:
    """A user who is no administrator."""
    return caller(live, "ada")


@pytest.fixture
def orders(ada: Caller) -> int:
    """The id of a dataset of Ada with three rows."""
    return push(ada, f"Orders {uuid.uuid4()}", *ORDERS)["datasetId"]


def push(someone: Caller, name: str, *rows: dict[str, Any]) -> dict[str, Any]:
    return someone.data("knowi_push_data", {"datasetName": name, "rows": list(rows)})


def get_data(someone: Caller, id: int, **arguments: Any) -> dict[str, Any]:
    return someone.data("knowi_get_data", {"datasetId": id, **arguments})


def details(someone: Caller, id: int) -> dict[str, Any]:
    return someone.data("knowi_get_details", {"assetType": "dataset", "assetId": id})


def name_of(someone: Caller, id: int) -> str:
    return details(someone, id)["name"]


def manage(someone: Caller, method: str, id: int, path: str = "", **body: Any) -> None:
    """Change a dataset over REST."""
    answer = someone.http.request(method, f"/api/v1/datasets/{id}{path}", json=body, headers=someone.headers)
    assert answer.status_code < 300, answer.text


# Push


def test_pushed_rows_make_a_dataset_and_are_appended_to_it(live: Running, ada: Caller):
    first = ada.call("knowi_push_data", {"datasetName": "Sales of pumps", "rows": ORDERS})
    data = json.loads(first["content"][1]["text"])
    id = data["datasetId"]
    assert (
        first["content"][0]["text"] == f"Pushed 3 rows to the new dataset Sales of pumps ({id}), which has 3 rows now."
    )
    assert (data["datasetName"], data["created"], data["pushedRows"]) == ("Sales of pumps", True, 3)
    page = live.http.get(data["url"].replace(live.settings.url, ""), headers=ada.headers).json()
    assert (page["name"], page["rows"]) == ("Sales of pumps", 3)
    again = push(ada, "SALES of pumps", {"City": "Linz"})  # the case of letters makes no difference
    assert (again["datasetId"], again["created"], again["totalRows"], again["version"]) == (id, False, 4, 2)
    assert [row["City"] for row in get_data(ada, id)["rows"]] == ["Graz", "Wien", "Graz", "Linz"]


def test_a_type_that_widens_is_named_in_the_answer(ada: Caller, orders: int):
    sent = {
        "datasetName": name_of(ada, orders),
        "rows": [{"Net amount": 1.5, "day": "2026-01-04T10:00:00", "paid": "?"}],
    }
    answer = ada.call("knowi_push_data", sent)
    assert json.loads(answer["content"][1]["text"])["widened"] == [
        {"field": "Net amount", "before": "integer", "now": "decimal"},
        {"field": "day", "before": "date", "now": "timestamp"},
        {"field": "paid", "before": "boolean", "now": "text"},
    ]
    assert "The field Net amount was integer and is decimal now." in answer["content"][0]["text"]


def test_a_declared_type_refuses_other_values(ada: Caller, orders: int):
    manage(ada, "PATCH", orders, fields={"Net amount": {"type": "integer"}})
    sent = {"datasetName": name_of(ada, orders), "rows": [{"Net amount": 1}, {"Net amount": "much"}]}
    text = ada.refused("knowi_push_data", sent)
    assert text.startswith("Validation error: Row 2: the value of 'Net amount' is no integer"), text
    assert get_data(ada, orders)["totalRows"] == 3


def test_a_colleague_who_may_not_write_a_dataset_is_denied_and_makes_no_second_one(
    live: Running, ada: Caller, orders: int
):
    ben, name = caller(live, "ben"), name_of(ada, orders)
    sent = {"datasetName": name.upper(), "rows": [{"City": "Linz"}]}
    with capture_logs() as logs:
        text = ben.refused("knowi_push_data", sent)
    assert text == f"Access denied: you do not have permission to change dataset {orders}. Ask its owner, ada."
    [line] = [line for line in logs if line["event"] == "access_denied"]
    assert (line["resource"], line["user"] > 0) == (f"dataset {orders}", True)
    found = live.http.get("/api/v1/datasets", params={"query": name}, headers=ben.headers).json()
    assert [(each["id"], each["rows"]) for each in found["items"]] == [(orders, 3)]
    ben.send("tools/call", {"name": "knowi_push_data", "arguments": sent}, **{"x-request-id": f"push-{orders}"})
    [row] = audit_of(live, f"push-{orders}")
    assert (row["outcome"], row["touched"], row["actor"]) == ("access_denied", f"dataset:{orders}", "ben")
    manage(ada, "PUT", orders, "/shares", user="ben", role="Developer")
    assert push(ben, name, {"City": "Linz"})["totalRows"] == 4


def test_control_characters_are_stripped_from_names_values_and_nested_keys(ada: Caller):
    rows = [{"Ci\x00ty": "Gr\x1baz\n\tand more", "who": {"na\x07me": "E\x7fva"}, "tags": ["\x08a"]}]
    id = push(ada, "Strip\x0bped", *rows)["datasetId"]
    found = get_data(ada, id)
    assert (found["datasetName"], [field["name"] for field in found["fields"]]) == ("Stripped", ["City", "who", "tags"])
    assert found["rows"] == [{"City": "Graz\n\tand more", "who": {"name": "Eva"}, "tags": ["a"]}]
    text = ada.refused("knowi_push_data", {"datasetName": "Stripped", "rows": [{"a": 1, "a\x00": 2}]})
    assert text.startswith("Validation error: Two names of one object differ in control characters only.")


HOSTILE_NAMES = [
    'a"b', "SELECT", "x'; DROP TABLE datasets; --", "information_schema.tables", "a.b.c", "Größe 🙂", "--", "/* */",
    "read_csv('/etc/passwd')", "$1", "7", '"', "%", "almanac_no_field",
    "n" * 200,
]  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_any_text_is_the_name_of_a_dataset_of_a_field_and_a_value(ada: Caller, name: str):
    id = push(ada, name, {name: name})["datasetId"]
    found = get_data(ada, id)
    assert (found["datasetName"], found["rows"]) == (name, [{name: name}])
    assert details(ada, id)["schema"][0]["name"] == name


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({}, "datasetName: Field required; rows: Field required."),
    ({"datasetName": "Bad"}, "rows: Field required."),
    ({"datasetName": "Bad", "rows": {"a": 1}}, "rows: Input should be a valid list."),
    ({"datasetName": "Bad", "rows": [1]}, "rows.0: Input should be a valid dictionary."),
    ({"datasetName": "Bad", "rows": []}, "There are no rows."),
    ({"datasetName": "Bad", "rows": [{}]}, "The rows have no fields."),
    ({"datasetName": "Bad", "rows": [{"\x00": 1}]}, "'' cannot be the name of a field."),
    ({"datasetName": "Bad", "rows": [{"x" * 201: 1}]}, f"'{'x' * 200}' cannot be the name of a field."),
    ({"datasetName": "", "rows": [{"a": 1}]}, "The name of a dataset has 1 to 200 characters"),
    ({"datasetName": "x" * 201, "rows": [{"a": 1}]}, "datasetName: String should have at most 200 characters."),
    ({"datasetName": 7, "rows": [{"a": 1}]}, "datasetName: Input should be a valid string."),
    ({"datasetName": "Bad", "rows": [{"a": 1}], "mode": "replace"}, "mode: "),
]


@pytest.mark.parametrize(("arguments", "said"), REFUSED)
def test_rows_that_cannot_be_pushed_are_refused_with_a_remedy(
    live: Running, ada: Caller, arguments: dict[str, Any], said: str
):
    text = ada.refused("knowi_push_data", arguments)
    assert text.startswith(f"Validation error: {said}"), text
    assert live.http.get("/api/v1/datasets", params={"query": "Bad"}, headers=ada.headers).json()["items"] == []


def test_a_repeated_push_with_a_key_stores_nothing(live: Running, ada: Caller, orders: int):
    sent = {"datasetName": name_of(ada, orders), "rows": [{"City": "Linz"}]}
    body = {"name": "knowi_push_data", "arguments": sent}
    key = f"key {orders}"
    first = ada.send("tools/call", body, **{"idempotency-key": key}).json()["result"]
    meta = {"_meta": {"idempotencyKey": key}}
    assert ada.call("knowi_push_data", sent, **meta) == first
    assert ada.rest("POST", "/tools/call", {**body, **meta}).json()["content"] == first["content"]
    assert get_data(ada, orders)["totalRows"] == 4
    other = ada.call("knowi_push_data", {**sent, "rows": [{"City": "Bonn"}]}, **meta)
    assert (other["isError"], "other arguments" in other["content"][0]["text"]) == (True, True)


def test_a_push_whose_answer_was_lost_is_not_stored_twice(live: Running, ada: Caller, orders: int):
    sent = {"datasetName": name_of(ada, orders), "rows": [{"City": "Linz"}]}
    meta = {"_meta": {"idempotencyKey": f"lost {orders}"}}
    assert ada.call("knowi_push_data", sent, **meta)["isError"] is False
    # As after the end of a server between the push and the storing of its answer.
    live.run(lambda db: db.write(lambda tx: tx.execute("DELETE FROM repeats")))
    again = ada.call("knowi_push_data", sent, **meta)
    assert again["content"][0]["text"].startswith("The rows of this idempotency key are in dataset")
    assert json.loads(again["content"][1]["text"])["repeated"] is True
    assert get_data(ada, orders)["totalRows"] == 4


# Rows


def test_rows_are_objects_with_their_types(ada: Caller, orders: int):
    result = ada.call("knowi_get_data", {"datasetId": orders})
    found = json.loads(result["content"][1]["text"])
    assert result["content"][0]["text"].startswith("Returned 3 of 3 rows of dataset Orders")
    assert result["_meta"]["almanac/trust"] == "untrusted"
    assert found["rows"] == ORDERS
    assert (found["totalRows"], found["returnedRows"]) == (3, 3)
    assert {field["name"]: field["type"] for field in found["fields"]} == {
        "City": "text",
        "Net amount": "integer",
        "day": "date",
        "paid": "boolean",
        "tags": {"type": "list", "element": "text"},
        "who": {"type": "record", "fields": [{"name": "name", "type": "text"}]},
    }


def test_a_hundred_rows_are_returned_unless_a_limit_is_given(ada: Caller):
    id = push(ada, "Many rows", *({"n": number} for number in range(1, 251)))["datasetId"]
    found = get_data(ada, id)
    assert (found["totalRows"], found["returnedRows"], len(found["rows"])) == (250, 100, 100)
    assert found["rows"][-1] == {"n": 100}
    for limit, number in ((1, 1), (240, 240), (200_000, 250)):
        found = get_data(ada, id, limit=limit)
        assert (found["totalRows"], found["returnedRows"], len(found["rows"])) == (250, number, number)
    for limit in (0, -1, 200_001, "5", 1.5, True):
        assert ada.refused("knowi_get_data", {"datasetId": id, "limit": limit}).startswith("Validation error: limit: ")


def test_a_dataset_without_rows_still_has_its_fields(ada: Caller, orders: int):
    emptied: dict[str, Any] = {"dataset": name_of(ada, orders), "rows": [], "strategy": "replace_even_if_empty"}
    for body in (emptied, {**emptied, "dataset": f"Never filled {orders}"}):
        answer = ada.http.post("/api/v1/data/push", json=body, headers=ada.headers).json()
        found = get_data(ada, answer["dataset_id"])
        assert (found["totalRows"], found["returnedRows"], found["rows"]) == (0, 0, [])
        expected = list(ORDERS[0]) if body is emptied else []
        assert [field["name"] for field in found["fields"]] == expected


@pytest.mark.parametrize("arguments", [{}, {"widgetId": 1, "datasetId": 1}])
def test_exactly_one_id_is_required(ada: Caller, arguments: dict[str, Any]):
    assert ada.refused("knowi_get_data", arguments) == (
        "Validation error: One of widgetId or datasetId is required. Give one of them, not both."
    )


def test_a_result_has_a_receipt_with_which_it_is_verified(live: Running, ada: Caller, orders: int):
    receipt = get_data(ada, orders, limit=2)["receipt"]
    done = live.http.post("/api/v1/data/verify", json={"receipt": receipt}, headers=ada.headers).json()
    assert (done["confirmed"], done["datasets"][0]["id"]) == (True, orders)


# Details


def test_the_details_of_a_dataset_have_its_schema_with_labels_and_units(ada: Caller, orders: int):
    note = {"label": "Revenue", "description": "Net of tax", "unit": "EUR", "synonyms": ["sales"]}
    manage(ada, "PATCH", orders, description="One row for each order", fields={"Net amount": note})
    result = ada.call("knowi_get_details", {"assetType": "dataset", "assetId": orders})
    found = json.loads(result["content"][1]["text"])
    assert found["schema"][1] == {"name": "Net amount", "type": "integer", **note, "declared": False}
    assert [field["name"] for field in found["schema"]] == list(ORDERS[0])
    assert (found["assetType"], found["assetId"], found["description"]) == ("dataset", orders, "One row for each order")
    assert (found["rowCount"], found["version"], found["owner"], found["role"]) == (3, 1, "ada", "Owner")
    assert found["createdAt"] <= found["updatedAt"]
    assert found["url"].endswith(f"/api/v1/datasets/{orders}")
    assert result["content"][0]["text"].endswith("of ada has 6 fields and 3 rows")
    assert result["_meta"]["almanac/trust"] == "untrusted"


def test_details_need_a_type_of_the_seed_and_an_id(ada: Caller):
    for arguments, named in (
        ({}, "assetType: Field required; assetId: Field required."),
        ({"assetType": "dataset"}, "assetId: Field required."),
        ({"assetType": "table", "assetId": 1}, "assetType: Input should be 'dashboard', 'widget', 'dataset', 'query'"),
        ({"assetType": "dataset", "assetId": "1"}, "assetId: Input should be a valid integer."),
        ({"assetType": "dataset", "assetId": 2**70}, "assetId: Input should be a valid integer."),
    ):
        assert ada.refused("knowi_get_details", arguments).startswith(f"Validation error: {named}")


@pytest.mark.parametrize("kind", ["dashboard", "widget", "query", "report", "alert", "datasource"])
def test_an_asset_of_a_type_that_cannot_exist_yet_is_not_found(ada: Caller, orders: int, kind: str):
    missing = f"There is no {kind} {orders}. Use an id that a tool has returned."
    assert ada.refused("knowi_get_details", {"assetType": kind, "assetId": orders}) == missing
    if kind not in ("query", "datasource"):
        assert ada.refused("knowi_delete", {"assetType": kind, "assetId": orders, "confirm": True}) == missing
    if kind == "widget":
        assert ada.refused("knowi_get_data", {"widgetId": orders}) == missing


# Row rules


def test_a_row_rule_hides_rows_fields_and_counts_from_whom_it_names(live: Running, ada: Caller, orders: int):
    ben = caller(live, "ben")
    manage(ada, "PUT", orders, "/shares", user="ben", role="Developer")
    manage(ada, "PUT", orders, "/rules", user="ben", condition="City = 'Graz'", hidden=["Net amount"])
    found = get_data(ben, orders)
    assert found["rows"] == [{key: row[key] for key in row if key != "Net amount"} for row in ORDERS[::2]]
    assert (found["totalRows"], found["returnedRows"]) == (2, 2)
    about = details(ben, orders)
    assert about["rowCount"] is None
    assert "Net amount" not in json.dumps([found, about])
    pushed = push(ben, name_of(ada, orders), {"City": "Graz", "Net amount": 1.5})
    assert (pushed["totalRows"], pushed["widened"]) == (None, [])  # neither the count nor the type is revealed
    assert get_data(ada, orders)["totalRows"] == 4


def test_a_rule_that_hides_all_fields_leaves_rows_without_values(live: Running, ada: Caller, orders: int):
    manage(ada, "PUT", orders, "/rules", user="ben", hidden=list(ORDERS[0]))
    found = get_data(caller(live, "ben"), orders)
    assert (found["fields"], found["rows"], found["totalRows"]) == ([], [{}, {}, {}], 3)


# Deletion


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"confirm": None}, "confirm: Field required."),
        ({"assetId": None}, "assetId: Field required."),
        ({"assetType": None}, "assetType: Field required."),
        ({"confirm": False}, "confirm must be true to confirm deletion. Ask the user, then call again with true."),
        ({"confirm": "true"}, "confirm: Input should be a valid boolean."),
        ({"confirm": 1}, "confirm: Input should be a valid boolean."),
        ({"assetType": "query"}, "assetType: Input should be 'dashboard', 'widget', 'dataset', 'report' or 'alert'."),
    ],
)
def test_a_deletion_needs_all_three_parameters(ada: Caller, orders: int, change: dict[str, Any], said: str):
    given = {"assetType": "dataset", "assetId": orders, "confirm": True, **change}
    text = ada.refused("knowi_delete", {name: value for name, value in given.items() if value is not None})
    assert text.startswith(f"Validation error: {said}"), text
    assert get_data(ada, orders)["totalRows"] == 3


def test_a_deleted_dataset_can_be_restored_for_30_days(ada: Caller, orders: int):
    name = name_of(ada, orders)
    result = ada.call("knowi_delete", {"assetType": "dataset", "assetId": orders, "confirm": True})
    assert result["content"][0]["text"] == (
        f"Deleted dataset {name} ({orders}). It can be restored from the trash for 30 days."
    )
    missing = f"There is no dataset {orders}. Use an id that a tool has returned."
    for tool, arguments in uses(orders):
        assert ada.refused(tool, arguments) == missing
    manage(ada, "POST", orders, "/restore")
    assert get_data(ada, orders)["totalRows"] == 3


def test_a_colleague_s_dataset_is_read_and_not_deleted(live: Running, ada: Caller, orders: int):
    ben = caller(live, "ben")
    assert get_data(ben, orders)["rows"] == ORDERS
    for role in ("Reporter", "Developer"):  # who may write rows still may not delete the dataset
        manage(ada, "PUT", orders, "/shares", user="ben", role=role)
        with capture_logs() as logs:
            text = ben.refused("knowi_delete", {"assetType": "dataset", "assetId": orders, "confirm": True})
        assert text == f"Access denied: you do not have permission to change dataset {orders}. Ask its owner, ada."
        assert [line["resource"] for line in logs if line["event"] == "access_denied"] == [f"dataset {orders}"]
    assert get_data(ada, orders)["totalRows"] == 3


# Bounds


def uses(id: int) -> list[tuple[str, dict[str, Any]]]:
    """The calls that name a dataset by its id."""
    return [
        ("knowi_get_data", {"datasetId": id}),
        ("knowi_get_details", {"assetType": "dataset", "assetId": id}),
        ("knowi_delete", {"assetType": "dataset", "assetId": id, "confirm": True}),
    ]


def test_a_dataset_of_another_organisation_does_not_exist(live: Running, ada: Caller, orders: int):
    for stranger in (caller(live, "eve", org=ANOTHER_ORG), caller(live, "root", org=ANOTHER_ORG, admin=True)):
        for (tool, theirs), (_, never) in zip(uses(orders), uses(NEVER), strict=True):
            with capture_logs() as logs:
                said = stranger.refused(tool, theirs)
            assert said.replace(str(orders), "N") == stranger.refused(tool, never).replace(str(NEVER), "N")
            assert said == f"There is no dataset {orders}. Use an id that a tool has returned."
            assert [line for line in logs if line["event"] == "access_denied"] == []
    # Names are those of one organisation.
    name = name_of(ada, orders)
    eve = caller(live, "eve", org=ANOTHER_ORG)
    pushed = push(eve, name, {"x": 1})
    assert pushed["created"] is True
    assert get_data(eve, pushed["datasetId"])["rows"] == [{"x": 1}]
    assert get_data(ada, orders)["totalRows"] == 3


async def test_a_foreign_and_a_missing_dataset_run_the_same_statements(database_url: str, tmp_path: Path):
    operations = {each.name: each for each in SURFACE.operations}
    async with open_app(settings_for(database_url, tmp_path / "home", embedding=False), ()) as running:
        app = running.context
        ours, theirs = (await call_of(app.db)).actor, (await call_of(app.db, "other")).actor

        async def attempt(actor: Any, tool: str, arguments: dict[str, Any]) -> tuple[Any, list[Statement]]:
            statements: list[Statement] = []
            db = cast("Database", Recorder(app.db, statements))
            ctx = RequestContext(actor, db, "test", app=replace(app, db=db))
            try:
                answer = await operations[tool].handler(ctx, operations[tool].parse(arguments))
            except AlmanacError as error:
                return (type(error), error.text), statements
            return answer, statements

        pushed, _ = await attempt(theirs, "knowi_push_data", {"datasetName": "Theirs", "rows": ORDERS})
        foreign_id = pushed.data["datasetId"]
        for (tool, theirs_named), (_, never_named) in zip(uses(foreign_id), uses(NEVER), strict=True):
            foreign, missing = await attempt(ours, tool, theirs_named), await attempt(ours, tool, never_named)
            assert foreign[1] == missing[1]
            assert foreign[0][1].replace(str(foreign_id), "N") == missing[0][1].replace(str(NEVER), "N")
            assert (await attempt(theirs, tool, theirs_named))[1] != missing[1]


def test_a_token_without_the_scope_is_denied(live: Running, orders: int):
    reader = Caller(live, live.new_token("scoped", scope=["data:read"]))
    assert get_data(reader, orders)["totalRows"] == 3
    for tool, arguments in (
        ("knowi_push_data", {"datasetName": "Scoped", "rows": [{"a": 1}]}),
        ("knowi_delete", {"assetType": "dataset", "assetId": orders, "confirm": True}),
    ):
        assert reader.refused(tool, arguments).startswith("Access denied: Your token lacks the scope data:write")
    writer = Caller(live, live.new_token("scoped", scope=["data:write"]))
    for tool, arguments in uses(orders)[:2]:
        assert writer.refused(tool, arguments).startswith("Access denied: Your token lacks the scope data:read")


# Protocols


@pytest.mark.parametrize("era", ERAS)
def test_clients_of_both_eras_get_structured_content(live: Running, ada: Caller, orders: int, era: str):
    for tool, arguments in uses(orders)[:2]:
        result = live.call(tool, arguments, path=PATH, era=era, token=ada.token)
        assert result["structuredContent"] == json.loads(result["content"][1]["text"])
    sent = {"datasetName": f"Of {era}", "rows": [{"a": 1}]}
    pushed = live.call("knowi_push_data", sent, path=PATH, era=era, token=ada.token)["structuredContent"]
    given = {"assetType": "dataset", "assetId": pushed["datasetId"], "confirm": True}
    assert live.call("knowi_delete", given, path=PATH, era=era, token=ada.token)["structuredContent"]["deleted"] is True


def test_the_tools_work_over_rest(ada: Caller):
    def call(name: str, **arguments: Any) -> dict[str, Any]:
        answer = ada.rest("POST", "/tools/call", {"name": name, "arguments": arguments})
        assert (answer.status_code, answer.json()["isError"]) == (200, False)
        assert answer.json()["_meta"]["executionTimeMs"] >= 0
        return answer.json()["structuredContent"]

    id = call("knowi_push_data", datasetName="Over REST", rows=[{"a": 1}])["datasetId"]
    assert call("knowi_get_data", datasetId=id)["rows"] == [{"a": 1}]
    assert call("knowi_get_details", assetType="dataset", assetId=id)["rowCount"] == 1
    assert call("knowi_delete", assetType="dataset", assetId=id, confirm=True)["deleted"] is True


def test_the_annotations_say_what_a_tool_does(live: Running, ada: Caller):
    hints = {tool["name"]: tuple(tool["annotations"].values()) for tool in ada.rest("GET", "/tools").json()}
    # readOnlyHint, destructiveHint, idempotentHint
    assert hints["knowi_get_data"] == hints["knowi_get_details"] == (True, False, True)
    assert (hints["knowi_push_data"], hints["knowi_delete"]) == ((False, False, False), (False, True, True))
