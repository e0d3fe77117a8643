"""An update changes exactly the fields that it names, in every operation that changes a stored object."""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from almanac.operations.table import OPERATIONS
from almanac.web.catalogue.routes import CATALOGUE_OPERATIONS
from tests.live_server import Running
from tests.web.api import Api

State = dict[str, Any]
Fields = Mapping[str, SearchStrategy[Any]]

FIRST, SECOND, THIRD = ("68dfc8fd5e40fe1ae99c6b01", "68dfc8fd5e40fe1ae99c6b02", "68dfc8fd5e40fe1ae99c6b03")
TARGET = "68dfc8fd5e40fe1ae99c6b04"
CATALOGUE = {
    "categoryAliases": [{"name": "One", "aliasKey": "one"}, {"name": "Two", "aliasKey": "two"}],
    "policies": [{"name": "Strict", "policyKey": "strict"}, {"name": "Loose", "policyKey": "loose"}],
    "relationshipTypes": [{"name": "Accessory", "typeKey": "accessory"}],
    "attachmentTypes": [{"name": "Drawing", "typeKey": "drawing"}, {"name": "Photo", "typeKey": "photo"}],
    "categories": [
        {"_id": FIRST, "name": "First", "aliasKey": "one", "policyKey": "strict"},
        {"_id": SECOND, "name": "Second", "aliasKey": "two", "policyKey": "loose"},
    ],
    "entities": [{"_id": TARGET, "name": "Target", "category": FIRST}],
}

NAME = st.from_regex(r"[a-z]{6,12}", fullmatch=True)
TEXT = st.sampled_from(["", "Oil it.", "Forty turns a minute."])
PLACE = st.sampled_from([0, 1, 2])  # one of the folders that a case makes
TAGS = st.lists(NAME, max_size=3, unique=True)
SOME_TAGS = st.lists(NAME, min_size=1, max_size=3, unique=True)  # a form cannot name an empty list
METADATA = st.dictionaries(NAME, st.none() | st.booleans() | st.integers(-9, 9) | NAME, max_size=3)
ENTITY = {
    "name": NAME,
    "category": st.sampled_from([FIRST, SECOND]),
    "description": TEXT,
    "details": TEXT,
    "source": TEXT,
    "sku": NAME,
    "status": st.sampled_from(["draft", "active", "archived"]),
    "tags": TAGS,
    "metadata": METADATA,
}
CONTENTS = ("Oil it monthly.", "Oil it weekly.")
DOCUMENT = {"tags": TAGS, "metadata": METADATA, "content": st.sampled_from(CONTENTS)}
BASE = {
    "name": NAME,
    "description": TEXT,
    "splitter": st.sampled_from([{"size": 1000, "overlap": 100}, {"size": 800, "overlap": 0}]),
}
NOTE = {"title": NAME, "body": NAME}
DATASET = {"description": TEXT, "label": NAME, "unit": NAME}


@dataclass
class World:
    """A server and the calls of its administrator."""

    live: Running

    @property
    def api(self) -> Api:
        return Api(self.live, self.live.token)

    def tool(self, tool: str, /, **arguments: Any) -> Any:
        result = self.live.call(tool, arguments)
        assert not result["isError"], result["content"]
        return result["structuredContent"]

    def catalogue(self, method: str, path: str, body: Any = None, prefix: str = "/knowledge-base") -> Any:
        headers = {"x-api-key": self.live.token}
        answer = self.live.http.request(method, prefix + path, json=body, headers=headers)
        assert answer.status_code < 300, answer.text
        return answer.json()

    def load(self, **parts: Any) -> None:
        self.catalogue("POST", "/tenants/seed", parts, prefix="")


@dataclass(frozen=True)
class Update:
    """An operation, the fields that it can change, and how a test makes, reads and changes an object with it."""

    operation: str
    fields: Fields
    make: Callable[[World], Any]
    read: Callable[[World, Any], State]
    apply: Callable[[World, Any, State], Any]
    label: str = ""  # if one operation has several cases
    # The named values as `read` shows them.
    shown: Callable[[State, State], State] = lambda before, named: named


def without(state: State, *names: str) -> State:
    return {name: value for name, value in state.items() if name not in names}


# Knowledge bases and folders


def make_base(world: World) -> int:
    return world.api.base("Pumps", description="What we sell", splitter={"size": 900, "overlap": 90})


def read_base(world: World, id: int) -> State:
    base = world.api.ask("GET", f"/bases/{id}")
    splitter = {name: base["splitter"][name] for name in ("size", "overlap")}
    shares = {each["name"]: each["role"] for each in world.api.ask("GET", f"/bases/{id}/shares")["items"]}
    return {**without(base, "updated_at"), "splitter": splitter, **shares}


