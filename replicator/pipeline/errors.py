"""Errors of the pipeline. Each names the wrong thing (an option, an address, a topic) and the remedy."""

from __future__ import annotations

import re
from typing import Final

REASON_CHARS_MAX: Final = 500
_ERROR_OF_OURS: Final = re.compile(r"^\s*replicator\.[\w.]*\.(\w+): (.*)$", re.MULTILINE)
"""Pattern of one of our errors in Spark's text, at the end of a Python task's traceback: its class and its text."""
_PYTHON_TRACEBACK: Final = "Traceback (most recent call last):"


class PipelineError(Exception):
    """Base of every error that the pipeline raises on purpose."""


class JavaNotFound(PipelineError):
    """No Java runtime was found that Spark can run on."""


class BadOption(PipelineError):
    """An option of the data source is unknown, missing or malformed."""

    def __init__(self, option: str, reason: str) -> None:
        super().__init__(option, reason)  # both, so that the error survives pickling on its way out of Spark
        self.option = option

    def __str__(self) -> str:
        return f"option {self.args[0]!r}: {self.args[1]}"


class PeerUnavailable(PipelineError):
    """A worker does not answer, or cannot answer now."""


class AnswerCutOff(PeerUnavailable):
    """A worker's answer ended early: the worker was killed, or the connection broke."""


class UnexpectedAnswer(PipelineError):
    """A worker answered with an error status, or with something that the API does not promise."""

    code: str | None = None
    """Error code of the worker, if it sent one."""
    status: int | None = None
    """HTTP status if the worker refused the request; None for other errors."""

    @property
    def is_not_found(self) -> bool:
        """Whether the worker said that it does not have the requested thing. Other refusals do not say that."""
        return self.code not in (None, "NotFound") and self.status in (404, 409, 410, 422)


class SparkFailed(PipelineError):
    """Spark does not start, or a job of it failed; the message has Spark's own words."""


class PlanGone(UnexpectedAnswer):
    """A link's worker does not know the plan any more: it was given up, or the worker has started again."""


class NoSuchLink(UnexpectedAnswer):
    """The worker of a link's source does not run the link."""


class LinkTaken(UnexpectedAnswer):
    """Another backfill has the link; the message names it."""


class EntryUnreadable(PipelineError):
    """An entry cannot be read although its block is sound: wrong metadata, sizes or compression."""


class BadArchive(PipelineError):
    """An archive for executors cannot be made, because of its name, its place, or the installed packages."""


class TopicChanged(PipelineError):
    """The start of a read is gone: the topic was deleted, made anew, or trimmed further than that."""

    def __init__(self, topic: str, what: str) -> None:
        super().__init__(topic, what)
        self.topic = topic

    def __str__(self) -> str:
        return f"topic {self.args[0]} {self.args[1]}; option 'onGap' set to 'skip' reads on with what is there"


class BadOffset(PipelineError):
    """A checkpoint has an offset that the source did not write: start the query anew, or with its own checkpoint."""


class OldCheckpoint(PipelineError):
    """A batch of a stream is published already, with other rows: its checkpoint is older than its output."""

    def __init__(self, writer: str, batch: int, why: str) -> None:
        super().__init__(writer, batch, why)

    def __str__(self) -> str:
        writer, batch, why = self.args
        return (
            f"writer {writer!r}: batch {batch} is published already, and {why}: the query's checkpoint is older than "
            "what it wrote, and rows would be lost. Give it a new checkpoint; with a named 'writer' and the columns of "
            "its rows' origins nothing is published twice"
        )


class BadRow(PipelineError):
    """A row cannot become a message: the text names the column and its fault."""


class WriteRefused(PipelineError):
    """A worker does not accept written rows, or not any more; ``code`` is the API's name for the reason."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(code, reason)
        self.code = code

    def __str__(self) -> str:
        return str(self.args[1])


class CannotMask(PipelineError):
    """A link's ``select`` must mask a message whose content cannot be read: encrypted, or a chunk."""

    code = "CannotMask"


class BadSql(PipelineError):
    """Spark refuses an expression of a link's ``where`` or ``select``."""

    def __init__(self, link: str, field: str, text: str, reason: str) -> None:
        super().__init__(link, field, text, reason)

    def __str__(self) -> str:
        link, field, text, reason = self.args
        return f"link {link}: {field} {text[:100]!r}: {reason}"


def is_of_spark(error: BaseException) -> bool:
    """Return whether Spark or its JVM raised the error. The test is by name: importing Spark's types takes a second."""
    return type(error).__module__.partition(".")[0] in ("pyspark", "py4j")


def reason_of(error: BaseException | None) -> str:
    """Return the line that gives the reason of one of Spark's errors, which have pages of text.

    1. For an error that our own code raised in a Python task: its text.
    2. For another error that Python code raised in a task: the last line of its traceback.
    3. For anything else: the first line, without py4j's prefix.
    """
    text = str(error or "").strip()
    if not text:
        return "it ended by itself" if error is None else type(error).__name__
    ours = _ERROR_OF_OURS.findall(text)
    if ours:
        return str(ours[-1][1]).strip()[:REASON_CHARS_MAX]
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith(("\tat ", "   at "))]
    of_traceback = [number for number, line in enumerate(lines) if line.endswith(_PYTHON_TRACEBACK)]
    if of_traceback:
        after = [line for line in lines[of_traceback[-1] + 1 :] if not line.startswith(" ")]
        if after:
            return after[0].strip()[:REASON_CHARS_MAX]
    if lines[0].startswith("An error occurred while calling") and len(lines) > 1:  # py4j; the JVM's error follows
        del lines[0]
    return lines[0].strip().removeprefix(": ")[:REASON_CHARS_MAX]


def error_of_job(error: BaseException, *expected: type[PipelineError]) -> PipelineError:
    """Return the error that made a job of Spark fail: the one that a task raised, if it is of an ``expected`` class."""
    ours = _ERROR_OF_OURS.findall(str(error))
    if not ours:
        return SparkFailed(f"a Spark job failed: {reason_of(error)}")
    kinds = {kind.__name__: kind for kind in expected}
    return kinds.get(ours[-1][0], SparkFailed)(reason_of(error))
