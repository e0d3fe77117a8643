"""The operations under /api/v1."""

from almanac.operations.operation import Operation
from almanac.operations.table import OPERATIONS
from almanac.web.weknora_search import KNOWLEDGE_SEARCH

API_OPERATIONS: tuple[Operation, ...] = (
    *(operation for operation in OPERATIONS if operation.rest is not None),
    KNOWLEDGE_SEARCH,
)
