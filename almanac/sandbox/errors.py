"""Failures of sandboxed work.

WorkRejected          the child gave a reason: the input is unusable or a limit was reached
SandboxUnavailable    the fork server ended or did not answer: nothing is known about the input
"""


class WorkRejected(Exception):
    """The work cannot be done, with the reason that a person reads."""

    def __init__(self, code: str, message: str, *, retryable: bool = False) -> None:
        self.code = code  # encrypted, corrupt, unsupported_format, empty, ocr_missing, too_large …
        self.message = message  # a sentence that names the remedy; it never contains text of the input
        self.retryable = retryable
        super().__init__(message)


class SandboxUnavailable(Exception):
    """The fork server ended or was closed. Nothing is known about the input: try again."""
