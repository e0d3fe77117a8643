"""The generated catalogue of the catalogue bench: entities in a tree, with metadata of known selectivity."""

import json
import random
from pathlib import Path
from typing import Any

GROUPS, EACH = 20, 10  # top categories, and categories below each
BUCKETS = 100  # one value of `bucket` selects one entity in a hundred
_ADJECTIVES = (
    "quiet", "sturdy", "compact", "red", "blue", "cordless", "heavy", "light", "foldable", "electric", "petrol",
    "manual",
)  # fmt: skip
_NOUNS = (
    "washer", "mower", "drill", "saw", "pump", "lamp", "ladder", "heater", "blower", "trimmer", "sander", "compressor",
)  # fmt: skip
_PURPOSES = (
    "patio", "garden", "workshop", "driveway", "balcony", "kitchen", "roof", "cellar", "meadow", "harbour", "stable",
    "forest",
)  # fmt: skip
# A search of everything has as many questions as a filtered one, which has one for each bucket, so that caches help
# both equally.
QUESTIONS = [
    f"{_ADJECTIVES[place % 12]} {_NOUNS[(place + place // 12) % 12]} for the {_PURPOSES[5 * place % 12]}"
    for place in range(120)
]


def write(folder: Path, number: int) -> tuple[Path, Path]:
    """The frame as JSON, and the entities as JSONL."""
    folder.mkdir(parents=True, exist_ok=True)
    frame, items = folder / "frame.json", folder / f"entities-{number}.jsonl"
    tree = [
        {"name": f"Group {g}", "description": "", "children": [{"name": f"Kind {g}.{k}"} for k in range(EACH)]}
        for g in range(GROUPS)
    ]
    frame.write_text(json.dumps({"categories": tree, "indexes": [{"name": "products", "categories": []}]}))
    made = random.Random(7)
    with items.open("w", encoding="utf-8") as out:
        for place in range(number):
            out.write(json.dumps(_entity(made, place)) + "\n")
    return frame, items


def _entity(made: random.Random, place: int) -> dict[str, Any]:
    words = [made.choice(_ADJECTIVES), made.choice(_ADJECTIVES), made.choice(_NOUNS), made.choice(_PURPOSES)]
    group = made.randrange(GROUPS)
    return {
        "name": f"{words[0].title()} {words[2]} {place}",
        "category": f"Group {group}/Kind {group}.{made.randrange(EACH)}",
        "sku": f"SKU-{place:06d}",
        "description": f"A {words[0]} and {words[1]} {words[2]} for the {words[3]}, number {place} of its series.",
        "tags": words[:2],
        "metadata": {
            "bucket": f"b{place % BUCKETS}",
            "psi": made.randrange(500, 4000),
            "price": round(made.uniform(10, 900), 2),
            "colour": made.choice(["red", "blue", "green"]),
        },
    }
