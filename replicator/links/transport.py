"""Connection of a link to its destination: one long-lived connection with frames one way and answers the other.

It begins as an HTTP request, and is upgraded (:mod:`replicator.links.frame_streams`); with an end of the version before
the frames are the request's body (:mod:`replicator.links.posted_frames`). Frames are those of
:mod:`replicator.engine.log.link_frame`. For each, in order, the destination answers ``length u32 | JSON``:
``{"extents": n, "refused": {topic: {"code", "message"}}}``, or ``{"error": code, "message": text}`` after which it ends
the connection. One connection, because it keeps the order of the frames without a handshake for each, and lets the
window cover the round trip. Both sides answer each other within :data:`SILENCE_SECONDS_MAX`, or the connection counts
as lost (half-open peers). While a frame takes longer on a slow network, the destination says that more of it has come.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final

import aiohttp

from replicator.engine.log.arrow import Outgoing, encode_append
from replicator.engine.log.compression import Buffer
from replicator.engine.log.frame_rows import encode_rows
from replicator.engine.log.link_frame import (
    ANSWER_BYTES_MAX,
    PROTOCOL_VERSION,
    RECEIVING,
    ROWS_FROM,
    UPGRADED_FROM,
    PackedFrame,
    agreed_version,
    pack_frame,
    version_refused,
)
from replicator.engine.log.store_tables import HighWater
from replicator.links.errors import PeerRefused, PeerUnavailable, WrongPeer, WrongVersion
from replicator.links.frame_streams import FrameStream, UpgradedStream
from replicator.links.gaps import Mark
from replicator.links.posted_frames import PostedStream
from replicator.peering.lineage import LINEAGE_ROUTE, LineageReply, LineageReport
from replicator.peering.lives import DELETE_COPY, EARLIER_LIVES, HEARS, KEEP_BOTH, MADE, NO_SUCH_ROUTE, OriginMarks
from replicator.peering.partitions import PARTITIONS_ROUTE, PartitionsReply, PartitionsReport
from replicator.peering.runs import Run, RunAnnouncement, RunAnswer
from replicator.running.connecting import why_no_answer
from replicator.running.json_by_steps import loads_aside
from replicator.running.timeouts import timeout
from replicator.security.asking import worker_session, worker_url
from snapshots.position import Position

CONNECT_SECONDS_MAX: Final = 5.0
SILENCE_SECONDS_MAX: Final = 30.0
READ_BUFFER_BYTES: Final = 4 * 1024 * 1024

LINEAGE_PATH: Final = LINEAGE_ROUTE.rpartition("/")[2]
PARTITIONS_PATH: Final = PARTITIONS_ROUTE.rpartition("/")[2]

NOT_TOLD: Final = frozenset({"NotFound", "MethodNotAllowed", "NotPermitted", "NotAllowedError"})
"""Error codes of a destination that takes no announcements of runs. Its version is earlier, or the address is wrong:
the link's next request shows which."""
NO_TOPIC: Final = "none"
"""Topic name to ask for if the answer should be short. A topic of that name does no harm."""
COMPRESS_ASIDE_BYTES: Final = 64 * 1024
"""Size above which a frame is compressed on a thread; 4 MiB take some ten milliseconds."""

MARKS_BYTES_MAX: Final = 1024 * 1024 * 1024
"""Limit of an answer with the marks of all topics; each of some million topics may have a few hundred bytes."""
MARKS_AT_ONCE: Final = 100
"""Topics whose marks are read on the event loop. Those of more topics are read on a thread."""


@dataclass(frozen=True, slots=True)
class Reply:
    """The destination's answer to one frame. ``refused`` gives code and message by topic."""

    extents: int
    refused: dict[str, tuple[str, str]]