def make_dataset(world: World) -> int:
    rows = [{"n": 1}]
    id = world.api.ask("POST", "/data/push", json={"dataset": "Orders", "rows": rows, "strategy": "replace"})[
        "dataset_id"
    ]
    note = {"label": "Number", "description": "How many", "unit": "pieces"}
    world.api.ask("PATCH", f"/datasets/{id}", json={"description": "One a row", "fields": {"n": note}})
    return id


def read_dataset(world: World, id: int) -> State:
    dataset = world.api.ask("GET", f"/datasets/{id}")
    note = {name: dataset["fields"][0][name] for name in ("label", "unit")}
    return {**without(dataset, "updated_at", "fields"), **note, "text": dataset["fields"][0]["description"]}


def dataset_arguments(named: State) -> State:
    """The named values as arguments: label and unit belong to the field."""
    note = {name: named[name] for name in ("label", "unit") if name in named}
    return without(named, "label", "unit") | ({"fields": {"n": note}} if note else {})


def make_shared_base(world: World) -> int:
    id = make_base(world)
    for name in ("reader", "writer"):
        world.live.new_token(name)
        share_base(world, id, {name: "Reporter"})
    return id


def share_base(world: World, id: int, named: State) -> None:
    for user, role in named.items():
        world.api.ask("PUT", f"/bases/{id}/shares", 204, json={"user": user, "role": role})


def share_with_tool(world: World, id: int, named: State) -> None:
    for user, role in named.items():
        world.tool("manage_base", action="share", base_id=id, user=user, role=role)


def make_folders(world: World) -> State:
    base = world.api.base("Folders")
    return {"base": base, "places": [0, world.api.folder(base, "left"), world.api.folder(base, "right")]}


def make_folder(world: World) -> State:
    made = make_folders(world)
    return {**made, "id": world.api.folder(made["base"], "moved", made["places"][1])}


def read_folder(world: World, made: State) -> State:
    folder = world.api.ask("GET", f"/folders/{made['id']}")
    return {**without(folder, "updated_at"), "parent_id": made["places"].index(folder["parent_id"])}


def placed(made: State, named: State, name: str) -> State:
    """The named fields, with the id of the folder instead of its place."""
    return {**named, name: made["places"][named[name]]} if name in named else named


def change_folder(world: World, made: State, named: State) -> None:
    world.api.ask("PATCH", f"/folders/{made['id']}", json=placed(made, named, "parent_id"))


def manage_folder(world: World, made: State, named: State) -> None:
    for name, value in placed(made, named, "parent_id").items():
        action = "rename" if name == "name" else "move"
        world.tool("manage_folder", action=action, folder_id=made["id"], **{name: value})


# Documents


def make_document(world: World) -> State:
    made = make_folders(world)
    about = {"tags": ["pump"], "metadata": {"year": 2024}, "folder_id": made["places"][1]}
    return {**made, "id": world.api.text(made["base"], "pump.md", CONTENTS[0], **about)["id"]}


def read_document(world: World, made: State) -> State:
    document = world.api.ask("GET", f"/documents/{made['id']}")
    by_content = ("updated_at", "generation", "index_status", "passages", "characters", "title", "size", "source_type")
    place = made["places"].index(document["folder_id"])
    return {**without(document, *by_content), "folder_id": place}


def shown_content(before: State, named: State) -> State:
    content: str | None = named.get("content")
    hashed = {} if content is None else {"sha256": hashlib.sha256(content.encode()).hexdigest()}
    return {**without(named, "content"), **hashed}


def change_document(world: World, made: State, named: State) -> None:
    world.api.ask("PATCH", f"/documents/{made['id']}", json=placed(made, named, "folder_id"))


def manage_document(world: World, made: State, named: State) -> None:
    actions = {"name": "rename", "tags": "tag", "metadata": "describe", "folder_id": "move"}
    for name, value in placed(made, named, "folder_id").items():
        action = actions.get(name) or ("enable" if value else "disable")
        arguments = {name: value} if name in actions else {}
        world.tool("manage_document", action=action, document_ids=[made["id"]], **arguments)


def change_documents(world: World, made: State, named: State) -> None:
    for name, value in placed(made, named, "folder_id").items():
        if name == "folder_id":
            change: State = {"action": "move", "folder_id": value}
        else:
            change = {"action": "enable" if value else "disable"}
        world.api.ask("POST", "/documents/batch", json={"ids": [made["id"]], **change})


