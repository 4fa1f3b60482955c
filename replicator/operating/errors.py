"""What a request to a worker's admin paths may end with. Commands turn these into exit statuses, so they need nothing.

They are of two kinds: what the worker refuses, with the reason it gives, and what keeps it from answering.
"""

from __future__ import annotations


class AdminError(Exception):
    """A request that was not done."""


class InvalidAddress(AdminError):
    """Options that do not say which worker to ask."""


class RequestRefused(AdminError):
    """The worker refuses it; the text is its reason."""

    def __init__(self, status: int, code: str, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.code = code


class NotThere(AdminError):
    """What was looked for is not there: an answer, and not a mistake."""


class WorkerUnavailable(AdminError):
    """The worker does not answer, or cannot do anything."""