class HttpTransport:
    """Connection of a link to its destination. Use it as an async context manager; make a new one after an error.

    ``stream`` names one of several streams that a link has at once, such as the stream of one Spark task. ``store`` is
    the id of the source's store; each request and the stream carry it. It is "" if the caller does not know it.
    ``run_id`` names the present start of the source's worker; each request and the stream carry it. Methods raise
    :class:`PeerUnavailable` if the destination does not answer, :class:`WrongPeer` if another cluster answers, and
    :class:`PeerRefused` if the destination refuses.
    """

    def __init__(
        self,
        source: str,
        destination: str,
        address: str,
        *,
        name: str = "",
        compression: str = "none",
        stream: str = "",
        store: str = "",
        run_id: str = "",
    ) -> None:
        self.run_id = run_id
        """Id of the run of the source's worker; "" if the worker announces none."""
        self._source = source
        self._store = store
        self._stream = stream
        self._name = name
        self._compression = compression
        self._destination = destination
        self._version: int | None = None
        """Protocol version that both ends speak; None until the destination was asked."""
        self._base = f"{worker_url(address)}/replication/v1"
        self._session: aiohttp.ClientSession | None = None
        self._frames: FrameStream | None = None
        self.restore_id = ""
        """Id of the destination's last restore from a backup, from its last answer about its marks; "" if none."""
        self.store_id = ""
        """Id of the destination's store, from its last answer about its marks; "" if its version is earlier."""
        self.deleted_there: list[dict[str, Any]] = []
        """Topics that the destination deleted and does not have, in JSON, from its last answer about its marks."""
        self.made_again: list[str] = []
        """Topics that the destination deleted and made again, from its last answer about its marks."""
        self.at_end = False
        """Whether the destination has ended the connection, or it broke; :meth:`receive` then says why."""

    async def __aenter__(self) -> HttpTransport:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS_MAX)
        self._session = worker_session(timeout=timeout, read_bufsize=READ_BUFFER_BYTES)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._frames is not None:
            self._frames.close()
        if self._session is not None:
            await self._session.close()

    async def high_water(self, origins: Collection[str], topics: Sequence[str] = ()) -> dict[str, dict[str, Mark]]:
        """Return the marks of the destination, by topic and origin. Without ``topics``, all its topics are included."""
        asked = [("origins", ",".join(sorted(origins))), ("origin", self._source), ("protocol", str(PROTOCOL_VERSION))]
        asked += [("store", self._store)] if self._store else []
        asked += [("topic", topic) for topic in topics]
        answer = await self._ask("GET", "high-water", asked, bytes_max=MARKS_BYTES_MAX)
        if answer.get("cluster") != self._destination:
            raise WrongPeer(
                f"{self._base} is cluster {answer.get('cluster')!r}, the topology says {self._destination!r}: "
                "correct the cluster's address in the topology"
            )
        theirs = answer.get("protocol", 1)
        if agreed_version(theirs) != theirs:
            raise WrongVersion(version_refused(theirs, here=self._source, there=self._destination))
        self._version = theirs
        self.restore_id = str(answer.get("restored") or "")
        self.store_id = str(answer.get("store") or "")
        self.deleted_there = list(answer.get("deleted", ()))
        self.made_again = list(answer.get("made_again", ()))
        rows = answer["topics"]
        return _marks(rows) if len(rows) <= MARKS_AT_ONCE else await asyncio.to_thread(_marks, rows)

    async def delete_copy(self, topic: str, here: Mapping[str, Mark]) -> None:
        """Have the destination delete its copy of ``topic``, so that it can be copied anew; ``here`` is what the source
        has of it. Raises :class:`PeerRefused` where something would be lost."""
        await self._ask_about_lives(DELETE_COPY, topic, here)

    async def keep_both(self, topic: str, lives: Mapping[str, Mark]) -> None:
        """Let the destination keep its earlier lives of ``topic`` as closed history, and accept the later ``lives``.

        Raises :class:`PeerRefused` if the destination refuses it.
        """
        await self._ask_about_lives(KEEP_BOTH, topic, lives)

    async def lacking(self, topic: str, earlier: Mapping[str, Mark], *, note: bool = False) -> set[str]:
        """Return the origins whose newest message of the ``earlier`` life of ``topic`` the destination lacks.

        With ``note``, the destination first records these messages as left out. Raises :class:`PeerRefused` if it
        refuses.
        """
        answer = await self._ask_about_lives(EARLIER_LIVES, topic, earlier, *([("note", "true")] if note else ()))
        return set(answer["lacking"])

    async def _ask_about_lives(
        self, what: str, topic: str, marks: Mapping[str, Mark], *more: tuple[str, str]
    ) -> dict[str, Any]:
        said = OriginMarks({origin: HighWater(mark.incarnation, mark.position) for origin, mark in marks.items()})
        try:
            return await self._ask("POST", what, [("from", self._source), ("topic", topic), *more], said.as_json())
        except PeerRefused as error:
            if error.code != NO_SUCH_ROUTE:
                raise
            older = f"the worker of {self._destination} is of a version that cannot do this: upgrade it"
            raise PeerRefused(error.code, f"{older} (docs/upgrade.md)") from None

    async def announce_run(self, run: Run, question: str = "") -> RunAnswer | None:
        """Announce the run of the source's worker, with the question that this answers, if any.

        Return None if the destination knows no runs, as a destination of an earlier version does.
        """
        try:
            answer = await self._ask("POST", "runs", [("from", self._source)], RunAnnouncement(run, question).as_json())
        except PeerRefused as error:
            if error.code in NOT_TOLD:
                return None
            raise
        try:
            return RunAnswer.of_json(answer)
        except (KeyError, TypeError, ValueError) as error:
            raise PeerUnavailable(
                f"the answer of {self._base}/runs cannot be read: {error!r:.100}; run the same version at both ends"
            ) from None

    async def question(self) -> str:
        """Wait until the destination asks whether the run is alive, and return its question."""
        assert self._frames is not None
        return await self._frames.question()

    async def made(self) -> str:
        """Wait until the destination makes a topic, and return its name. It may be one that it deleted before."""
        assert self._frames is not None
        return await self._frames.made()

    async def announce_partitions(self, told: PartitionsReport) -> PartitionsReply:
        """Tell the destination how many partitions topics have here. Return how many they have there then."""
        answer = await self._ask("POST", PARTITIONS_PATH, [("from", self._source)], told.as_json())
        return PartitionsReply.of_json(answer)

    async def announce_schemas(self, topics: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, tuple[str, str]]:
        """Tell the destination which schemas topics have here. Return code and message for each refused topic."""
        answer = await self._ask("POST", "schemas", [("from", self._source)], {"topics": topics})
        return {topic: (row["code"], row["message"]) for topic, row in answer["refused"].items()}

    async def report_lineage(self, told: LineageReport) -> LineageReply:
        """Report which stores wrote copies, and which topics were deleted on purpose."""
        return LineageReply.of_json(await self._ask("POST", LINEAGE_PATH, [("from", self._source)], told.as_json()))

    async def open(self) -> None:
        """Start the stream of frames with a sign of life. Return when the destination has answered it."""
        assert self._session is not None
        if self._version is None:  # who carries for a link has not asked what is there
            await self.high_water((self._source,), (NO_TOPIC,))
        assert self._version is not None
        first = pack_frame(encode_append(()), "none")
        params = {"from": self._source, "name": self._name, "protocol": str(self._version), "stream": self._stream}
        params[RECEIVING] = "true"
        if self._store:
            params["store"] = self._store
        params |= {"run": self.run_id} if self.run_id else {}
        params |= {} if self._stream else {HEARS: MADE}  # a task of Spark could not act on it
        url = f"{self._base}/append"
        try:
            async with timeout(SILENCE_SECONDS_MAX):
                if self._version >= UPGRADED_FROM:
                    self._frames = await UpgradedStream.connect(url, params, CONNECT_SECONDS_MAX)
                    await self._frames.send(first)
                else:
                    posted = PostedStream()
                    await posted.begin(self._session, url, params, first)
                    self._frames = posted
        except (aiohttp.ClientError, asyncio.IncompleteReadError, OSError, TimeoutError) as error:
            raise PeerUnavailable(f"the link cannot connect to {self._base}: {why_no_answer(error)}") from None
        await self.receive()

    def encode(self, blocks: Sequence[Outgoing], notes: bytes = b"") -> list[Buffer]:
        """Return the content of a frame, in the form that both ends know. Without blocks it is a sign of life.

        ``notes`` say which messages are traced.
        """
        assert self._version is not None
        return encode_rows(blocks, notes) if self._version >= ROWS_FROM else encode_append(blocks, notes)

    async def pack(self, stream: Sequence[Buffer]) -> PackedFrame:
        """Return the frame to send, compressed if the link compresses. ``stream`` is in pieces."""
        if self._compression == "none" or sum(map(len, stream)) < COMPRESS_ASIDE_BYTES:
            return pack_frame(stream, self._compression)
        return await asyncio.to_thread(pack_frame, stream, self._compression)

    async def send(self, packed: PackedFrame) -> None:
        """Hand a packed frame to the connection. Wait while the frame before it is still on its way out."""
        assert self._frames is not None
        try:
            await self._frames.send(packed)
        except OSError as error:
            raise PeerUnavailable(
                f"the connection of the link to {self._base} broke: {error}; it connects again"
            ) from None

    async def receive(self) -> Reply:
        """Return the answer to the oldest frame that is not answered yet."""
        assert self._frames is not None
        try:
            answer: Any = {RECEIVING: True}
            while RECEIVING in answer:
                async with timeout(SILENCE_SECONDS_MAX):
                    answer = await self._frames.receive()
        except (aiohttp.ClientError, asyncio.IncompleteReadError, OSError, TimeoutError, ValueError) as error:
            raise PeerUnavailable(
                f"the connection of the link to {self._base} broke: {why_no_answer(error, '')}; it connects again"
            ) from None
        if "error" in answer:
            raise PeerRefused(answer["error"], answer["message"])
        refused = {topic: (row["code"], row["message"]) for topic, row in answer["refused"].items()}
        return Reply(answer["extents"], refused)

    async def ended(self) -> None:
        """Wait until nothing more can be received than is here already. Then set :attr:`at_end`."""
        assert self._frames is not None
        await self._frames.ended()
        self.at_end = True

    async def _ask(
        self,
        method: str,
        path: str,
        params: Sequence[tuple[str, str]],
        body: Mapping[str, Any] | None = None,
        bytes_max: int = ANSWER_BYTES_MAX,
    ) -> dict[str, Any]:
        assert self._session is not None
        if self.run_id:
            params = [*params, ("run", self.run_id)]
        try:
            async with (
                timeout(SILENCE_SECONDS_MAX) as limit,
                self._session.request(method, f"{self._base}/{path}", params=params, json=body) as response,
            ):
                limit.lift()  # marks of many topics may take longer on a slow network
                return await self._json(response, bytes_max)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise PeerUnavailable(f"the link cannot ask {self._base}: {why_no_answer(error)}") from None

    async def _json(self, response: aiohttp.ClientResponse, bytes_max: int) -> dict[str, Any]:
        try:
            answer: dict[str, Any] = await loads_aside(await _read_in_pieces(response, bytes_max))
        except (ValueError, RecursionError) as error:
            raise PeerUnavailable(
                f"{self._base} answered {response.status}, not in JSON: {error}; see that this is the address of a "
                "worker, and not of a proxy that answers by itself"
            ) from None
        if response.status != 200:
            raise PeerRefused(str(answer.get("error", response.status)), str(answer.get("message", "")))
        return answer


