"""Datasets: their names are unique in an organisation, and what another organisation has does not exist."""

import asyncio

import pytest

from almanac.core.errors import AlmanacError, BadRequest, Conflict, Forbidden, NotFound
from almanac.data import datasets, row_rules
from almanac.data.dataset import FieldEdit, FieldNote
from almanac.identity.roles import Role
from tests.data.warehouse import Warehouse


async def test_a_dataset_belongs_to_its_creator_and_is_read_by_the_organisation(warehouse: Warehouse):
    made = await warehouse.add("Sales  2026")
    assert (made.name, made.version, made.row_count, made.fields) == ("Sales 2026", 0, 0, ())
    assert (await warehouse.get(made)).role == Role.Owner
    assert (await warehouse.get(made, by=warehouse.bob)).role == Role.Reporter
    assert (await warehouse.get(made, by=warehouse.admin)).role == Role.Owner
    with pytest.raises(Forbidden):
        await warehouse.get(made, by=warehouse.bob, action="write")


async def test_a_foreign_dataset_answers_like_one_that_never_was(warehouse: Warehouse):
    made = await warehouse.add("Sales")
    errors: list[AlmanacError] = []
    for id in (made.id, 999_999):
        with pytest.raises(NotFound) as caught:
            await datasets.get(warehouse.db, warehouse.eve, id)
        errors.append(caught.value)
    assert errors[0].text.replace(str(made.id), "N") == errors[1].text.replace("999999", "N")
    with pytest.raises(NotFound):
        await datasets.get_by_name(warehouse.db, warehouse.eve, "Sales")
    assert (await datasets.find(warehouse.eve)).items == []


async def test_a_name_is_taken_in_any_case_of_letters_but_only_in_its_organisation(warehouse: Warehouse):
    made = await warehouse.add("Straße")
    for name in ("straße", "STRASSE", "  Straße "):
        with pytest.raises(Conflict):
            await warehouse.add(name, by=warehouse.bob)
        assert (await datasets.get_by_name(warehouse.db, warehouse.bob, name)).id == made.id
    assert (await warehouse.add("Straße", by=warehouse.eve)).id != made.id


async def test_of_simultaneous_creations_one_succeeds_and_the_others_are_refused(warehouse: Warehouse):
    made = await asyncio.gather(*(warehouse.add("Sales") for _ in range(5)), return_exceptions=True)
    assert sorted(type(each).__name__ for each in made) == ["Dataset"] + ["NameTaken"] * 4


async def test_pushing_to_a_dataset_of_a_colleague_is_denied_and_makes_no_second_one(warehouse: Warehouse):
    await warehouse.add("Sales")
    with pytest.raises(Forbidden):
        await warehouse.do(lambda tx: datasets.ensure(warehouse.bob, tx, "sales"))
    assert (await datasets.find(warehouse.bob)).total == 1


async def test_a_dataset_is_named_by_its_number_or_its_name_and_the_name_counts_first(warehouse: Warehouse):
    made = await warehouse.add("Sales")
    assert (await datasets.get_by_key(warehouse.db, warehouse.ada, str(made.id))).id == made.id
    named = await warehouse.add(str(made.id))
    assert (await datasets.get_by_key(warehouse.db, warehouse.ada, str(made.id))).id == named.id


async def test_an_update_changes_only_what_it_names(warehouse: Warehouse):
    made = await warehouse.add("Sales")
    await warehouse.commit(made, rows=[3])
    edit = FieldEdit(label="Number", synonyms=("amount", "count"))
    await warehouse.do(lambda tx: datasets.update(warehouse.ada, tx, made.id, notes={"N": edit}))
    await warehouse.do(lambda tx: datasets.update(warehouse.ada, tx, made.id, description="Of all shops."))
    unit = {"n": FieldEdit(unit="pieces")}
    changed = await warehouse.do(lambda tx: datasets.update(warehouse.ada, tx, made.id, notes=unit))
    assert (changed.name, changed.description) == ("Sales", "Of all shops.")
    assert changed.notes == {"n": FieldNote("Number", unit="pieces", synonyms=("amount", "count"))}
    assert await warehouse.get(made) == changed


@pytest.mark.parametrize("name", ["", " ", "x" * 201, "a\x07", "a\u202eb"])
async def test_a_bad_name_is_refused(warehouse: Warehouse, name: str):
    with pytest.raises(BadRequest):
        await warehouse.add(name)


