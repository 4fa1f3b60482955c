"""Client of a worker's data plane over plain blocking HTTP, for Spark's Python processes.

One :class:`DataPlane` is one connection to one worker. The module has the calls that the pipeline makes, and the values
that come back, but not their use.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode, urlsplit

import pyarrow as pa
from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_random_exponential

from replicator.engine.log.arrow import BLOCK_SCHEMA, StreamCutOff, decode_block_list, read_stream
from replicator.engine.log.block import BLOCK_BYTES_MAX
from replicator.engine.log.link_frame import RECLAIMING_HEADER
from replicator.peering.comparing import SubscriptionState, mapping_of_json
from replicator.pipeline.errors import (
    AnswerCutOff,
    BadOption,
    LinkTaken,
    PeerUnavailable,
    PlanGone,
    TopicChanged,
    UnexpectedAnswer,
)
from replicator.pipeline.source.topic_positions import Measured, StandingsChange, topic_positions
from replicator.pipeline.worker_connection import TIMEOUT_S, WorkerConnection, read_whole
from replicator.running.connecting import why_no_answer
from snapshots.errors import InvalidPosition
from snapshots.mapping import SnapshotMapping
from snapshots.position import BEFORE_ALL, Position

PAGE_BYTES: Final = 8 * 1024 * 1024
"""Size of one page of blocks: it is held in memory twice while it is read."""
ANSWER_BYTES_MAX: Final = PAGE_BYTES + 2 * BLOCK_BYTES_MAX
"""Limit of an answer's size. A page ends with a whole block, however large; no answer by the API is longer."""

JsonObject = dict[str, Any]


@dataclass(frozen=True, slots=True)
class TopicState:
    """One row of the topics listing. ``last`` is the LAC; an empty topic has no entries."""

    name: str
    incarnation: int
    first: Position
    last: Position
    entries: int
    messages: int
    clusters: tuple[str, ...] | None = None
    """Clusters to which its namespace is copied from here; None for all that links lead to."""


class FetchedBlock(NamedTuple):
    """Whole block, not yet verified, and the local position of its first entry."""

    first: Position
    block: memoryview


class BlockPage(NamedTuple):
    """One page of a topic's blocks, with the state of the topic when the page was read."""

    blocks: list[FetchedBlock]
    trimmed: Position
    """Position up to which the topic was trimmed; :data:`BEFORE_ALL` if nothing was, or if the worker does not report
    it."""
    incarnation: int | None
    """Incarnation of the topic; None if the worker does not report it."""
    reached: Position
    """Position after which the next page begins."""
    at_end: bool