async def _read_in_pieces(response: aiohttp.ClientResponse, bytes_max: int) -> bytes:
    """Return the body of ``response``, however slowly it comes.

    Raise :class:`TimeoutError` if nothing comes for :data:`SILENCE_SECONDS_MAX`, and :class:`PeerUnavailable` if the
    body has more than ``bytes_max``.
    """
    pieces: list[bytes] = []
    size_bytes = 0
    while not response.content.at_eof():
        async with timeout(SILENCE_SECONDS_MAX):
            pieces.append(await response.content.readany())
        size_bytes += len(pieces[-1])
        if size_bytes > bytes_max:
            raise PeerUnavailable(
                f"the answer of {response.url.with_query(None)} is over the limit of {bytes_max} bytes: see that this "
                "is the address of a worker, and run the same version at both ends"
            )
    return b"".join(pieces)


def _marks(rows: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Mark]]:
    return {topic: {origin: _mark(row) for origin, row in marks.items()} for topic, marks in rows.items()}


def _mark(row: Mapping[str, Any]) -> Mark:
    """Return the mark in one origin's row. Workers of earlier versions report only incarnation and position."""
    messages, held = row.get("messages"), row.get("held")
    return Mark(
        row["incarnation"],
        Position.parse(row["position"]),
        None if messages is None else Position.parse(messages),
        None if held is None else int(held),
        store=row.get("store"),
        deleted=bool(row.get("deleted", False)),
    )
