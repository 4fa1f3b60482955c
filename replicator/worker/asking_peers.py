"""Questions of a worker to the workers of other clusters: what do they know of its store, and of its messages?

Only the worker at the address that the topology names is asked, with the credentials and certificates that links use.

1. A peer is asked until it answers or its time is over. A refused connection is no answer yet: its worker may be
   starting, too. Where nothing was lost, such as for a store that was used before, one refusal is enough.
2. A peer that is opening its store says so. A worker with a new store waits longer for such a peer.
3. A worker of an earlier version has no route for this question, and may answer that the role may not use it. Its
   failover epoch and its high-water marks answer most of it: it knows no newer store.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus
from math import inf
from typing import Any, Final, TypeVar

import aiohttp
import structlog

from replicator.apache.copies_elsewhere import Copies, Copy, EntryFingerprint
from replicator.apache.errors import BridgeError
from replicator.engine.lineage import StoreLine
from replicator.engine.log.store_tables import HighWater
from replicator.failover.epochs import from_json
from replicator.peering.known_stores import STORE_OF_ROUTE, StoreOf
from replicator.running.connecting import UNREADABLE, why_no_answer
from replicator.running.timeouts import timeout, timeout_at
from replicator.security.asking import worker_session, worker_url
from snapshots.errors import InvalidPosition
from snapshots.position import BEFORE_ALL, Position

RETRY_SECONDS: Final = 0.1
"""Pause before a peer is asked again within its time."""
OPENING_SECONDS_MAX: Final = 60.0
"""A worker with a new store waits so long for a peer that says that it is opening its own."""
ANNOUNCE_SECONDS_MAX: Final = 5.0
MARKS_SECONDS_MAX: Final = 10.0
"""Time for the answer of a peer about all topics of an origin. A topic waits for it before it is read first."""
MARKS_FIRST_SECONDS: Final = 20.0
"""Time in which a peer that never gave such an answer is waited for: its worker may be starting, too."""
MARKS_SOON_SECONDS: Final = 2.0
"""Pause before peers that gave no such answer are asked again, within that time."""
MARKS_LATER_SECONDS: Final = 30.0
"""Pause before peers that gave no such answer are asked again, after that time."""
MARKS_AGAIN_SECONDS: Final = 300.0
"""Pause before peers are asked again if each of them gave such an answer before."""
MARKS_AT_ONCE_MAX: Final = 8
"""Limit of topics that one peer is asked for at once."""
MARKS_KEPT_SECONDS: Final = 3600.0
"""Time after which a peer is asked again, while somebody wants to know."""
REASON_CHARS_MAX: Final = 300
log = structlog.get_logger(__name__)
_MARKS: Final = "/replication/v1/high-water"
_Read = TypeVar("_Read")
_REFUSED: Final = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)


class NoAnswer(Exception):
    """Error for a peer that did not answer. ``final`` says that asking again at once does not help; ``alive`` that its
    worker is opening its store."""

    def __init__(self, reason: str, *, final: bool = False, alive: bool = False) -> None:
        super().__init__(reason[:REASON_CHARS_MAX])
        self.final = final
        self.alive = alive


async def ask_all(
    peers: Mapping[str, str], own: str, *, seconds: float, new: bool, counted: bool
) -> tuple[dict[str, StoreOf], dict[str, str]]:
    """Ask all ``peers``, which are addresses by cluster, at once about the cluster ``own``.

    Return their answers, and for each peer without an answer the reason. ``new`` says that the store is new.
    """
    answers: dict[str, StoreOf] = {}
    silent: dict[str, str] = {}

    async def ask_one(session: aiohttp.ClientSession, name: str) -> None:
        try:
            answers[name] = await _ask_until(session, name, peers[name], own, seconds, new=new, counted=counted)
        except NoAnswer as error:
            silent[name] = str(error)

    async with worker_session() as session:
        await asyncio.gather(*(ask_one(session, name) for name in peers))
    return answers, silent


async def _ask_until(
    session: aiohttp.ClientSession, name: str, address: str, own: str, seconds: float, *, new: bool, counted: bool
) -> StoreOf:
    clock = asyncio.get_running_loop().time
    began = clock()
    until = began + seconds
    while True:
        try:
            return await _ask(session, name, address, own, until, counted=counted)
        except NoAnswer as error:
            if error.alive and new:
                until = began + max(seconds, OPENING_SECONDS_MAX)
            if error.final or (not new and not error.alive) or clock() + RETRY_SECONDS >= until:
                raise
        await asyncio.sleep(RETRY_SECONDS)


async def _ask(
    session: aiohttp.ClientSession, name: str, address: str, own: str, until: float, *, counted: bool
) -> StoreOf:
    """Ask one peer once. Raises :class:`NoAnswer`."""
    query = {"cluster": own, **({"messages": "true"} if counted else {})}
    try:
        async with timeout_at(until):
            status, body = await _get(session, address, STORE_OF_ROUTE, query)
            if status in (HTTPStatus.NOT_FOUND, HTTPStatus.FORBIDDEN):
                told = await _ask_old_version(session, address, own, counted=counted)
            elif status == HTTPStatus.SERVICE_UNAVAILABLE:
                raise NoAnswer(f"the worker at {address} is not ready: {_message(body)}", alive=True)
            elif status != HTTPStatus.OK:
                raise NoAnswer(
                    f"the worker at {address} answers with an error, status {status}: {_message(body)}",
                    final=status in _REFUSED,
                )
            else:
                told = StoreOf.of_json(body)
                from_json(dict(told.record))
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        raise NoAnswer(f"the worker at {address} cannot be asked: {why_no_answer(error)}") from None
    except UNREADABLE as error:
        raise NoAnswer(
            f"the worker at {address}: its answer cannot be read: {error!r:.100}; run the same version everywhere"
        ) from None
    if told.cluster != name:
        raise NoAnswer(
            f"{address} is cluster {told.cluster[:80]!r}, and the topology says {name!r}: correct the address in the "
            "topology",
            final=True,
        )
    return told


async def _ask_old_version(session: aiohttp.ClientSession, address: str, own: str, *, counted: bool) -> StoreOf:
    status, state = await _get(session, address, "/failover/v1/state", {})
    if status != HTTPStatus.OK:
        raise NoAnswer(
            f"the worker at {address} answers with an error, status {status}: {_message(state)}",
            final=status in _REFUSED,
        )
    from_json(state["record"])
    topics: list[Mapping[str, Any]] = []
    if counted:
        status, marks = await _get(session, address, _MARKS, {"origin": own})
        if status != HTTPStatus.OK:
            raise NoAnswer(f"the worker at {address} answers with an error, status {status}: {_message(marks)}")
        topics = [row for row in marks["topics"].values() if not row.get("deleted")]
    messages = sum(row.get("messages") != str(BEFORE_ALL) for row in topics)
    return StoreOf(str(state["cluster"]), dict(state["record"]), None, len(topics), messages)


async def _get(session: aiohttp.ClientSession, address: str, path: str, query: Mapping[str, str]) -> tuple[int, Any]:
    async with session.get(f"{worker_url(address)}{path}", params=query) as response:
        if response.status == HTTPStatus.OK:
            return response.status, await response.json()
        try:
            return response.status, await response.json()
        except (aiohttp.ClientError, ValueError):
            return response.status, {}


async def list_peer_topics(peers: Mapping[str, str], *, seconds: float) -> tuple[set[str], dict[str, str]]:
    """Ask all ``peers`` at once for the names of their topics; wait for those that are starting, too.

    Return all names, and for each peer without an answer the reason.
    """
    names: set[str] = set()
    silent: dict[str, str] = {}
    until = asyncio.get_running_loop().time() + seconds

    async def ask_one(session: aiohttp.ClientSession, name: str) -> None:
        status = HTTPStatus.SERVICE_UNAVAILABLE.value
        try:
            async with timeout_at(until):
                while status == HTTPStatus.SERVICE_UNAVAILABLE:
                    status, body = await _get(session, peers[name], "/replication/v1/topics", {})
                    if status == HTTPStatus.OK:
                        names.update([str(row["name"]) for row in body["topics"]])
                        silent.pop(name, None)
                        return
                    silent[name] = f"status {status}: {_message(body)}"
                    await asyncio.sleep(RETRY_SECONDS)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            silent.setdefault(name, why_no_answer(error))
        except UNREADABLE as error:
            silent[name] = f"its answer cannot be read: {error!r:.100}"

    async with worker_session() as session:
        await asyncio.gather(*(ask_one(session, name) for name in peers))
    return names, silent


class PeerHighWaters:
    """Positions up to which the clusters ``peers``, addresses by name, have the topics of ``origin``.

    They are asked for all topics together. Each first answer is kept with the store: from then on, a peer gets messages
    of ``origin`` from this store only, so its first answer counts even while it is silent. A peer that has a topic is
    asked for its newest message there, and has to answer that each time.
    """

    def __init__(
        self,
        peers: Mapping[str, str],
        origin: str,
        kept: Mapping[str, Any] | None = None,
        keep: Callable[[Mapping[str, Any]], Awaitable[None]] | None = None,
        *,
        restore_id: str = "",
        first_seconds: float = MARKS_FIRST_SECONDS,
    ) -> None:
        """``kept`` has the first answers, and ``keep`` stores them. They do not count if they were kept under another
        ``restore_id``, the id of the restore that made the store: since then, peers may have got newer messages. Peers
        without a first answer are waited for up to ``first_seconds``."""
        self._peers = peers
        self._origin = origin
        self._restore_id = restore_id
        same = kept is not None and kept.get("restore_id") == restore_id
        self._kept: dict[str, Any] = dict(kept["answers"]) if kept is not None and same else {}
        """First answers that are stored, by cluster."""
        self._keep = keep
        self._first_seconds = first_seconds
        self._answers = {name: marks_of(rows) for name, rows in self._kept.items() if name in peers}
        """By cluster, what it has of each topic."""
        self._answered_at: dict[str, float] = {}
        self._began: float | None = None
        self._asked_at = 0.0
        self._told: set[str] = set()
        """Peers whose silence was logged."""
        self._lock = asyncio.Lock()
        self._turns = {name: asyncio.Semaphore(MARKS_AT_ONCE_MAX) for name in peers}
        self._session: aiohttp.ClientSession | None = None
        """Session of the questions about single topics. It is there while there are such questions."""
        self._asking = 0
        """Number of these questions."""

    async def of(self, topic: str) -> Copies:
        """Return the positions in ``topic`` at the peers, and the peers that are silent.

        Raises :class:`BridgeError` if a peer that has the topic does not say which message is its newest.
        """
        clock = asyncio.get_running_loop().time
        if not self._lock.locked() or self._began is None or clock() - self._began < self._first_seconds:
            async with self._lock:
                await self._ask_those_due(clock)
        # Else another topic asks the peers again: what is known counts, so that no topic waits for a silent peer.
        silent = tuple(sorted(self._peers.keys() - self._answers.keys()))
        waits = bool(silent) and (self._began is None or clock() - self._began < self._first_seconds)
        having = [name for name, marks in self._answers.items() if topic in marks]
        known = list(await asyncio.gather(*(self._copy(name, topic) for name in having)))
        return Copies(tuple(sorted(known, key=lambda each: each.mark, reverse=True)), silent, waits)

    async def _ask_those_due(self, clock: Callable[[], float]) -> None:
        """Ask the peers whose answer is old or missing, and keep first answers."""
        now = clock()
        due = [name for name in self._peers if now - self._answered_at.get(name, -inf) >= MARKS_KEPT_SECONDS]
        if self._began is None:
            self._began, self._asked_at = now, -inf
        if due and now - self._asked_at >= self._pause_seconds(now - self._began):
            async with worker_session() as session:
                await asyncio.gather(*(self._ask(session, name) for name in due))
            self._asked_at = clock()
        if self._keep is not None and (new := self._answers.keys() - self._kept.keys()):
            kept = self._kept | {name: _shown(self._answers[name]) for name in new}
            await self._keep({"restore_id": self._restore_id, "answers": kept})
            self._kept = kept

    def _pause_seconds(self, waited_seconds: float) -> float:
        """Return the pause before silent peers are asked again."""
        if self._peers.keys() <= self._answers.keys():
            return MARKS_AGAIN_SECONDS
        return MARKS_SOON_SECONDS if waited_seconds < self._first_seconds else MARKS_LATER_SECONDS

    async def _copy(self, name: str, topic: str) -> Copy:
        """Return what a peer has of ``topic``, with its newest message.

        A peer of an earlier version does not tell that message. Raises :class:`BridgeError` if there is no answer.
        """

        def read(rows: Mapping[str, Any]) -> Copy:
            row = rows.get(topic)
            return Copy(self._answers[name][topic], untold=True) if row is None else _copy_of(row)

        try:
            async with self._turns[name], self._shared_session() as session:
                return await self._rows(session, name, read, topic=topic, newest="true")
        except NoAnswer as error:
            raise BridgeError(
                f"{topic}: this worker's store has nothing of the topic, and cluster {name} has messages of it, but "
                f"does not say which is the newest ({error}). The brokers keep all messages meanwhile. Start the "
                f"worker of {name}, and reading goes on by itself. If the cluster is gone, take it out of the topology "
                "and restart this worker"
            ) from None

    @asynccontextmanager
    async def _shared_session(self) -> AsyncIterator[aiohttp.ClientSession]:
        """Give the session that all questions of the moment share. The last one closes it."""
        session = self._session = self._session or worker_session()
        self._asking += 1
        try:
            yield session
        finally:
            self._asking -= 1
            if not self._asking:
                self._session = None
                await session.close()

    async def _ask(self, session: aiohttp.ClientSession, name: str) -> None:
        try:
            self._answers[name] = await self._rows(session, name, marks_of)
            self._answered_at[name] = asyncio.get_running_loop().time()
        except NoAnswer as error:
            if name not in self._told:
                self._told.add(name)
                log.warning("a cluster does not say what it has", asked=name, origin=self._origin, reason=str(error))

    async def _rows(
        self, session: aiohttp.ClientSession, name: str, read: Callable[[Mapping[str, Any]], _Read], **query: str
    ) -> _Read:
        """Return the result of ``read`` for a peer's rows by topic. Raise :class:`NoAnswer` if there is none."""
        try:
            async with timeout(MARKS_SECONDS_MAX):
                status, body = await _get(session, self._peers[name], _MARKS, {"origin": self._origin, **query})
            if status == HTTPStatus.OK:
                return read(body["topics"])
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise NoAnswer(why_no_answer(error)) from None
        except (*UNREADABLE, InvalidPosition) as error:
            raise NoAnswer(
                f"the worker's answer cannot be read: {error!r:.100}; run the same version everywhere"
            ) from None
        raise NoAnswer(f"the worker answers with an error, status {status}: {_message(body)}")


