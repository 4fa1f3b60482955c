"""Errors of the pipeline. Each names the thing that was wrong (an option, an address, a topic) and the remedy."""

from __future__ import annotations

from typing import Final

REASON_CHARS_MAX: Final = 500


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

    code: str | None = None
    """The error's, where the worker gave one."""


class SparkFailed(PipelineError):
    """Spark does not start, or ended; the message has its own words."""


class PlanGone(UnexpectedAnswer):
    """A link's plan that its worker does not know any more: it was given up, or the worker has started again."""


class NoSuchLink(UnexpectedAnswer):
    """The worker of a link's source does not run it."""


class LinkTaken(UnexpectedAnswer):
    """Another backfill has the link; the message names it."""


class EntryUnreadable(PipelineError):
    """An entry whose block is sound and whose content cannot be read: wrong metadata, sizes or compression."""


class BadArchive(PipelineError):
    """An archive for executors that cannot be made: its name, its place, or what is installed here."""


class TopicChanged(PipelineError):
    """What a read was to begin with is gone: the topic was deleted, made anew, or trimmed further than that."""

    def __init__(self, topic: str, what: str) -> None:
        super().__init__(topic, what)
        self.topic = topic

    def __str__(self) -> str:
        return f"topic {self.args[0]} {self.args[1]}; option 'onGap' set to 'skip' reads on with what is there"


class BadOffset(PipelineError):
    """An offset of a checkpoint that the source did not write: start the query anew, or with its own checkpoint."""


class OldCheckpoint(PipelineError):
    """A batch of a stream is published already, with other rows: its checkpoint is older than what it wrote."""

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
    """A row that cannot become a message: the text names the column and what is wrong with it."""


class WriteRefused(PipelineError):
    """A worker does not take what is written, or not any more; ``code`` is the API's name for why."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(code, reason)
        self.code = code

    def __str__(self) -> str:
        return str(self.args[1])


class CannotMask(PipelineError):
    """A message that a link's ``select`` is to mask, and whose content cannot be seen: encrypted, or a chunk."""

    code = "CannotMask"


class BadSql(PipelineError):
    """An expression of a link's ``where`` or ``select`` that Spark does not take."""

    def __init__(self, link: str, field: str, text: str, reason: str) -> None:
        super().__init__(link, field, text, reason)

    def __str__(self) -> str:
        link, field, text, reason = self.args
        return f"link {link}: {field} {text[:100]!r}: {reason}"


def is_of_spark(error: BaseException) -> bool:
    """Whether it is Spark's, or comes from its JVM. Its types are not ours to import before it is there."""
    return type(error).__module__.partition(".")[0] in ("pyspark", "py4j")


def reason_of(error: BaseException | None) -> str:
    """Why a query ended, in one line: the last of a Python traceback of ours, else the first of the message."""
    text = str(error or "it ended by itself").strip()
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith(("\tat ", "   at "))]
    ours = [line for line in lines if line.startswith("replicator.") and ": " in line]
    if ours:
        return ours[-1].partition(": ")[2][:REASON_CHARS_MAX]
    if lines[0].startswith("An error occurred while calling") and len(lines) > 1:  # py4j; the JVM's error follows
        del lines[0]
    return lines[0].removeprefix(": ")[:REASON_CHARS_MAX]
