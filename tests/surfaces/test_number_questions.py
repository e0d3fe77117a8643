"""Questions with numbers, over the gateway and /mcp: products within the bounds come first."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.catalogue.sample_catalogue import call_of, import_sample
from tests.live_server import Running, running, settings_for
from tests.surfaces.gateway.caller import Caller

_FIELDS = ("psi", "price", "weight_kg", "noise_db")
_PRODUCTS: dict[str, tuple[str, str, tuple[float | None, ...]]] = {
    "PowerJet 1800": ("Washers", "A compact electric pressure washer for patios and cars.", (1800, 149, 9, 78)),
    "PowerJet 2400": ("Washers", "An electric pressure washer for driveways.", (2400, 289, 14, 82)),
    "Torrent G3100": ("Washers", "A petrol pressure washer for building sites.", (3100, 799, 31, 98)),
    "Brook 1400": ("Washers", "A small pressure washer for balconies.", (1400, 99, 6, 68)),
    "Geyser 2000": ("Washers", "A pressure washer with a hose reel.", (2000, 219, 12, 80)),
    "Turbo nozzle 2000 PSI": ("Parts", "Accessory for pressure washer models rated 2000 PSI.", (None, 29, 0.2, None)),
    "Hose 2000": ("Parts", "Hose for pressure washer models up to 2000 PSI or under.", (None, 45, 3, None)),
    "Foam lance": ("Parts", "Puts soap on whatever a pressure washer cleans.", (None, 19, 0.4, None)),
    "Meadow 40": ("Mowers", "An electric lawn mower for small gardens.", (None, 220, 13, 85)),
    "Prairie 53": ("Mowers", "A petrol lawn mower for large gardens.", (None, 520, 34, 96)),
    "Whisper 33": ("Mowers", "A cordless lawn mower that is hardly heard.", (None, 310, 11, 65)),
}
QUESTIONS: dict[str, set[str]] = {
    "Find pressure washer models under 2000 PSI": {"PowerJet 1800", "Brook 1400"},
    "pressure washer with at least 2400 psi": {"PowerJet 2400", "Torrent G3100"},
    "pressure washers between 1800 and 2400 PSI": {"PowerJet 1800", "PowerJet 2400", "Geyser 2000"},
    "2000 PSI pressure washer": {"Geyser 2000"},
    "pressure washer above 200 bar": {"Torrent G3100"},
    "a pressure washer of 2000+ PSI for less than $250": {"Geyser 2000"},
    "lawn mower quieter than 70 dB": {"Whisper 33", "Brook 1400"},
    "machines heavier than 30 kg": {"Torrent G3100", "Prairie 53"},
    "machine with a weight over 66 pounds": {"Torrent G3100", "Prairie 53"},
    "anything over 500 euros": {"Torrent G3100", "Prairie 53"},
    "products with a price from 200 to 300": {"PowerJet 2400", "Geyser 2000", "Meadow 40"},
    "something cheaper than 30": {"Turbo nozzle 2000 PSI", "Foam lance"},
}


@pytest.fixture(scope="module")
def shop(shared_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    entities = [
        {
            "name": name,
            "category": category,
            "description": text,
            "metadata": {field: value for field, value in zip(_FIELDS, values, strict=True) if value is not None},
        }
        for name, (category, text, values) in _PRODUCTS.items()
    ]
    file: dict[str, Any] = {
        "categories": [{"name": name} for name in ("Washers", "Parts", "Mowers")],
        "indexes": [{"name": "products", "categories": []}],
        "entities": entities,
    }

    async def fill(db: Any) -> None:
        await import_sample(await call_of(db), json.dumps(file).encode())

    with running(settings_for(shared_url, tmp_path_factory.mktemp("home"))) as live:
        live.run(fill)
        live.work()
        yield live


def gateway_names(shop: Running, question: str, limit: int, **arguments: Any) -> list[str]:
    arguments = {"namespace": "products", "query": question, "topK": limit, **arguments}
    found = Caller.connect(shop).ask("search-knowledge-base", **arguments)
    scores = [each["score"] for each in found]
    assert scores == sorted(scores, reverse=True)
    return [each["metadata"]["name"] for each in found]


def tool_names(shop: Running, question: str, limit: int, **arguments: Any) -> list[str]:
    found = shop.call("find_entities", {"query": question, "limit": limit, **arguments})["structuredContent"]
    return [each["name"] for each in found["entities"]]


@pytest.mark.parametrize("ask", [gateway_names, tool_names])
@pytest.mark.parametrize("question", QUESTIONS)
def test_products_within_the_bounds_come_first(shop: Running, ask: Any, question: str):
    expected = QUESTIONS[question]
    names = ask(shop, question, 10)
    assert set(names[: len(expected)]) == expected
    assert len(names) == 10  # the others follow
    assert len(set(names)) == 10
    assert ask(shop, question, 1)[0] in expected


@pytest.mark.parametrize("ask", [gateway_names, tool_names])
def test_the_order_by_meaning_stays_among_products_within_the_bounds(shop: Running, ask: Any):
    assert ask(shop, "quiet lawn mower under 70 dB", 2) == ["Whisper 33", "Brook 1400"]


@pytest.mark.parametrize("ask", [gateway_names, tool_names])
def test_bounds_do_not_widen_a_filter_of_the_caller(shop: Running, ask: Any):
    names = ask(shop, "pressure washer under 2000 PSI", 10, metadata={"psi": {"$gt": 1500}})
    assert names[0] == "PowerJet 1800"
    assert set(names) == {"PowerJet 1800", "PowerJet 2400", "Torrent G3100", "Geyser 2000"}


@pytest.mark.parametrize("ask", [gateway_names, tool_names])
def test_a_filter_of_the_greatest_depth_is_still_accepted(shop: Running, ask: Any):
    nested: dict[str, Any] = {"$or": [{"$and": [{"psi": 1800}, {"price": {"$lt": 900}}]}, {"psi": 1400}]}
    assert set(ask(shop, "pressure washer under 1500 PSI", 10, metadata=nested)) == {"PowerJet 1800", "Brook 1400"}


@pytest.mark.parametrize("ask", [gateway_names, tool_names])
def test_a_bound_that_nothing_meets_changes_nothing(shop: Running, ask: Any):
    assert ask(shop, "pressure washer over 9000 PSI", 10)[0] in _PRODUCTS
    assert len(ask(shop, "pressure washer over 9000 PSI", 10)) == 10


def test_a_note_of_the_search_is_told_once_beside_the_entities_within_the_bounds(shop: Running):
    """The question takes two searches: of the entities within the bounds, and of the others."""
    question = {"query": "pressure washer under 2000 PSI", "limit": 10}

    def found() -> tuple[list[str], list[str]]:
        answer = shop.call("find_entities", question)["structuredContent"]
        return [each["name"] for each in answer["entities"]], answer["notes"]

    assert found()[1] == []
    new = {"name": "Rill 900", "category": "Washers", "description": "A pressure washer.", "metadata": {"psi": 900}}
    id = shop.call("save_entity", new)["structuredContent"]["entity"]["id"]
    try:
        names, notes = found()
        assert {"PowerJet 1800", "Brook 1400", "Rill 900"} == set(names[:3])
        [note] = notes
        assert "no vectors yet" in note
        body = {"namespace": "products", "query": question["query"], "topK": 10}
        answer = shop.http.post("/knowledge-base/retrieve", json=body, headers={"x-api-key": shop.token})
        assert answer.headers["x-search-notes"] == note
    finally:
        removed = shop.http.delete(f"/knowledge-base/entities/{id}", headers={"x-api-key": shop.token})
    assert removed.status_code == 204
    assert found()[1] == []
