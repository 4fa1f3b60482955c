"""Client of a worker's staging area over plain blocking HTTP, for Spark's Python processes.

Every request may be repeated (see :mod:`replicator.engine.staging.core`). So the client waits, up to a limit, for a
broken connection, a restarting worker, and one without room. Then the task fails with one error that names what it
waited for.
"""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode

from tenacity import RetryCallState, Retrying, retry_if_exception_type, wait_exponential_jitter

from replicator.engine.staging.values import AttemptKey, CommitRequest, EpochKey, Origin, Receipt, SourceMark
from replicator.pipeline.errors import PeerUnavailable, PipelineError, UnexpectedAnswer, WriteRefused
from replicator.pipeline.worker_connection import WorkerConnection, read_whole

ANSWER_BYTES_MAX: Final = 64 * 1024 * 1024
WAIT_FIRST_S: Final = 0.05
WAIT_STEP_S_MAX: Final = 2.0
COMMIT_SECONDS_MAX: Final = 600
"""Longest wait of a driver for a commit that is decided. The worker finishes it in any case."""
TOPICS_ASKED_MAX: Final = 1_000
"""Limit of topics per request. The worker may have to create some of them; it accepts ten times as many."""
_PREFIX: Final = "/pipeline/v1/staged"


class _Waiting(Exception):
    """The worker cannot answer now; the text has the reason. The wait lasts ``seconds_max``, or as long as the user
    said."""

    def __init__(self, error: PipelineError, seconds_max: float | None = None) -> None:
        super().__init__(str(error))
        self.error = error
        self.seconds_max = seconds_max


@dataclass(frozen=True, slots=True)
class Opened:
    """Answer to a task that begins; see :class:`replicator.engine.staging.core.Opened`."""

    done: bool
    commits: int
    sequence_from: int
    epoch: int
    marks: dict[Origin, SourceMark]


@dataclass(frozen=True, slots=True)
class CommitResult:
    """Result of a commit. ``topics`` has first and last position by topic; ``repeated`` says that it was done
    before."""

    repeated: bool
    entries: int
    messages: int
    bytes: int
    topics: dict[str, tuple[str, str]]
    dropped_topics: tuple[str, ...]