def replacement(world: World, made: State, named: State) -> tuple[str, State]:
    """The path and the fields of an upload that replaces the document; one without new content sends the old again."""
    stored = world.api.ask("GET", f"/documents/{made['id']}")
    [same] = [each for each in CONTENTS if hashlib.sha256(each.encode()).hexdigest() == stored["sha256"]]
    target = {"name": "pump.md", "folder_id": made["places"][1], "if_exists": "replace"}
    return f"/bases/{made['base']}/documents", {"content": same, **named, **target}


def upload_json(world: World, made: State, named: State) -> None:
    path, body = replacement(world, made, named)
    world.api.ask("POST", path, json=body)


def upload_form(world: World, made: State, named: State) -> None:
    path, body = replacement(world, made, named)
    file = ("pump.md", body.pop("content").encode(), "text/markdown")
    values = {name: json.dumps(value) if name == "metadata" else value for name, value in body.items()}
    world.api.ask("POST", path, data=values, files={"file": file})


def upload_with_tool(world: World, made: State, named: State) -> None:
    _, body = replacement(world, made, named)
    world.tool("add_document", document_id=made["id"], **without(body, "name", "folder_id", "if_exists"))


def replace_content(world: World, made: State, named: State) -> None:
    world.api.ask("PUT", f"/documents/{made['id']}/content", json=named)


# The catalogue


def make_category(world: World) -> str:
    fields = {"name": "Third", "description": "Tools", "aliasKey": "one", "policyKey": "strict"}
    world.load(categories=[{"_id": THIRD, **fields}])
    return THIRD


def read_category(world: World, key: str) -> State:
    category = world.catalogue("GET", f"/categories/{key}")
    keys = {policy["_id"]: policy["policyKey"] for policy in world.catalogue("GET", "/policies")}
    return {**without(category, "updatedAt"), "policy": keys[category["policy"]]}


def make_entity(world: World) -> str:
    more = {"attachments": [{"name": "Front", "url": "https://example.org/front.png"}],
            "relations": [{"target": TARGET, "type": "accessory", "description": "Fits"}]}  # fmt: skip
    fields = {"name": "Washer", "category": FIRST, "description": "Washes", "details": "# Long", "source": "shop",
              "sku": "W-1", "status": "active", "tags": ["electric"], "metadata": {"psi": 1800}}  # fmt: skip
    world.load(entities=[{"_id": THIRD, **fields, **more}])
    return THIRD


def read_entity(world: World, key: str) -> State:
    entity = without(world.catalogue("GET", f"/entities/{key}"), "updatedAt", "isVectorized")
    relations = [without(each, "sourceEntity", "categoryPath") for each in entity["relations"]]
    return {**entity, "category": entity["category"]["_id"], "relations": relations}


def import_entity(world: World, key: str, named: State) -> None:
    stored = read_entity(world, key)
    world.load(entities=[{"_id": key, "name": stored["name"], "category": stored["category"], **named}])


def shown_metadata(before: State, named: State) -> State:
    """An import changes single keys of the metadata."""
    return {**named, "metadata": {**before["metadata"], **named["metadata"]}} if "metadata" in named else named


def read_relation(world: World, key: str) -> State:
    [relation] = world.catalogue("GET", f"/entities/{key}/relationships")
    return {**relation, "sourceEntity": relation["sourceEntity"]["_id"]}


def relate(world: World, key: str, named: State) -> None:
    world.catalogue("POST", f"/entities/{key}/relationships", {"targetEntity": TARGET, "type": "accessory", **named})


def import_relation(world: World, key: str, named: State) -> None:
    stored = read_entity(world, key)
    relation = {"target": TARGET, "type": "accessory", **named}
    world.load(entities=[{"_id": key, "name": stored["name"], "category": stored["category"], "relations": [relation]}])


def read_attachment(world: World, key: str) -> State:
    [linked] = world.catalogue("GET", f"/entities/{key}")["attachments"]
    attachment = world.catalogue("GET", f"/attachments/{linked['id']}")
    return without(attachment, "updatedAt")


def import_attachment(world: World, key: str, named: State) -> None:
    stored, old = read_entity(world, key), read_attachment(world, key)
    attachment = {"url": old["url"], "name": old["name"], **named}
    entry = {"_id": key, "name": stored["name"], "category": stored["category"], "attachments": [attachment]}
    world.load(entities=[entry])


def shown_annotations(before: State, named: State) -> State:
    merged = {"annotations": {**before["annotations"], **named["annotations"]}} if "annotations" in named else {}
    return {**named, **merged}


