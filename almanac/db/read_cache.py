"""What a database said, kept for as long as nobody has committed anything to it.

On a database that can tell so faster than it can be asked again (see `Database.version`), what callers ask again and
again is read once after each commit. On any other, and whenever anything was committed by anyone, it is read anew. So
this never answers with what was.
"""

from collections.abc import Awaitable, Callable, Hashable
from typing import Any, TypeVar

from almanac.core.database import Database

T = TypeVar("T")

MAX_CACHED_VALUES = 10_000  # answers; a database that nobody writes to must not fill the memory


class ReadCache:
    """Answers by their questions."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._version: bytes | None = None
        self._answers: dict[Hashable, Any] = {}

    async def get(self, question: Hashable, read: Callable[[], Awaitable[T]]) -> T:
        """The answer to a question, from `read` unless it is known to be the same still."""
        version = self._db.commit_version()
        if version is None:
            return await read()
        if version != self._version or len(self._answers) > MAX_CACHED_VALUES:
            self._version, self._answers = version, {}
        if question in self._answers:
            return self._answers[question]
        answers = self._answers  # those of this version, whatever happens while reading
        answers[question] = answer = await read()
        return answer