async def test_the_note_of_an_unknown_field_or_type_is_refused_with_those_that_exist(warehouse: Warehouse):
    made = await warehouse.add("Sales")
    await warehouse.commit(made, rows=[1])
    for notes in ({"m": FieldEdit(label="M")}, {"n": FieldEdit(declared_type="number")}):
        with pytest.raises(BadRequest, match=r"There is no (field|type)") as caught:
            await warehouse.do(lambda tx, notes=notes: datasets.update(warehouse.ada, tx, made.id, notes=notes))
        assert "are: " in caught.value.remedy


async def test_a_removed_dataset_frees_its_name_and_can_be_restored_when_the_name_is_free(warehouse: Warehouse):
    made = await warehouse.add("Sales")
    await warehouse.do(lambda tx: datasets.remove(warehouse.ada, tx, made.id))
    with pytest.raises(NotFound):
        await warehouse.get(made)
    other = await warehouse.add("Sales")
    with pytest.raises(Conflict):
        await warehouse.do(lambda tx: datasets.restore(warehouse.ada, tx, made.id))
    await warehouse.do(lambda tx: datasets.update(warehouse.ada, tx, other.id, name="Sales of the south"))
    await warehouse.do(lambda tx: datasets.restore(warehouse.ada, tx, made.id))
    assert [each.name for each in (await datasets.find(warehouse.bob)).items] == ["Sales", "Sales of the south"]


async def test_a_purge_deletes_expired_datasets_with_everything_of_theirs(warehouse: Warehouse):
    made, kept = await warehouse.add("Sales"), await warehouse.add("Costs")
    for each in (made, kept):
        await warehouse.commit(each, rows=[1, 2])
        stored = await warehouse.get(each)
        await warehouse.do(
            lambda tx, stored=stored: row_rules.put(warehouse.ada, tx, stored, user="bob", condition="n > 1")
        )
    removed = await warehouse.do(lambda tx: datasets.remove(warehouse.ada, tx, made.id))
    assert removed.removed_at is not None
    moment = removed.removed_at
    assert await warehouse.do(lambda tx: datasets.purge(tx, moment)) == 0
    assert await warehouse.do(lambda tx: datasets.purge(tx, moment + 1)) == 1
    assert await warehouse.files.remove_unused(warehouse.db) == 2
    for table in ("dataset_versions", "dataset_files", "row_rules"):
        rows = await warehouse.db.fetch(f"SELECT DISTINCT dataset_id FROM {table}")
        assert [row["dataset_id"] for row in rows] == [kept.id]


async def test_the_rules_of_a_person_and_of_their_groups_all_apply_except_to_managers(warehouse: Warehouse):
    made = await warehouse.add("Sales")
    await warehouse.commit(made, rows=[1])
    stored = await warehouse.get(made)
    await warehouse.town.group("south", bob=Role.Reporter, ada=Role.Reporter)
    put = row_rules.put
    await warehouse.do(lambda tx: put(warehouse.ada, tx, stored, user="bob", condition="n > 1"))
    await warehouse.do(lambda tx: put(warehouse.ada, tx, stored, user="bob", condition="n > 2"))
    await warehouse.do(lambda tx: put(warehouse.ada, tx, stored, group="south", hidden=["N"]))

    async def rules_of(by: object) -> list[tuple[str, str, tuple[str, ...]]]:
        assert by in (warehouse.ada, warehouse.bob, warehouse.admin)
        call = warehouse.bob if by is warehouse.bob else warehouse.ada if by is warehouse.ada else warehouse.admin
        rules = await row_rules.applying(warehouse.db, call, await warehouse.get(made, by=call))
        return [(rule.kind, rule.condition, rule.hidden) for rule in rules]

    assert await rules_of(warehouse.bob) == [("user", "n > 2", ()), ("group", "", ("n",))]
    assert await rules_of(warehouse.ada) == await rules_of(warehouse.admin) == []
    await warehouse.do(lambda tx: row_rules.remove(tx, stored, user="bob"))
    assert await rules_of(warehouse.bob) == [("group", "", ("n",))]
    with pytest.raises(NotFound):
        await warehouse.do(lambda tx: row_rules.remove(tx, stored, user="bob"))
