"""The errors a user can meet; the command line turns each into one line on stderr and an exit code."""

from contextlib import contextmanager


class BankmlError(Exception):
    """What went wrong, where, and what to do next, in one sentence. `exit_code` is the command's."""

    exit_code = 1


class UsageError(BankmlError):
    """A wrong flag, environment value, missing file or over-long prompt (exit 1)."""


class PromptTooLong(UsageError):
    """A prompt that leaves no room for an answer: `tokens` of it, in a context of `n_ctx`."""

    def __init__(self, message: str, tokens: int, n_ctx: int):
        super().__init__(message)
        self.tokens, self.n_ctx = tokens, n_ctx


class Refused(BankmlError):
    """A file, level or device that bankml will not run, with the reason (exit 2).

    `reasons` holds every reason found; the message is the first one, or all of them joined by "; ".
    """

    exit_code = 2

    def __init__(self, *reasons: str):
        super().__init__("; ".join(reasons))
        self.reasons = list(reasons)


class NeedMore(BankmlError):
    """The file ends before what it announces (exit 3): a cut download."""

    exit_code = 3


@contextmanager
def naming(path):
    """Give OSErrors of reading and writing within the file's name, which Python leaves out: a full disk, say."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise
