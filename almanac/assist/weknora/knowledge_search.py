"""Document search in the form of WeKnora's clients.

Scores are grades in every search mode: above 0.8 a passage is directly relevant, below 0.5 only tangential. One
threshold therefore means the same in every mode. The response counts the results below it, to explain an empty list.
"""

from dataclasses import dataclass, replace
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from almanac.core.arguments import MAX_ID, Arguments
from almanac.core.call import Call
from almanac.core.errors import BadRequest, NotFound
from almanac.knowledge import document_search
from almanac.knowledge.document_search import MAX_LIST_ITEMS, DocumentResult, SearchArguments
from almanac.search.engine import SearchEngine
from almanac.search.query import GRADED_DOCUMENTS, MAX_QUERY_CHARS

MAX_TOP_K = 50
DEFAULT_TOP_K = 10
MIN_SCORE = 0.5
NO_SEARCH_SCOPE_MESSAGE = (
    "At least one knowledge_base_id, knowledge_base_ids, knowledge_ids, or scoped tag must be provided"
)

Mode = Literal["hybrid", "vector", "keyword"]
WireId = str | int  # WeKnora's ids are strings, ours are numbers
NullAsEmpty = BeforeValidator(lambda value: [] if value is None else value)  # WeKnora's clients send null for no list
WireIds = Annotated[list[WireId], NullAsEmpty, Field(default_factory=list[WireId], max_length=MAX_LIST_ITEMS)]
TopK = Annotated[int, Field(ge=1, le=MAX_TOP_K)]
MinScore = Annotated[float, Field(ge=0, le=1)]


class Mentioned(Arguments):
    """A base or a document that the user mentioned with @."""

    id: Annotated[WireId, Field(description="Id of the base or of the document.")]
    type: Annotated[str, Field(description="kb: a base; any other: a document.")]
    name: Annotated[str | None, Field(description="Accepted and ignored.")] = None
    kb_type: Annotated[str | None, Field(description="Accepted and ignored.")] = None


class WeKnoraSearchArguments(Arguments):
    """Arguments by the field names of WeKnora's document and, as alternatives, by those of its server."""

    question: Annotated[
        str | None, Field(max_length=MAX_QUERY_CHARS, description="What to find. Needed, unless `query` is given.")
    ] = None
    query: Annotated[
        str | None,
        Field(max_length=MAX_QUERY_CHARS, description="The same as `question`, by its name in WeKnora's server."),
    ] = None
    knowledge_base_ids: Annotated[WireIds, Field(description="As strings or numbers.")]
    knowledge_base_id: Annotated[WireId | None, Field(description="One more base.")] = None
    knowledge_ids: Annotated[WireIds, Field(description="Search only these documents.")]
    tag_ids: Annotated[
        list[str], NullAsEmpty, Field(default_factory=list[str], description="Only documents with all of these tags.")
    ]
    mentioned_items: Annotated[
        list[Mentioned],
        NullAsEmpty,
        Field(
            default_factory=list[Mentioned],
            max_length=MAX_LIST_ITEMS,
            description="Bases and documents that the question mentions with @; they are searched.",
        ),
    ]
    search_mode: Annotated[Mode, Field(description="keyword: words; vector: meaning; hybrid: both.")] = "hybrid"
    top_k: Annotated[TopK, Field(description="Results to return.")] = DEFAULT_TOP_K
    min_score: Annotated[MinScore, Field(description="Leave out results with a lower score.")] = MIN_SCORE
    rerank: Annotated[bool, Field(description="Compare the best results more closely with the question.")] = True
    highlight: Annotated[bool, Field(description="Add the positions of the query's words in each `content`.")] = False

    @model_validator(mode="after")
    def _check_text(self) -> Self:
        if not self.text.strip():
            raise ValueError("question: say what you are looking for")
        if self.question is not None and self.query is not None and self.question != self.query:
            raise ValueError("question and query: must be equal if both are sent")
        return self

    @property
    def text(self) -> str:
        """The query, from either field."""
        return self.question if self.question is not None else self.query or ""

    @property
    def base_ids(self) -> list[WireId]:
        """The base ids from all fields."""
        single = [] if self.knowledge_base_id is None else [self.knowledge_base_id]
        mentioned = (item.id for item in self.mentioned_items if item.type == "kb")
        return [id for id in (*self.knowledge_base_ids, *single, *mentioned) if id != ""]

    @property
    def document_ids(self) -> list[WireId]:
        """The document ids from all fields."""
        mentioned = (item.id for item in self.mentioned_items if item.type != "kb")
        return [id for id in (*self.knowledge_ids, *mentioned) if id != ""]


@dataclass(frozen=True, slots=True)
class GradedResults:
    """The results, best first, with the numbers of matches above and below the threshold."""

    hits: tuple[DocumentResult, ...]
    total_count: int
    below_min_score: int = 0
    notes: tuple[str, ...] = ()


async def search(call: Call, engine: SearchEngine, arguments: WeKnoraSearchArguments) -> GradedResults:
    """Search the named bases or documents. Raises BadRequest if none is named."""
    if not arguments.base_ids and not arguments.document_ids:
        raise BadRequest(NO_SEARCH_SCOPE_MESSAGE)
    return await search_anywhere(call, engine, arguments)


async def search_anywhere(call: Call, engine: SearchEngine, arguments: WeKnoraSearchArguments) -> GradedResults:
    """Search the named bases or documents, or all documents that the actor may read if none is named."""
    query = SearchArguments(
        query=arguments.text,
        base_ids=[_parse_id(id) for id in arguments.base_ids],
        folder_ids=[],
        document_ids=[_parse_id(id) for id in arguments.document_ids],
        kinds=[],
        tags=[tag for tag in arguments.tag_ids if tag],
        mode=arguments.search_mode,
        limit=arguments.top_k,
        min_score=arguments.min_score,
        rerank=arguments.rerank,
        most_per_document=0,
        explain=True,
    )
    scope = await document_search.resolve_scope(call, query.base_ids, query.folder_ids, query.document_ids)
    graded = replace(document_search.build_query(query, scope), profile=GRADED_DOCUMENTS)
    results = await document_search.find(call, engine, graded, scope.notes)
    above = results.counts.get("above_min_score", 0)
    return GradedResults(results.hits, above, results.counts.get("fused", 0) - above, results.notes)


def _parse_id(id: WireId) -> int:
    """The number in an id. Raises NotFound for other texts, because no object has such an id."""
    if isinstance(id, int):
        if 0 < id <= MAX_ID:
            return id
    elif id.isascii() and id.isdigit() and len(id) < 20 and 0 < int(id) <= MAX_ID:
        return int(id)
    raise NotFound()
