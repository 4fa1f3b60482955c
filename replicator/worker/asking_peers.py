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
from collections.abc import Mapping
from contextlib import suppress
from http import HTTPStatus
from typing import Any, Final

import aiohttp
import structlog

from replicator.engine.lineage import StoreLine
from replicator.engine.log.store_tables import HighWater
from replicator.failover.epochs import from_json
from replicator.peering.known_stores import STORE_OF_ROUTE, StoreOf
from replicator.running.connecting import UNREADABLE, why_no_answer
from replicator.running.timeouts import timeout, timeout_at
from replicator.security.asking import worker_session, worker_url
from snapshots.position import BEFORE_ALL, Position

RETRY_SECONDS: Final = 0.1
"""Pause before a peer is asked again within its time."""
OPENING_SECONDS_MAX: Final = 60.0
"""A worker with a new store waits so long for a peer that says that it is opening its own."""
ANNOUNCE_SECONDS_MAX: Final = 5.0
MARKS_SECONDS_MAX: Final = 10.0
"""Time for the answer of a peer about all topics of an origin. A topic waits for it before it is read first."""
MARKS_AGAIN_SECONDS: Final = 300.0
"""Pause before peers that gave no such answer are asked again, while somebody wants to know."""
MARKS_KEPT_SECONDS: Final = 3600.0
"""Time for which such an answer counts: a topic may be deleted and made anew later."""
REASON_CHARS_MAX: Final = 300
log = structlog.get_logger(__name__)
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
                told = await _ask_earlier_version(session, address, own, counted=counted)
            elif status == HTTPStatus.SERVICE_UNAVAILABLE:
                raise NoAnswer(f"{address}: {_message(body)}", alive=True)
            elif status != HTTPStatus.OK:
                raise NoAnswer(f"{address}: status {status}: {_message(body)}", final=status in _REFUSED)
            else:
                told = StoreOf.of_json(body)
                from_json(dict(told.record))
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        raise NoAnswer(f"{address}: {why_no_answer(error)}") from None
    except UNREADABLE as error:
        raise NoAnswer(f"{address}: its answer cannot be read: {error!r:.100}") from None
    if told.cluster != name:
        raise NoAnswer(f"{address} is cluster {told.cluster[:80]!r}, and the topology says {name!r}", final=True)
    return told


async def _ask_earlier_version(session: aiohttp.ClientSession, address: str, own: str, *, counted: bool) -> StoreOf:
    status, state = await _get(session, address, "/failover/v1/state", {})
    if status != HTTPStatus.OK:
        raise NoAnswer(f"{address}: status {status}: {_message(state)}", final=status in _REFUSED)
    from_json(state["record"])
    topics: list[Mapping[str, Any]] = []
    if counted:
        status, marks = await _get(session, address, "/replication/v1/high-water", {"origin": own})
        if status != HTTPStatus.OK:
            raise NoAnswer(f"{address}: status {status}: {_message(marks)}")
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


async def topics_there(peers: Mapping[str, str], *, seconds: float) -> tuple[set[str], dict[str, str]]:
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


class MarksElsewhere:
    """Positions up to which the clusters ``peers``, addresses by name, have the topics of ``origin``.

    They are asked once, for all topics together. A peer that does not answer is asked again later.
    """

    def __init__(self, peers: Mapping[str, str], origin: str) -> None:
        self._peers = peers
        self._origin = origin
        self._answers: dict[str, tuple[float, dict[str, HighWater]]] = {}
        """For each cluster, the time of its answer, and what it has of each topic."""
        self._asked_at: float | None = None
        self._lock = asyncio.Lock()

    async def of(self, topic: str) -> list[HighWater]:
        """Return the positions in ``topic`` at the peers that answered and have something of it."""
        async with self._lock:
            now = asyncio.get_running_loop().time()
            self._answers = {
                name: (at, marks) for name, (at, marks) in self._answers.items() if now - at < MARKS_KEPT_SECONDS
            }
            missing = {name: address for name, address in self._peers.items() if name not in self._answers}
            if missing and (self._asked_at is None or now - self._asked_at >= MARKS_AGAIN_SECONDS):
                async with worker_session() as session:
                    await asyncio.gather(*(self._ask(session, name) for name in missing))
                self._asked_at = asyncio.get_running_loop().time()
        return [marks[topic] for _, marks in self._answers.values() if topic in marks]

    async def _ask(self, session: aiohttp.ClientSession, name: str) -> None:
        query = {"origin": self._origin}
        try:
            async with timeout(MARKS_SECONDS_MAX):
                status, body = await _get(session, self._peers[name], "/replication/v1/high-water", query)
            if status != HTTPStatus.OK:
                reason = f"status {status}: {_message(body)}"
            else:
                marks = {
                    topic: HighWater(int(row["incarnation"]), Position.parse(row["position"]))
                    for topic, row in body["topics"].items()
                }
                self._answers[name] = asyncio.get_running_loop().time(), marks
                return
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            reason = why_no_answer(error)
        except UNREADABLE as error:
            reason = f"its answer cannot be read: {error!r:.100}"
        log.warning("a cluster does not say what it has", asked=name, origin=self._origin, reason=reason)


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
