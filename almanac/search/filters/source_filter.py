"""Filters as SQL: what the sources must be like, in the subset that both databases share.

Texts are parameters. Numbers of folders are written out, for there may be thousands of them and a statement has room
for some 32,000 parameters.
"""

from collections.abc import Iterable, Iterator, Sequence

import orjson

from almanac.core.database import Value
from almanac.core.errors import BadRequest
from almanac.search.filters import conditions, metadata_index
from almanac.search.query import SourceFilter

MOST_TAGS = 20  # each is a look of its own
MOST_OWNERS = 20_000

# The tags, each between two `\,`: a list of texts in JSON, without the escapes that could be taken for a border. What
# stands for them, `\-` and `\'`, and `\,` itself are nothing that JSON has. Once no quote but those around a tag is
# left and the first is cut off, every `","`, from left to right, is a border, whatever is in the tags.
_TAGS = r"""('\,' || replace(replace(substr(replace(replace(CAST(s.tags AS TEXT), '\\', '\-'), '\"', '\'''), 3),
'","', '\,'), '"]', '\,'))"""
_MOMENTS = (
    ("created_from", "s.created_at >="),
    ("created_until", "s.created_at <"),
    ("updated_from", "s.updated_at >="),
    ("updated_until", "s.updated_at <"),
)


def resolve(filter: SourceFilter, start: int = 1, collections: Sequence[str] = ()) -> tuple[str, tuple[Value, ...]]:
    """A condition on the sources `s` with its parameters, numbered from `start`; empty where all will do. Where it is
    known in which collections they are, facts lead to those that may meet a condition on metadata."""
    if len(filter.objects) + len(filter.excluded_objects) > MOST_OWNERS:
        raise BadRequest(
            f"A search takes at most {MOST_OWNERS} things to look in.", remedy="Name their folders instead."
        )
    args = _Args(start)
    parts = [*_places(filter, args), *_moments(filter, args)]
    if tags := tuple(dict.fromkeys(filter.tags)):
        if len(tags) > MOST_TAGS:
            raise BadRequest(f"A search takes at most {MOST_TAGS} tags.", remedy="Name those that tell most.")
        bordered = [_bordered(tag) for tag in tags]
        near, values = metadata_index.tagged(tags, collections, start + len(args.values))
        args.values.extend(values)
        parts += [near.sql] if near.sql else []
        parts += [] if near.exact else [f"replace({_TAGS}, {args.add(each)}, '') <> {_TAGS}" for each in bordered]
    if filter.condition is not None:
        condition = conditions.parse(filter.condition)
        near, values = metadata_index.indexed_condition(condition, collections, start + len(args.values))
        args.values.extend(values)
        parts += [near.sql] if near.sql else []
        if not near.exact:
            where, values = conditions.to_sql(condition, start + len(args.values))
            parts.append(where)
            args.values.extend(values)
    return " AND ".join(parts), tuple(args.values)


class _Args:
    """Parameters, each known by its number."""

    def __init__(self, start: int) -> None:
        self.values: list[Value] = []
        self._start = start

    def add(self, value: Value) -> str:
        self.values.append(value)
        return f"${self._start + len(self.values) - 1}"

    def listed(self, values: Iterable[str]) -> str:
        return ", ".join(self.add(value) for value in dict.fromkeys(values))


def _places(filter: SourceFilter, args: _Args) -> Iterator[str]:
    if filter.kinds:
        yield f"s.kind IN ({args.listed(filter.kinds)})"
    if filter.objects:
        yield f"({_owned(filter.objects, args)})"
    if filter.excluded_objects:
        yield f"NOT ({_owned(filter.excluded_objects, args)})"
    if filter.media:
        starts = [media for media in dict.fromkeys(filter.media) if media.endswith("/")]
        whole = [media for media in filter.media if not media.endswith("/")]
        tests = [f"substr(s.media, 1, {len(start)}) = {args.add(start)}" for start in starts]
        yield f"({' OR '.join([*tests, *([f's.media IN ({args.listed(whole)})'] if whole else [])])})"
    if filter.folders:
        yield f"s.folder_id IN ({', '.join(f'{folder:d}' for folder in sorted(set(filter.folders)))})"


def _owned(owners: Iterable[tuple[str, str]], args: _Args) -> str:
    ids: dict[str, list[str]] = {}
    for kind, owner_id in owners:
        ids.setdefault(kind, []).append(owner_id)
    return " OR ".join(
        f"s.kind = {args.add(kind)} AND s.owner_id IN ({args.listed(each)})" for kind, each in ids.items()
    )


def _moments(filter: SourceFilter, args: _Args) -> Iterator[str]:
    for name, comparison in _MOMENTS:
        moment: int | None = getattr(filter, name)
        if moment is not None:
            yield f"{comparison} {args.add(moment)}"


def _bordered(tag: str) -> str:
    """A tag as it stands among the tags."""
    try:
        packed = orjson.dumps(tag).decode()[1:-1]
    except TypeError:
        raise BadRequest("A tag is not a text that can be stored.", remedy="Send it as valid Unicode.") from None
    return "\\," + packed.replace("\\\\", "\\-").replace('\\"', "\\'") + "\\,"
