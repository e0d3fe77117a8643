"""Search as WeKnora's clients ask for it: pieces of documents in named bases, with how likely each answers and why.

Scores are grades, in every mode: above 0.8 a piece is directly relevant, below 0.5 only tangential, so that one
threshold means the same everywhere. What it leaves out is counted: an answer may be empty, but never without saying so.
"""

from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from almanac.core.arguments import MAX_ID, Arguments
from almanac.core.call import Call
from almanac.core.errors import BadRequest, NotFound
from almanac.knowledge import document_search
from almanac.knowledge.document_search import MOST_NAMED, DocumentResult, SearchArguments
from almanac.search.engine import MAX_QUERY_CHARS, SearchEngine

MAX_TOP_K = 50
DEFAULT_TOP_K = 10
MIN_SCORE = 0.5
NOWHERE = "At least one knowledge_base_id, knowledge_base_ids, knowledge_ids, or scoped tag must be provided"

Mode = Literal["hybrid", "vector", "keyword"]
Name = str | int  # an id: WeKnora's are strings, ours are numbers
OrNull = BeforeValidator(lambda given: [] if given is None else given)  # a list: WeKnora's clients send null for none
Names = Annotated[list[Name], OrNull, Field(default_factory=list[Name], max_length=MOST_NAMED)]
TopK = Annotated[int, Field(ge=1, le=MAX_TOP_K)]
MinScore = Annotated[float, Field(ge=0, le=1)]


class Mentioned(Arguments):
    """Something that was picked by @: a base or a document."""

    id: Name
    type: str
    name: str | None = None
    kb_type: str | None = None


class WeKnoraSearchArguments(Arguments):
    """What to look for, and where: by the names of WeKnora's document, and by those of its server."""

    question: Annotated[str | None, Field(max_length=MAX_QUERY_CHARS)] = None
    query: Annotated[
        str | None, Field(max_length=MAX_QUERY_CHARS, description="The same, as WeKnora's server calls it.")
    ] = None
    knowledge_base_ids: Annotated[Names, Field(description="As strings or numbers.")]
    knowledge_base_id: Annotated[Name | None, Field(description="One more.")] = None
    knowledge_ids: Annotated[Names, Field(description="Only these documents.")]
    tag_ids: Annotated[
        list[str], OrNull, Field(default_factory=list[str], description="Only documents with all of these tags.")
    ]
    mentioned_items: Annotated[list[Mentioned], OrNull, Field(default_factory=list[Mentioned], max_length=MOST_NAMED)]
    search_mode: Mode = "hybrid"
    top_k: TopK = DEFAULT_TOP_K
    min_score: MinScore = MIN_SCORE
    rerank: bool = True
    highlight: Annotated[bool, Field(description="Also where words of the question stand in each `content`.")] = False

    @model_validator(mode="after")
    def _check_text(self) -> Self:
        if not self.text.strip():
            raise ValueError("question: say what you are looking for")
        if self.question is not None and self.query is not None and self.question != self.query:
            raise ValueError("question and query: are the same thing, and differ")
        return self

    @property
    def text(self) -> str:
        """What is asked, by either name."""
        return self.question if self.question is not None else self.query or ""

    @property
    def base_ids(self) -> list[Name]:
        """The bases that are named anywhere."""
        one = [] if self.knowledge_base_id is None else [self.knowledge_base_id]
        picked = (item.id for item in self.mentioned_items if item.type == "kb")
        return [id for id in (*self.knowledge_base_ids, *one, *picked) if id != ""]

    @property
    def document_ids(self) -> list[Name]:
        """The documents that are named anywhere."""
        picked = (item.id for item in self.mentioned_items if item.type != "kb")
        return [id for id in (*self.knowledge_ids, *picked) if id != ""]


@dataclass(frozen=True, slots=True)
class Results:
    """What was found, the best first; how many pass the threshold, and how many do not."""

    hits: tuple[DocumentResult, ...]
    total_count: int
    below_min_score: int = 0
    notes: tuple[str, ...] = ()


async def search(call: Call, engine: SearchEngine, asked: WeKnoraSearchArguments) -> Results:
    """The pieces that answer best, of bases or documents that are named."""
    if not asked.base_ids and not asked.document_ids:
        raise BadRequest(NOWHERE)
    return await look(call, engine, asked)


async def look(call: Call, engine: SearchEngine, asked: WeKnoraSearchArguments) -> Results:
    """The same, in all that the caller may read where nothing is named."""
    inquiry = SearchArguments(
        query=asked.text,
        bases=[_number(id) for id in asked.base_ids],
        folders=[],
        documents=[_number(id) for id in asked.document_ids],
        kinds=[],
        tags=[tag for tag in asked.tag_ids if tag],
        mode=asked.search_mode,
        limit=asked.top_k,
        min_score=asked.min_score,
        rerank=asked.rerank,
        most_per_document=0,
        explain=True,
    )
    reach = await document_search.resolve_scope(call, inquiry.bases, inquiry.folders, inquiry.documents)
    question = replace(document_search.question(inquiry, reach), graded=True)
    found = await document_search.find(call, engine, question, reach.notes)
    good = found.counts.get("above_min_score", 0)
    return Results(found.hits, good, found.counts.get("fused", 0) - good, found.notes)


def match_type(hit: DocumentResult) -> str:
    """Which legs found it."""
    legs = hit.found.legs
    return "hybrid" if len(legs) > 1 else {"words": "keyword", "vectors": "vector"}.get("".join(legs), "hybrid")


def describe(hit: DocumentResult, *, highlight: bool) -> dict[str, Any]:
    """A piece as WeKnora's document shows it."""
    found = hit.found
    shown: dict[str, Any] = {
        "id": str(found.passage_id),
        "content": found.text,
        "score": found.score,
        "knowledge_id": str(hit.document_id),
        "knowledge_title": found.title,
        "knowledge_filename": hit.name,
        "match_type": match_type(hit),
    }
    return shown | {"highlights": [list(span) for span in found.highlights]} if highlight else shown


def _number(name: Name) -> int:
    """The number that an id is; one that is none names nothing."""
    if isinstance(name, int):
        if 0 < name <= MAX_ID:
            return name
    elif name.isascii() and name.isdigit() and len(name) < 20 and 0 < int(name) <= MAX_ID:
        return int(name)
    raise NotFound()
