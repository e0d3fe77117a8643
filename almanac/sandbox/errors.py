"""Failures of sandboxed work.

WorkRejected          the work gave a reason, a limit was reached, or the work crashed
SandboxUnavailable    the fork server ended or did not answer: nothing is known about the file
"""


class WorkRejected(Exception):
    """The work cannot be done on this file.

    The work itself raises it with codes of its own and a sentence for people. The sandbox raises it with one of these
    codes, and the message is then a detail such as "20 s of processor time" or "SIGSEGV":

    timeout            out of processor or wall time
    memory_limit       out of memory
    output_limit       the result is too large
    recursion_limit    the file is nested too deeply
    crashed            stopped by a signal or an unexpected error, or ended without a result
    interrupted        stopped from outside, or never confined: worth another try
    """

    def __init__(self, code: str, message: str, *, retryable: bool = False) -> None:
        self.code = code
        self.message = message  # it never contains text of the file
        self.retryable = retryable
        super().__init__(message)


class SandboxUnavailable(Exception):
    """The fork server ended or was closed. Nothing is known about the file: try again."""
