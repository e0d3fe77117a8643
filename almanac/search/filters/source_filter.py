"""Translates a filter into SQL on the sources, in the subset that both databases support.

Texts are parameters. Folder ids are written into the statement, because there may be thousands of them and a statement
has at most some 32,000 parameters.
"""

from collections.abc import Iterable, Iterator, Sequence

import orjson

from almanac.core.database import Value
from almanac.core.errors import BadRequest
from almanac.db.sql import Parameters, id_list
from almanac.search.filters import conditions, metadata_index
from almanac.search.query import SourceFilter

MAX_TAGS = 20  # each needs a lookup of its own
MAX_OBJECTS = 20_000

# The tags of a source, each between two `\,`. They are stored as a JSON list of texts. Its escapes are replaced by `\-`
# and `\'`, which JSON does not contain, nor does it contain `\,`. After that, the only quotation marks are those around
# the tags. The first one is cut off, and every `","` from left to right is a border, whatever the tags contain.
_TAGS = r"""('\,' || replace(replace(substr(replace(replace(CAST(s.tags AS TEXT), '\\', '\-'), '\"', '\'''), 3),
'","', '\,'), '"]', '\,'))"""
_TIMES = (
    ("created_from", "s.created_at >="),
    ("created_until", "s.created_at <"),
    ("updated_from", "s.updated_at >="),
    ("updated_until", "s.updated_at <"),
)


def resolve(filter: SourceFilter, start: int = 1, collections: Sequence[str] = ()) -> tuple[str, tuple[Value, ...]]:
    """Return a condition on the sources `s`, empty for no restriction, and its parameters, numbered from `start`. If
    the collections are given, the metadata index limits the sources on which tags and metadata are tested."""
    if len(filter.objects) + len(filter.excluded_objects) > MAX_OBJECTS:
        raise BadRequest(f"A search filter takes at most {MAX_OBJECTS} ids.", remedy="Name their folders instead.")
    parameters = Parameters(start)
    parts = [*_attributes(filter, parameters), *_times(filter, parameters)]
    if filter.tags:
        parts += _tags(tuple(dict.fromkeys(filter.tags)), collections, parameters)
    for given in (filter.condition, filter.number_condition):
        if given is None:
            continue
        condition = conditions.parse(given)
        found = metadata_index.indexed_condition(condition, collections, parameters)
        parts += [found.sql] if found.sql else []
        parts += [] if found.is_exact else [conditions.to_sql(condition, parameters)]
    return " AND ".join(parts), tuple(parameters.values)


def _attributes(filter: SourceFilter, parameters: Parameters) -> Iterator[str]:
    if filter.kinds:
        yield f"s.kind IN ({parameters.add_all(dict.fromkeys(filter.kinds))})"
    if filter.objects:
        yield f"({_objects(filter.objects, parameters)})"
    if filter.excluded_objects:
        yield f"NOT ({_objects(filter.excluded_objects, parameters)})"
    if filter.media:
        prefixes = [media for media in dict.fromkeys(filter.media) if media.endswith("/")]
        whole = [media for media in dict.fromkeys(filter.media) if not media.endswith("/")]
        tests = [f"substr(s.media, 1, {len(prefix)}) = {parameters.add(prefix)}" for prefix in prefixes]
        tests += [f"s.media IN ({parameters.add_all(whole)})"] if whole else []
        yield f"({' OR '.join(tests)})"
    if filter.folders:
        yield f"s.folder_id IN ({id_list(sorted(set(filter.folders)))})"


def _objects(objects: Iterable[tuple[str, str]], parameters: Parameters) -> str:
    ids: dict[str, dict[str, None]] = {}
    for kind, object_id in objects:
        ids.setdefault(kind, {})[object_id] = None
    return " OR ".join(
        f"s.kind = {parameters.add(kind)} AND s.owner_id IN ({parameters.add_all(each)})" for kind, each in ids.items()
    )


def _times(filter: SourceFilter, parameters: Parameters) -> Iterator[str]:
    for name, comparison in _TIMES:
        time: int | None = getattr(filter, name)
        if time is not None:
            yield f"{comparison} {parameters.add(time)}"


def _tags(tags: Sequence[str], collections: Sequence[str], parameters: Parameters) -> Iterator[str]:
    if len(tags) > MAX_TAGS:
        raise BadRequest(f"A search filter takes at most {MAX_TAGS} tags.", remedy="Name the most specific tags.")
    bordered = [_bordered(tag) for tag in tags]
    found = metadata_index.tagged(tags, collections, parameters)
    if found.sql:
        yield found.sql
    if not found.is_exact:
        yield from (f"replace({_TAGS}, {parameters.add(each)}, '') <> {_TAGS}" for each in bordered)


def _bordered(tag: str) -> str:
    """Return a tag in the form that it has in `_TAGS`."""
    try:
        encoded = orjson.dumps(tag).decode()[1:-1]
    except TypeError:
        raise BadRequest("A tag is not a text that can be stored.", remedy="Send it as valid Unicode.") from None
    return "\\," + encoded.replace("\\\\", "\\-").replace('\\"', "\\'") + "\\,"