def shown_relation(before: State, named: State) -> State:
    return {"relationDescription": named["description"]} if named else {}


def import_category(world: World, key: str, named: State) -> None:
    names = {"categoryAlias": "aliasKey", "policy": "policyKey"}
    fields = {"name": read_category(world, key)["name"], **named}
    world.load(categories=[{"_id": key, **{names.get(name, name): value for name, value in fields.items()}}])


def make_policy(world: World) -> str:
    fields = {"name": "Papers", "description": "Read all", "inputType": "PDF", "outputFormat": "JSON"}
    world.load(policies=[{"policyKey": "papers", **fields, "processingPromptTemplate": "Read {text}"}])
    return "papers"


def read_policy(world: World, key: str) -> State:
    [policy] = [each for each in world.catalogue("GET", "/policies") if each["policyKey"] == key]
    return without(policy, "updatedAt")


def import_policy(world: World, key: str, named: State) -> None:
    world.load(policies=[{"policyKey": key, "name": read_policy(world, key)["name"], **named}])


def make_namespace(world: World) -> str:
    world.load(indexes=[{"name": "sold", "notes": "All we sell", "categories": [FIRST]}])
    return "sold"


def read_namespace(world: World, key: str) -> State:
    [namespace] = world.catalogue("GET", f"/indexes?name={key}")
    return without(namespace, "updatedAt", "status")


def import_namespace(world: World, key: str, named: State) -> None:
    world.load(indexes=[{"name": key, **named}])


# Notes


def make_note(world: World) -> State:
    about = {"tags": ["ops"], "confidence": 60, "expires_at": "2100-01-02T03:04:05.000Z"}
    return {"id": world.tool("remember", title="Deploys", body="On Friday.", **about)["id"]}


def read_note(world: World, made: State) -> State:
    [note] = world.tool("recall", id=made["id"])["notes"]
    return {name: note[name] for name in ("title", "text", "tags", "confidence", "author", "expires_at")}


def revise(world: World, made: State, named: State) -> None:
    body = read_note(world, made)["text"]
    made["id"] = world.tool("revise", **{"id": made["id"], "body": body, **named})["id"]


def shown_body(before: State, named: State) -> State:
    return {**without(named, "body"), **({"text": named["body"]} if "body" in named else {})}


def patch(path: str) -> Callable[[World, Any, State], Any]:
    return lambda world, key, named: world.catalogue("PATCH", f"{path}/{key}", named)


PLACED = {"name": NAME, "folder_id": PLACE, "is_enabled": st.booleans()}
RELATION = {"relationDescription": TEXT}
ATTACHMENT = {
    "name": NAME,
    "description": TEXT,
    "annotations": METADATA,
    "type": st.sampled_from([None, "drawing", "photo"]),
}
POLICY = {
    "name": NAME,
    "description": TEXT,
    "inputType": st.sampled_from(["PDF", "HTML"]),
    "outputFormat": st.sampled_from(["MARKDOWN", "JSON"]),
    "processingPromptTemplate": TEXT,
}
CATEGORY = {
    "name": NAME,
    "description": TEXT,
    "categoryAlias": st.sampled_from(["one", "two"]),
    "policy": st.sampled_from(["strict", "loose"]),
}
NAMESPACE = {"notes": TEXT, "categories": st.sampled_from([[], [FIRST], [FIRST, SECOND]])}
ROLES = {name: st.sampled_from(["Reporter", "Developer", "Maintainer"]) for name in ("reader", "writer")}