class DataPlane(WorkerConnection):
    """Client for one worker's read API. Use it as a context manager, or close it.

    Every method raises :class:`PeerUnavailable` if the worker does not answer or is not ready, and its subclass
    :class:`AnswerCutOff` if an answer ends early. It raises :class:`UnexpectedAnswer` if the worker refuses, or its
    answer breaks the API.
    """

    def __init__(
        self,
        url: str,
        *,
        wait_seconds: float = 0.0,
        silence_seconds: float = TIMEOUT_S,
        reclaiming: str | None = None,
    ) -> None:
        """Keep the settings of the connection.

        A request waits ``wait_seconds`` for a worker that does not answer, or is not ready. It waits
        ``silence_seconds`` for a worker that accepted the connection and sends nothing. ``reclaiming`` is the cluster
        that takes back its lost messages, if any: the worker holds its retention back meanwhile.
        """
        super().__init__(check_url(url), silence_seconds)
        self._wait_seconds = wait_seconds
        self._reclaiming = reclaiming
        self.answered_bytes = 0
        """Bytes of all answers so far, without their headers."""

    def shown(self) -> dict[str, str]:
        """Return the headers that identify the client, and the cluster that takes back its messages."""
        return {**super().shown(), **({} if self._reclaiming is None else {RECLAIMING_HEADER: self._reclaiming})}

    def topics(self) -> tuple[str, list[TopicState]]:
        """Return the cluster's name and its topics."""
        answer = self._json("topics")
        with _checked_answer(self.url, "topics"):
            return str(answer["cluster"]), [
                TopicState(
                    name=str(topic["name"]),
                    incarnation=int(topic["incarnation"]),
                    first=Position.parse(topic["first"]),
                    last=Position.parse(topic["lac"]),
                    entries=int(topic["entries"]),
                    messages=int(topic["messages"]),
                    clusters=None if topic.get("clusters") is None else tuple(map(str, topic["clusters"])),
                )
                for topic in answer["topics"]
            ]

    def positions(self, since: str = "") -> StandingsChange:
        """Return the standings of the topics; with the ``since`` token of an earlier answer only those changed
        since."""
        answer = self._json("positions", **({"since": since} if since else {}))
        with _checked_answer(self.url, "positions"):
            return StandingsChange(
                cluster=str(answer["cluster"]),
                token=str(answer["token"]),
                whole=bool(answer["whole"]),
                topics=topic_positions(answer["topics"]),
                deleted=tuple(map(str, answer["deleted"])),
            )

    def measure(
        self, ranges: Sequence[tuple[str, Position, Position, int]], bytes_max: int = 2**62
    ) -> list[Measured | None]:
        """Measure the whole blocks in ranges ``(topic, after, upto, bytes_max)``; None for a deleted topic.

        Each range is followed up to its own limit, and all together up to ``bytes_max``: ranges beyond it have no
        answer.
        """
        rows = [[topic, str(after), str(upto), limit] for topic, after, upto, limit in ranges]
        answer = self.call("POST", "/replication/v1/measure", {"bytes_max": bytes_max, "ranges": rows})
        with _checked_answer(self.url, "measure"):
            return [
                None if row is None else Measured(Position.parse(row[0]), int(row[1]), int(row[2]), int(row[3]))
                for row in answer["ranges"]
            ]

    def positions_at(self, time_ms: int, topics: Sequence[str]) -> dict[str, Position]:
        """Return, for each existing topic, the last position before the first message published at ``time_ms`` or
        later."""
        answer = self.call("POST", "/replication/v1/positions-at", {"time_ms": time_ms, "topics": list(topics)})
        with _checked_answer(self.url, "positions-at"):
            return {str(topic): Position.parse(position) for topic, position in answer["topics"].items()}

    def subscriptions(self, topic: str) -> list[SubscriptionState]:
        """Return every subscription of a topic with all its acknowledgements."""
        answer = self._json("subscriptions", topic=topic)
        with _checked_answer(self.url, "subscriptions"):
            return [SubscriptionState.of_json(state) for state in answer["subscriptions"]]

    def mappings(self, topic: str) -> list[SnapshotMapping]:
        """Return the snapshot mappings of a topic."""
        answer = self._json("mappings", topic=topic)
        with _checked_answer(self.url, "mappings"):
            return [mapping_of_json(row) for row in answer["mappings"]]

    def blocks(
        self,
        topic: str,
        after: Position = BEFORE_ALL,
        upto: Position | None = None,
        *,
        incarnation: int | None = None,
        page_bytes: int | None = None,
    ) -> Iterator[FetchedBlock]:
        """Yield the blocks that hold entries with ``after < position <= upto`` (the LAC if None), in order.

        The first and the last block may hold entries outside. Checksums are not verified. With an ``incarnation``, the
        whole range must exist in that life of the topic; if not, :class:`TopicChanged` is raised.
        """
        while True:
            page = self.page(topic, after, upto, page_bytes=page_bytes)
            if incarnation is not None:
                _check_whole(topic, after, incarnation, page)
            yield from page.blocks
            if page.at_end:
                return
            after = page.reached

    def page(
        self, topic: str, after: Position, upto: Position | None = None, *, page_bytes: int | None = None
    ) -> BlockPage:
        """Return the first page of the blocks that :meth:`blocks` yields, with the state of the topic at that
        moment."""
        bound = {} if upto is None else {"upto": str(upto)}
        limit = str(page_bytes or PAGE_BYTES)
        answer, headers = self._get("blocks", topic=topic, after=str(after), max_bytes=limit, **bound)
        with _checked_answer(self.url, f"blocks of {topic}"):
            at_end = headers["X-Replicator-End"] == "true"
            reached = after if at_end else Position.parse(headers["X-Replicator-Next"])
            if reached <= after and not at_end:
                raise ValueError(
                    f"the page of blocks after {after} says that the next page is after {reached}, which is not later"
                )
            trimmed = Position.parse(headers.get("X-Replicator-Trimmed", str(BEFORE_ALL)))
            told = headers.get("X-Replicator-Incarnation")
            return BlockPage(list(_read_page(answer)), trimmed, None if told is None else int(told), reached, at_end)

    def block_list(self, topics: Sequence[tuple[str, Sequence[Sequence[int]]]]) -> pa.Array:
        """Return blocks that start at ``[ledger, first entry]`` in each topic, in that order, as a column of bytes.

        A missing block is null. The answer has the first of the requested blocks: at least one, then about a page.
        Their content is not read.
        """
        answer, _ = self._ask("POST", "/replication/v1/blocks", {"topics": topics})
        with _checked_answer(self.url, "blocks"):
            return decode_block_list(answer)

    def call(self, method: str, path: str, body: Any = None, **query: str) -> JsonObject:
        """Ask ``path``, such as ``/pipeline/v1/links``. The answer must be a JSON object."""
        answer, _ = self._ask(method, path, body, **query)
        with _checked_answer(self.url, path):
            return _json_object(answer)

    def _json(self, what: str, **query: str) -> JsonObject:
        answer, _ = self._get(what, **query)
        with _checked_answer(self.url, what):
            return _json_object(answer)

    def _get(self, what: str, **query: str) -> tuple[bytes, http.client.HTTPMessage]:
        return self._ask("GET", f"/replication/v1/{what}", **query)

    def _ask(self, method: str, path: str, body: Any = None, **query: str) -> tuple[bytes, http.client.HTTPMessage]:
        retrying = Retrying(
            retry=retry_if_exception_type(PeerUnavailable),
            wait=wait_random_exponential(multiplier=0.1, max=1.0),
            stop=stop_after_delay(self._wait_seconds),
            reraise=True,
        )
        return retrying(self._ask_once, method, path, body, query)

    def _ask_once(
        self, method: str, path: str, body: Any, query: Mapping[str, str]
    ) -> tuple[bytes, http.client.HTTPMessage]:
        what = path.removeprefix("/replication/v1/") + (f" of {query['topic']}" if "topic" in query else "")
        target = f"{self._base_path}{path}" + (f"?{urlencode(query)}" if query else "")
        content, headers = None, self.shown()
        if body is not None:
            content = json.dumps(body, separators=(",", ":")).encode()
            headers["Content-Type"] = "application/json"
        try:
            self._connection.request(method, target, content, headers)
            response = self._connection.getresponse()
            answer = read_whole(response, ANSWER_BYTES_MAX)
        except http.client.IncompleteRead as error:
            self.close()
            raise AnswerCutOff(
                f"worker at {self.url}: its answer to {what} ended early, after {len(error.partial)} bytes: "
                "the worker was killed, or the connection broke"
            ) from None
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise PeerUnavailable(f"worker at {self.url} cannot be reached: {why_no_answer(error)}") from error
        self.answered_bytes += len(answer)
        if len(answer) > ANSWER_BYTES_MAX:
            self.close()
            raise UnexpectedAnswer(
                f"worker at {self.url}: {what} answered with more than {ANSWER_BYTES_MAX} bytes; run the same "
                "version as the worker"
            )
        if response.status in (http.HTTPStatus.SERVICE_UNAVAILABLE, http.HTTPStatus.TOO_MANY_REQUESTS):
            raise PeerUnavailable(f"worker at {self.url} cannot answer {what} now: {_error_text(answer)}")
        if response.status != http.HTTPStatus.OK:
            raise _refusal(self.url, what, response.status, answer)
        return answer, response.headers


def check_url(url: str) -> str:
    """Return a worker's base URL without its trailing slash. Raises :class:`BadOption` (``url``)."""
    try:
        parts = urlsplit(url)
        sound = parts.scheme in ("http", "https") and parts.hostname and (parts.port is None or parts.port > 0)
    except ValueError:
        sound = False
    if not sound:
        raise BadOption("url", f"{url!r} is not a worker's address (expected http://HOST:PORT)")
    return url.rstrip("/")


class _checked_answer:  # noqa: N801 - reads as a statement
    """Turn errors in the reading of an answer into one that names the worker and the call.

    It is :class:`AnswerCutOff` if the answer was cut off, else :class:`UnexpectedAnswer`.
    """

    def __init__(self, url: str, what: str) -> None:
        self._url, self._what = url, what

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if isinstance(error, StreamCutOff):
            raise AnswerCutOff(f"worker at {self._url}: its answer to {self._what} was cut off: {error}") from error
        if isinstance(error, KeyError):
            problem = f"{error.args[0]} is missing"
        elif isinstance(error, (ValueError, TypeError, AttributeError, InvalidPosition, pa.ArrowException)):
            problem = str(error)
        else:
            return
        raise UnexpectedAnswer(
            f"worker at {self._url}: its answer to {self._what} cannot be read: {problem}; run the same version as the "
            "worker"
        ) from error


