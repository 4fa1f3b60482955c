"""Errors of the pipeline. Each names the thing that was wrong (an option, an address, a topic) and the remedy."""

from __future__ import annotations


class PipelineError(Exception):
    """Base of every error that the pipeline raises on purpose."""


class JavaNotFound(PipelineError):
    """No Java runtime that Spark could run on."""


class BadOption(PipelineError):
    """An option of the data source that is unknown, missing or not of its form."""

    def __init__(self, option: str, reason: str) -> None:
        super().__init__(option, reason)  # both, so that the error survives pickling on its way out of Spark
        self.option = option

    def __str__(self) -> str:
        return f"option {self.args[0]!r}: {self.args[1]}"


class PeerUnavailable(PipelineError):
    """A worker that does not answer, or that cannot answer now."""


class UnexpectedAnswer(PipelineError):
    """A worker's answer that is refused: an error status, or something that is not what the API promises."""


class PlanGone(UnexpectedAnswer):
    """A link's plan that its worker does not know any more: it was given up, or the worker has started again."""


class EntryUnreadable(PipelineError):
    """An entry whose block is sound and whose content cannot be read: wrong metadata, sizes or compression."""


class BadArchive(PipelineError):
    """An archive for executors that cannot be made: its name, its place, or what is installed here."""