def marks_of(rows: Mapping[str, Any]) -> dict[str, HighWater]:
    """Return the marks in an answer about one origin, by topic."""
    return {topic: _mark_of(row) for topic, row in rows.items()}


def _copy_of(row: Mapping[str, Any]) -> Copy:
    """Return what a peer has of one topic. Only a row of an earlier version has no ``newest``."""
    told = row.get("newest")
    content = None if told is None else EntryFingerprint(int(told["publish_time_ms"]), int(told["sequence_id"]))
    return Copy(_mark_of(row), Position.parse(row["messages"]), content, "newest" in row and told is None)


def _mark_of(row: Mapping[str, Any]) -> HighWater:
    return HighWater(int(row["incarnation"]), Position.parse(row["position"]))


def _shown(marks: Mapping[str, HighWater]) -> dict[str, Any]:
    return {name: {"incarnation": mark.incarnation, "position": str(mark.position)} for name, mark in marks.items()}


def _message(body: Any) -> str:
    return str(body.get("message") or "it gives no reason") if isinstance(body, dict) else "it gives no reason"


async def announce_later(address: str, own: str, line: StoreLine) -> None:
    """Announce the store ``line`` of the cluster ``own`` to a peer that knows an earlier one. A peer that does not take
    it is ignored: the caller asks it again later."""
    with suppress(aiohttp.ClientError, OSError, TimeoutError):
        async with timeout(ANNOUNCE_SECONDS_MAX), worker_session() as session:
            url = f"{worker_url(address)}{STORE_OF_ROUTE}"
            async with session.post(url, params={"cluster": own}, json=line.as_json()) as response:
                await response.read()