class StagingClient(WorkerConnection):
    """Client of one worker's staging area over one connection. Use it as a context manager, or close it.

    Methods raise :class:`WriteRefused` if the worker refuses, :class:`PeerUnavailable` if it was away, or without room,
    for ``wait_seconds``, and :class:`UnexpectedAnswer`.
    """

    def __init__(self, url: str, *, wait_seconds: float) -> None:
        super().__init__(url)
        self._wait_seconds = wait_seconds

    def open(self, key: AttemptKey, *, marks: bool) -> Opened:
        """Begin an attempt. With ``marks`` the answer has the positions up to which the writer has published each
        origin."""
        answer = self._post("open", b"", {**_attempt(key), "marks": "true" if marks else "false"})
        try:
            told = {Origin(str(c), int(i)): SourceMark(*map(int, mark)) for c, i, *mark in answer.get("marks", ())}
            return Opened(
                done=bool(answer["done"]),
                commits=int(answer["commits"]),
                sequence_from=int(answer["sequence_from"]),
                epoch=int(answer["epoch"]),
                marks=told,
            )
        except (KeyError, TypeError, ValueError) as error:
            raise self._unexpected("open", error) from None

    def topics(self, names: Sequence[str]) -> dict[str, int]:
        """Return the number of partitions of topics that are to be written to; 0 for those without."""
        found: dict[str, int] = {}
        try:
            for start in range(0, len(names), TOPICS_ASKED_MAX):
                some = names[start : start + TOPICS_ASKED_MAX]
                answer = self._post("topics", {"topics": list(some)})
                found.update((name, int(answer["topics"][name])) for name in some)
        except (KeyError, TypeError, ValueError) as error:
            raise self._unexpected("topics", error) from None
        return found

    def append(self, key: AttemptKey, at: int, body: bytes) -> None:
        self._post("append", body, {**_attempt(key), "at": str(at)})

    def seal(self, key: AttemptKey, size_bytes: int) -> None:
        self._post("seal", b"", {**_attempt(key), "bytes": str(size_bytes)})

    def abort(self, key: EpochKey, *, job: str | None = None, attempts: Sequence[str] = ()) -> None:
        """End a job of an epoch, or the given attempts: staged messages are deleted, and further ones refused."""
        self._post("abort", {**key._asdict(), "job": job, "attempts": list(attempts)})

    def commit(self, request: CommitRequest, topics: Sequence[str]) -> CommitResult:
        """Publish; return when all is published, after as many requests as that takes."""
        body = {
            **request.key._asdict(),
            "receipts": [_receipt(receipt) for receipt in request.receipts],
            "marks": [[*origin, *mark] for origin, mark in request.marks.items()],
            "base": request.base,
            "kept": request.kept,
            "topics": list(topics),
        }
        answer = self._post("commit", body)
        try:
            return CommitResult(
                repeated=bool(answer["repeated"]),
                entries=int(answer["entries"]),
                messages=int(answer["messages"]),
                bytes=int(answer["bytes"]),
                topics={str(name): (str(first), str(last)) for name, (first, last) in answer["topics"].items()},
                dropped_topics=tuple(map(str, answer["dropped_topics"])),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise self._unexpected("commit", error) from None

    def _post(self, what: str, body: bytes | dict[str, Any], query: dict[str, str] | None = None) -> dict[str, Any]:
        """Repeat a request until the answer is not 'not now'."""
        target = f"{self._base_path}{_PREFIX}/{what}" + (f"?{urlencode(query)}" if query else "")
        content = body if isinstance(body, bytes) else json.dumps(body, separators=(",", ":")).encode()
        try:
            for attempt in Retrying(
                stop=_WaitLimit(self._wait_seconds),
                wait=wait_exponential_jitter(multiplier=WAIT_FIRST_S, max=WAIT_STEP_S_MAX, jitter=WAIT_FIRST_S),
                retry=retry_if_exception_type(_Waiting),
                reraise=True,
            ):
                with attempt:
                    return self._ask(what, target, content)
        except _Waiting as waiting:
            text = f"{waiting.error}; gave up after {waiting.seconds_max or self._wait_seconds:g} s"
            if isinstance(waiting.error, WriteRefused):
                raise WriteRefused(waiting.error.code, text) from None
            raise PeerUnavailable(text) from None
        raise AssertionError("a bug: the loop of attempts ended by neither a return nor an error")

    def _ask(self, what: str, target: str, content: bytes) -> dict[str, Any]:
        try:
            self._connection.request("POST", target, content, self.shown())
            response = self._connection.getresponse()
            answer = read_whole(response, ANSWER_BYTES_MAX)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            reason = error or type(error).__name__
            raise _Waiting(PeerUnavailable(f"worker at {self.url} cannot be reached: {reason}")) from None
        try:
            told = dict(json.loads(answer))
        except (ValueError, TypeError) as error:
            if response.status >= http.HTTPStatus.INTERNAL_SERVER_ERROR:
                text = f"worker at {self.url} cannot take {what} now: status {response.status}"
                raise _Waiting(PeerUnavailable(text)) from None
            raise self._unexpected(what, error) from None
        if response.status == http.HTTPStatus.OK:
            return told
        if response.status == http.HTTPStatus.ACCEPTED:
            detail = told.get("detail")
            text = f"worker at {self.url} has decided the commit and is still publishing it" + (
                f", it waits: {detail}" if detail else ""
            )
            raise _Waiting(PeerUnavailable(text), COMMIT_SECONDS_MAX)
        code, message = str(told.get("error", response.status)), str(told.get("message", ""))[:2000]
        refused = WriteRefused(code, f"worker at {self.url} refused {what}: {message} ({code})")
        if response.status in (http.HTTPStatus.SERVICE_UNAVAILABLE, http.HTTPStatus.TOO_MANY_REQUESTS):
            raise _Waiting(refused)
        raise refused

    def _unexpected(self, what: str, error: Exception) -> UnexpectedAnswer:
        return UnexpectedAnswer(f"worker at {self.url}: its answer to {what} cannot be read: {error}")


class _WaitLimit:
    """Limit of waiting. If a worker goes away while it publishes a commit, the wait begins anew, however long it took
    before."""

    def __init__(self, wait_seconds: float) -> None:
        self._wait_seconds = wait_seconds
        self._limit: float | None = None
        self._since_s = time.monotonic()

    def __call__(self, state: RetryCallState) -> bool:
        waiting = None if state.outcome is None else state.outcome.exception()
        limit = waiting.seconds_max if isinstance(waiting, _Waiting) else None
        if limit != self._limit:
            self._limit, self._since_s = limit, time.monotonic()
        return time.monotonic() - self._since_s >= (limit or self._wait_seconds)


def _attempt(key: AttemptKey) -> dict[str, str]:
    writer, run, epoch = key.epoch
    return {
        "writer": writer,
        "run": run,
        "epoch": str(epoch),
        "partition": str(key.partition),
        "attempt": key.attempt,
    }


def _receipt(receipt: Receipt) -> list[Any]:
    return [
        receipt.partition,
        receipt.attempt,
        receipt.bytes,
        receipt.entries,
        receipt.messages,
        receipt.sequence_last,
    ]
