"""Errors of a request to a worker's admin paths. Commands turn these into exit statuses, so this module imports
nothing.

They are of two kinds: what the worker refuses, with the reason it gives, and what keeps it from answering.
"""

from __future__ import annotations


class AdminError(Exception):
    """A request failed."""


class InvalidAddress(AdminError):
    """Options that do not say which worker to ask."""


class RequestRefused(AdminError):
    """The worker refuses the request; the text is its reason."""

    def __init__(self, status: int, code: str, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.code = code


class NotThere(AdminError):
    """The requested thing does not exist: an answer, not a mistake."""


class WorkerUnavailable(AdminError):
    """The worker does not answer, or cannot do anything."""