UPDATES = [
    Update("change_base", BASE, make_base, read_base,
           lambda world, id, named: world.api.ask("PATCH", f"/bases/{id}", json=named)),
    Update("manage_base", BASE, make_base, read_base,
           lambda world, id, named: world.tool("manage_base", action="change", base_id=id, **named)),
    Update("change_dataset", DATASET, make_dataset, read_dataset,
           lambda world, id, named: world.api.ask("PATCH", f"/datasets/{id}", json=dataset_arguments(named))),
    Update("manage_dataset", DATASET, make_dataset, read_dataset,
           lambda world, id, named: world.tool("manage_dataset", action="change", dataset_id=id,
                                               **dataset_arguments(named))),
    Update("share_base", ROLES, make_shared_base, read_base, share_base),
    Update("manage_base", ROLES, make_shared_base, read_base, share_with_tool, "share"),
    Update("change_folder", {"name": NAME, "parent_id": PLACE}, make_folder, read_folder, change_folder),
    Update("manage_folder", {"name": NAME, "parent_id": PLACE}, make_folder, read_folder, manage_folder),
    Update("change_document", {**PLACED, "tags": TAGS, "metadata": METADATA}, make_document, read_document,
           change_document),
    Update("manage_document", {**PLACED, "tags": TAGS, "metadata": METADATA}, make_document, read_document,
           manage_document),
    Update("change_documents", without(PLACED, "name"), make_document, read_document, change_documents),
    Update("add_document", DOCUMENT, make_document, read_document, upload_json, "json", shown_content),
    Update("add_document", {**DOCUMENT, "tags": SOME_TAGS}, make_document, read_document, upload_form, "form",
           shown_content),
    Update("add_document", DOCUMENT, make_document, read_document, upload_with_tool, "tool", shown_content),
    Update("replace_content", {"content": DOCUMENT["content"]}, make_document, read_document, replace_content, "",
           shown_content),
    Update("change_category", {**CATEGORY, "parent": st.sampled_from([FIRST, SECOND])}, make_category, read_category,
           patch("/categories")),
    Update("change_entity", ENTITY, make_entity, read_entity, patch("/entities")),
    Update("save_entity", ENTITY, make_entity, read_entity,
           lambda world, key, named: world.tool("save_entity", id=key, **named)),
    Update("add_relationship", RELATION, make_entity, read_relation, relate),
    Update("seed_catalogue", ENTITY, make_entity, read_entity, import_entity, "entity", shown_metadata),
    Update("seed_catalogue", {"description": TEXT}, make_entity, read_relation, import_relation, "relation",
           shown_relation),
    Update("seed_catalogue", ATTACHMENT, make_entity, read_attachment, import_attachment, "attachment",
           shown_annotations),
    Update("seed_catalogue", CATEGORY, make_category, read_category, import_category, "category"),
    Update("seed_catalogue", POLICY, make_policy, read_policy, import_policy, "policy"),
    Update("seed_catalogue", NAMESPACE, make_namespace, read_namespace, import_namespace, "namespace"),
    Update("revise", NOTE, make_note, read_note, revise, "", shown_body),
]  # fmt: skip

# The operations that refuse an update without any field.
NEED_A_FIELD = {"change_base", "manage_base", "change_dataset", "manage_dataset", "change_folder", "change_document",
                "replace_content", "change_category", "change_entity", "save_entity"}  # fmt: skip

# The operations that change no fields of a stored object.
ADDS = {"add_base", "add_folder", "remember", "add_category", "add_entity", "add_attachment", "add_index",
        "add_category_alias", "add_relationship_type", "add_attachment_type", "add_policy", "push_data",
        "import_data"}  # fmt: skip
REMOVES = {"remove_base", "remove_folder", "remove_document", "restore_base", "restore_folder", "restore_document",
           "unshare_base", "remove_category", "remove_attachment", "remove_entity", "remove_relationship",
           "remove_index", "clear_catalogue", "remove_dataset", "restore_dataset", "restore_dataset_version",
           "unshare_dataset", "lift_row_rule"}  # fmt: skip
PARSES = {"retry_base", "reindex_document"}
LINKS = {"link_attachment"}
READS = {"search", "verify_citation", "recall", "retrieve", "verify_key", "download_document", "query_data",
         "verify_result"}  # fmt: skip
# tests/cli/test_updates.py changes these with `data share` and `data rule`.
BY_COMMAND = {"share_dataset", "set_row_rule"}


@pytest.fixture(scope="module")
def world(shared: Running) -> Iterator[World]:
    world = World(shared)
    world.load(**CATALOGUE)
    yield world


@pytest.mark.parametrize("update", UPDATES, ids=lambda update: f"{update.operation} {update.label}".strip())
def test_an_update_changes_exactly_the_fields_that_it_names(world: World, update: Update):
    @settings(max_examples=12, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])
    @given(named=st.fixed_dictionaries({}, optional=dict(update.fields)))
    def check(named: State) -> None:
        assume(named or update.operation not in NEED_A_FIELD)
        made = update.make(world)
        before = update.read(world, made)
        update.apply(world, made, named)
        assert update.read(world, made) == {**before, **update.shown(before, named)}

    check()


def test_every_operation_that_writes_is_checked_or_changes_no_field():
    writing = {
        each.name
        for each in (*OPERATIONS, *CATALOGUE_OPERATIONS)
        if not each.safety.read_only or (each.rest is not None and each.rest.method != "GET")
    }
    assert writing == {update.operation for update in UPDATES} | ADDS | REMOVES | PARSES | LINKS | READS | BY_COMMAND
