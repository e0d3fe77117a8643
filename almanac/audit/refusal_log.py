"""Log lines for requests without a valid credential, so that an operator sees attempts to guess one."""

import time

import structlog

MAX_LINES_PER_WINDOW = 60
WINDOW_SECONDS = 60

_log = structlog.get_logger("almanac.requests")


class RefusalLog:
    """Logs such requests: one line per address and window, of all addresses at most MAX_LINES_PER_WINDOW.

    The token is not logged: it may be a valid one with a typing error.
    """

    def __init__(self) -> None:
        self._window = 0
        self._logged: set[str] = set()  # the addresses with a line in this window
        self._unlogged = 0

    def record(self, address: str, surface: str, request_id: str) -> None:
        """Log one refused request, or count it for the next line."""
        window = int(time.monotonic() // WINDOW_SECONDS)
        if window != self._window:
            self._window = window
            self._logged.clear()
        if address in self._logged or len(self._logged) >= MAX_LINES_PER_WINDOW:
            self._unlogged += 1
            return
        self._logged.add(address)
        _log.warning(
            "credential_refused", address=address, surface=surface, request_id=request_id, not_logged=self._unlogged
        )
        self._unlogged = 0
