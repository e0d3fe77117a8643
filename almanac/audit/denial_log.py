"""Log lines for denied access to an object that exists, with the user and the object."""

import time

import structlog

from almanac.core.call import Call

MAX_LINES_PER_WINDOW = 60  # of one user
WINDOW_SECONDS = 60
MAX_USERS = 10_000

_log = structlog.get_logger("almanac.requests")


class DenialLog:
    """Logs each denial, of one user at most MAX_LINES_PER_WINDOW in a window; the next line counts the others."""

    def __init__(self) -> None:
        self._window = 0
        self._denials: dict[int, int] = {}  # of each user in this window
        self._unlogged: dict[int, int] = {}

    def record(self, call: Call, kind: str, identifier: int | str) -> None:
        """Log that a caller may not use an object, or count it for the caller's next line."""
        window = int(time.monotonic() // WINDOW_SECONDS)
        if window != self._window:
            self._window = window
            self._denials.clear()
        actor = call.actor
        number = self._denials[actor.id] = self._denials.get(actor.id, 0) + 1
        if number > MAX_LINES_PER_WINDOW:
            if actor.id in self._unlogged or len(self._unlogged) < MAX_USERS:
                self._unlogged[actor.id] = self._unlogged.get(actor.id, 0) + 1
            return
        _log.warning(
            "access_denied",
            user=actor.id,
            user_name=actor.name,
            org=actor.org_id,
            resource=f"{kind} {str(identifier)[:100]}",
            request_id=call.request_id,
            not_logged=self._unlogged.pop(actor.id, 0),
        )
