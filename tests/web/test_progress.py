"""The progress of a base's vectors, over REST and on /mcp."""

from typing import Any

from almanac.core.database import Database, Transaction
from tests.web.api import Api, ingest

TEXT = "# Pumps\n\nForty turns a minute.\n\n## Care\n\nOil the bearing.\n"


def told(api: Api, base: int) -> list[tuple[Any, Any]]:
    """The progress of a base: in the list, alone, and by the tool."""
    listed = api.ask("GET", "/bases", params={"query": "embedded by and by"})["items"]
    tool = api.live.call("list_bases", {"query": "embedded by and by"})["structuredContent"]["items"]
    found = [*listed, api.ask("GET", f"/bases/{base}"), *tool]
    assert {each["id"] for each in found} == {base}
    return [(each["passages"], each["embedded"]) for each in found]


async def forget_vector(db: Database) -> None:
    async def body(tx: Transaction) -> None:
        rows = await tx.fetch("SELECT passage_id, source_id FROM vectors ORDER BY passage_id DESC LIMIT 1")
        await tx.execute("DELETE FROM vectors WHERE passage_id = $1", rows[0]["passage_id"])
        sql = "UPDATE sources SET is_embedded = 0, version = version + 1 WHERE id = $1"
        await tx.execute(sql, rows[0]["source_id"])

    await db.write(body)


def test_a_base_tells_how_many_of_its_passages_are_embedded_until_all_are(api: Api):
    base = api.base("Embedded by and by")
    assert told(api, base) == [(None, None)] * 3
    document = api.text(base, "pumps.md", TEXT)["id"]
    ingest(api.live)
    api.live.work()
    passages = api.ask("GET", f"/documents/{document}")["passages"]
    assert told(api, base) == [(None, None)] * 3
    api.live.run(forget_vector)
    assert told(api, base) == [(passages, passages - 1)] * 3