def _check_whole(topic: str, after: Position, incarnation: int, page: BlockPage) -> None:
    if page.incarnation not in (None, incarnation):
        raise TopicChanged(topic, "was deleted and made anew since the read was planned")
    if page.trimmed > after:
        raise TopicChanged(topic, f"was trimmed up to {page.trimmed} since the read from after {after} was planned")


def _read_page(answer: bytes) -> Iterator[FetchedBlock]:
    stream = read_stream(answer)
    if not stream.schema.equals(BLOCK_SCHEMA):
        raise ValueError(
            f"the blocks have the columns {stream.schema.names}, and this version reads {BLOCK_SCHEMA.names}"
        )
    for batch in stream.batches:
        ledgers, firsts = batch.column("ledger").to_pylist(), batch.column("first").to_pylist()
        for ledger, first, block in zip(ledgers, firsts, batch.column("block"), strict=True):
            yield FetchedBlock(Position(ledger, first), memoryview(block.as_buffer()))


def _json_object(answer: bytes) -> JsonObject:
    content = json.loads(answer)
    if not isinstance(content, dict):
        raise TypeError("not a JSON object")
    return content


def _refusal(url: str, what: str, status: int, answer: bytes) -> UnexpectedAnswer:
    code = _error_code(answer)
    error: UnexpectedAnswer
    if kind := {PlanGone.__name__: PlanGone, LinkTaken.__name__: LinkTaken}.get(code or ""):
        error = kind(f"worker at {url}: {_error_text(answer)}")
    else:
        error = UnexpectedAnswer(f"worker at {url} refused {what} with status {status}: {_error_text(answer)}")
    error.code, error.status = code, status
    return error


def _error_code(answer: bytes) -> str | None:
    try:
        return str(json.loads(answer)["error"])
    except (ValueError, KeyError, TypeError):
        return None


def _error_text(answer: bytes) -> str:
    """Return the message of an error answer, or the beginning of an answer that is not one of ours."""
    try:
        content = json.loads(answer)
        return f"{content['error']}: {content['message']}"
    except (ValueError, KeyError, TypeError):
        return answer[:200].decode(errors="replace").strip() or "no message"
