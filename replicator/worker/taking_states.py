"""Taking the states of replicated subscriptions from other clusters, for a worker whose store is new or was restored.

Links bring these states too, but only behind all messages that they copy. Consumers that connect before would get
messages again that were acknowledged.

Invariants (DESIGN §3): 5 and 6, a state is merged as if a link had brought it; 8, a cluster that is away delays only
what is kept for it; 11, so many questions to one cluster are under way.

1. Before clients are served, each other cluster is asked, for :data:`FIRST_SECONDS` at most.
2. A topic that is not here is made if a link brings messages for it. Messages that come later find the state.
3. A cluster that does not answer is asked again. Until it has told its states, messages are kept
   (:mod:`replicator.engine.upkeep.waiting_states`).
4. A topic whose states cannot be taken is named, and holds up no other one. Once the others are taken, only its log is
   held. A topic that may not be made here has no log, and is not awaited. If the store here takes nothing, no more
   topics are asked about until the next round.

The row :data:`ROW` in the table ``meta`` says for which store this began, when, and who has told. It ends with the last
one, so that a restart asks nobody.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import aiohttp
import structlog

from replicator.engine.engine import Engine
from replicator.engine.errors import EngineError, NotAllowedError, StoreFull
from replicator.engine.log.link_frame import PROTOCOL_VERSION
from replicator.engine.restored import restored_mark
from replicator.engine.upkeep.waiting_states import HOLDER, Kept, WaitingStates
from replicator.peering.comparing import STATES_ROUTE, TOPICS_MAX
from replicator.running.connecting import UNREADABLE, why_no_answer
from replicator.running.timeouts import timeout
from replicator.security.asking import worker_session, worker_url
from replicator.sync.service import SubscriptionSync
from snapshots.ack_vector import from_data
from snapshots.actions import ApplyUpdate
from snapshots.errors import InvalidPosition
from snapshots.position import BEFORE_ALL, Position
from snapshots.starts import from_data as starts_of

ROW: Final = "waits for states"
FIRST_SECONDS: Final = 5.0
"""Longest time for which a start waits for other clusters. They answer in it unless they have thousands of topics."""
FIRST_PAUSE_SECONDS: Final = 0.1
"""Pause before a cluster that is starting too is asked again."""
RETRY_SECONDS: Final = 2.0
LOOK_SECONDS: Final = 1.0
ASK_SECONDS_MAX: Final = 30.0
AT_ONCE_MAX: Final = 16
"""Questions to one cluster that are under way."""
NAMED_MAX: Final = 1_000
_UNREADABLE: Final = (*UNREADABLE, InvalidPosition)

log = structlog.get_logger(__name__)


class StatesUnavailable(Exception):
    """A cluster does not answer, or its answer cannot be read."""


class PeerAway(StatesUnavailable):
    """A cluster does not answer."""


class PeerStarts(PeerAway):
    """A cluster's worker answers that it is starting."""


class StateRecovery:
    """Takes states from the other clusters' workers at ``addresses``, by cluster, for ``engine``."""

    def __init__(
        self, engine: Engine, sync: SubscriptionSync, addresses: Mapping[str, str], seconds_max: float
    ) -> None:
        self._engine = engine
        self._sync = sync
        self.addresses = dict(addresses)
        self._seconds_max = seconds_max
        self.waiting: WaitingStates | None = None
        """States that are awaited; None if none are."""
        self._asked_at: float | None = None
        """Time of the first question of this process, by a clock that does not step; None before it."""
        self._store: list[str] = []
        self._reasons: dict[str, str] = {}
        self._starting: set[str] = set()
        """Clusters whose workers answered last that they are starting."""
        self._failed: dict[str, frozenset[str]] = {}
        """For each cluster that was asked for all its topics, those whose states could not be taken. It is asked only
        for these again."""
        self._refused: set[str] = set()
        """Topics that may not be made here, as the log says."""
        self._told: set[tuple[str, str]] = set()
        """Topic and name of each subscription that a cluster told."""
        self._task = engine.supervisor.task("states", "states of subscriptions", self._run, until_done=True)

    def begin(self) -> None:
        """Decide whether states are awaited. Call this before anything is trimmed, and before clients are served."""
        row = self._engine.store.meta(ROW)
        mark = restored_mark(self._engine.store)
        store = [self._engine.origin_stores.store, "" if mark is None else mark.restore_id]
        if row is None and mark is None and self._engine.topics():
            return  # a store that was in use before there was such a row
        if row is not None and row["store"] == store and row["done"]:
            return
        if not self.addresses or not self._sync.exact:
            return
        begun = row is not None and row["store"] == store
        since_ms = row["since_ms"] if begun else self._engine.writer.wall_clock_ms()
        told = row["told"] if begun else ()
        self.waiting = WaitingStates(self.addresses, since_ms, self._seconds_max, told)
        self._store = store
        self._engine.maintenance.waits = lambda: self._kept() is Kept.EVERYTHING
        for topic in self._engine.topics():
            topic.holds.positions[HOLDER] = topic.log.trimmed

    async def first_try(self) -> None:
        """Ask each cluster, for :data:`FIRST_SECONDS` at most. A cluster that is starting too is asked again."""
        if self.waiting is None:
            return
        with suppress(TimeoutError):
            async with timeout(FIRST_SECONDS):
                self._asked_at = time.monotonic()
                await asyncio.gather(*map(self._take_from, self._untold()))
                while self._starting:
                    await asyncio.sleep(FIRST_PAUSE_SECONDS)
                    await asyncio.gather(*map(self._take_from, list(self._starting)))
        self._let_go()
        await self._note()
        self._task.start()

    async def stop(self) -> None:
        await self._task.stop()

    def change(self, addresses: Mapping[str, str], seconds_max: float) -> None:
        """Use the addresses and the time of another topology."""
        self.addresses, self._seconds_max = dict(addresses), seconds_max
        if self.waiting is not None:
            self.waiting.change(addresses, seconds_max)

    def status(self) -> dict[str, Any] | None:
        """Return who has not told yet and what is kept; None if nothing is awaited."""
        if self.waiting is None:
            return None
        return {
            "since_ms": self.waiting.since_ms,
            "kept": self._kept().value,
            "clusters": {name: self._reasons.get(name, "") for name in self._untold()},
            "subscriptions": [
                {"topic": topic.name, "subscription": name}
                for topic in self._engine.topics()
                if HOLDER in topic.holds.positions
                for name, each in topic.subscriptions.items()
                if each.durable and (topic.name, name) not in self._told
            ][:NAMED_MAX],
        }

    def _asking_seconds(self) -> float:
        return 0.0 if self._asked_at is None else time.monotonic() - self._asked_at

    def _untold(self) -> list[str]:
        return [] if self.waiting is None else self.waiting.untold(self._asking_seconds())

    def _kept(self) -> Kept:
        now_ms = self._engine.writer.wall_clock_ms()
        return Kept.NOTHING if self.waiting is None else self.waiting.kept(now_ms, self._asking_seconds())

    async def _run(self) -> None:
        after_limit = False
        due = 0.0
        loop = asyncio.get_running_loop()
        while untold := self._untold():
            if not after_limit and self._kept() is Kept.UNTOLD:
                after_limit = True
                log.warning(
                    "messages stay until other clusters tell the states of subscriptions, and count against quotas",
                    cluster=self._engine.cluster,
                    clusters=untold,
                )
            if loop.time() >= due:
                await asyncio.gather(*map(self._take_from, untold))
                self._let_go()
                await self._note()
                due = loop.time() + RETRY_SECONDS
            await asyncio.sleep(LOOK_SECONDS)
        await self._end()

    def _let_go(self) -> None:
        """Hold only logs of topics whose states could not be taken, once each awaited cluster was asked for all."""
        untold = self._untold()
        if any(peer not in self._failed for peer in untold):
            return
        failed = frozenset[str]().union(*(self._failed[peer] for peer in untold))
        for topic in self._engine.topics():
            if topic.name not in failed:
                topic.holds.positions.pop(HOLDER, None)

    async def _end(self) -> None:
        if self.waiting is not None:
            await self._note(done=True)
            self.waiting = None
            self._engine.maintenance.waits = lambda: False
            self._let_go()
            log.info("the states of subscriptions are complete", cluster=self._engine.cluster)

    async def _note(self, *, done: bool = False) -> None:
        assert self.waiting is not None
        told = self.waiting.complete_peers
        row = {"store": self._store, "since_ms": self.waiting.since_ms, "told": told, "done": done}
        with suppress(EngineError):  # then a restart asks again
            if self._engine.store.meta(ROW) != row:
                await self._engine.remember(ROW, row)

    # Asking.

    async def _take_from(self, peer: str) -> None:
        waiting, address = self.waiting, self.addresses.get(peer)
        if waiting is None or address is None:
            return
        failed: dict[str, StatesUnavailable | EngineError] = {}
        try:
            async with worker_session(at_once_max=AT_ONCE_MAX) as session:
                asked = _Asked(session, peer, address)
                names = await asked.topics()
                waiting.heard(peer)
                failed_before = self._failed.get(peer)
                if failed_before is not None:
                    names = [name for name in names if name in failed_before]
                subscribed = [name for part in _parts(names) for name in await asked.replicated(part)]
                turn = asyncio.Semaphore(AT_ONCE_MAX)
                ended = False

                async def take(name: str) -> None:
                    nonlocal ended
                    async with turn:
                        if ended:
                            return
                        try:
                            await self._take_topic(asked, name)
                        except (StatesUnavailable, EngineError) as error:
                            failed[name] = error
                            if await self._affects_all_topics(error, failed, asked):
                                ended = True
                                raise

                await asyncio.gather(*map(take, subscribed))
        except EngineError as error:
            self._starting.discard(peer)
            self._note_reason(peer, f"subscriptions cannot be taken from {peer}: {error}")
            return
        except StatesUnavailable as error:
            (self._starting.add if isinstance(error, PeerStarts) else self._starting.discard)(peer)
            self._note_reason(peer, str(error))
            return
        self._starting.discard(peer)
        self._failed[peer] = frozenset(failed)
        if failed:
            first, more = min(failed), f" ({len(failed) - 1} more topics have errors, too)" if len(failed) > 1 else ""
            self._note_reason(peer, f"subscriptions of {first} cannot be taken from {peer}: {failed[first]}{more}")
            return
        waiting.told(peer)
        self._reasons.pop(peer, None)

    async def _affects_all_topics(
        self,
        error: StatesUnavailable | EngineError,
        failed: Mapping[str, StatesUnavailable | EngineError],
        asked: _Asked,
    ) -> bool:
        """Return whether ``error``, by which the states of one topic could not be taken, meets the other topics, too.

        A peer that does not answer about one topic may answer about others. If it is so with many, it is away.
        """
        if isinstance(error, PeerAway):
            silent = sum(isinstance(each, PeerAway) for each in failed.values())
            return silent >= AT_ONCE_MAX or not await asked.answers()
        return isinstance(error, StoreFull) or bool(self._engine.writer.failed)

    def _note_reason(self, peer: str, reason: str) -> None:
        if self._reasons.get(peer) != reason:
            log.info("states of subscriptions are not known yet", cluster=self._engine.cluster, reason=reason)
        self._reasons[peer] = reason

    async def _take_topic(self, asked: _Asked, name: str) -> None:
        topic = self._engine.find(name)
        if topic is None:
            if not await asked.has_messages_of(sorted(self._sync.origins(name)), name):
                return  # such as a copy of a topic that this cluster deleted
            try:
                topic = await self._engine.topic(name, by_link=True)
            except NotAllowedError as error:  # no link brings it, so there is nothing that a subscription could need
                if name not in self._refused:
                    self._refused.add(name)
                    log.warning(
                        "states of subscriptions are not taken",
                        cluster=self._engine.cluster,
                        topic=name,
                        reason=str(error),
                    )
                return
        for update in await asked.states(name):
            await self._sync.merge_told(topic, update)
            self._told.add((name, update.subscription))


class _Asked:
    """Questions to the worker of one cluster. They raise :class:`StatesUnavailable`."""

    def __init__(self, session: aiohttp.ClientSession, peer: str, address: str) -> None:
        self._session = session
        self._peer = peer
        self._base = worker_url(address)

    async def answers(self) -> bool:
        """Return whether the worker answers a question that is about no topic."""
        try:
            await self._json("GET", "/failover/v1/state")
        except PeerAway:
            return False
        except StatesUnavailable:  # an answer, too
            pass
        return True

    async def topics(self) -> list[str]:
        """Return the names of all its topics."""
        answer = await self._json("GET", "/replication/v1/topics")
        try:
            if answer["cluster"] != self._peer:
                raise StatesUnavailable(
                    f"{self._base} is cluster {answer['cluster']!r}, and not {self._peer!r}: correct the address in "
                    "the topology"
                )
            return [str(row["name"]) for row in answer["topics"]]
        except _UNREADABLE as error:
            raise self._unreadable(error) from None

    async def replicated(self, names: Sequence[str]) -> list[str]:
        """Return those topics that have replicated subscriptions."""
        found: list[str] = []
        left: Sequence[str] = names
        while left:
            answer = await self._json("POST", STATES_ROUTE, body={"topics": list(left), "mappings": False})
            try:
                rows = answer["topics"]
                found += [
                    name for name, row in rows.items() if any(each["replicated"] for each in row["subscriptions"])
                ]
                left = answer["left"] if rows else ()
            except _UNREADABLE as error:
                raise self._unreadable(error) from None
        return found

    async def has_messages_of(self, origins: Sequence[str], name: str) -> bool:
        """Return whether a topic has messages of one of ``origins``; markers do not count."""
        query = {"origins": ",".join(origins), "origin": self._peer, "topic": name, "protocol": str(PROTOCOL_VERSION)}
        if not origins:
            return False
        answer = await self._json("GET", "/replication/v1/high-water", query=query)
        try:
            marks = answer["topics"].get(name, {})
            return any(Position.parse(row.get("messages", row["position"])) > BEFORE_ALL for row in marks.values())
        except _UNREADABLE as error:
            raise self._unreadable(error) from None

    async def states(self, name: str) -> list[ApplyUpdate]:
        """Return the states of a topic's replicated subscriptions."""
        answer = await self._json("GET", "/replication/v1/ack-vectors", query={"topic": name}, or_none=True)
        try:
            return [
                ApplyUpdate(
                    str(subscription),
                    int(row["generation"]),
                    None,
                    self._peer,
                    acks=from_data(row["vector"]),
                    whole=True,
                    properties={str(key): str(value) for key, value in row.get("properties", {}).items()},
                    read_compacted=bool(row.get("read_compacted", False)),
                    starts=starts_of(row.get("starts", {})),
                )
                for subscription, row in answer.get("subscriptions", {}).items()
            ]
        except _UNREADABLE as error:
            raise self._unreadable(error) from None

    def _unreadable(self, error: Exception) -> StatesUnavailable:
        return StatesUnavailable(
            f"{self._peer} at {self._base}: its answer cannot be read: {error!r:.100}; run the same version everywhere"
        )

    async def _json(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        or_none: bool = False,
    ) -> dict[str, Any]:
        """Return the answer. With ``or_none``, return nothing if the worker does not find what was asked for."""
        try:
            async with (
                timeout(ASK_SECONDS_MAX),
                self._session.request(method, f"{self._base}{path}", params=query, json=body) as response,
            ):
                read = await response.read()
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise PeerAway(
                f"the worker of {self._peer} at {self._base} cannot be asked: {why_no_answer(error)}"
            ) from None
        if or_none and response.status == 404:
            return {}
        if response.status != 200:
            kind = PeerStarts if response.status == 503 else StatesUnavailable
            reason = read[:200].decode(errors="replace")
            raise kind(
                f"the worker of {self._peer} at {self._base} answers with an error, status {response.status}: {reason}"
            )
        try:
            answer = json.loads(read)
        except _UNREADABLE as error:
            raise self._unreadable(error) from None
        if not isinstance(answer, dict):
            raise StatesUnavailable(
                f"{self._peer} at {self._base}: its answer is not the JSON object that a worker sends: see that the "
                "address in the topology is that of a worker"
            )
        return answer


def _parts(names: Sequence[str]) -> list[Sequence[str]]:
    return [names[first : first + TOPICS_MAX] for first in range(0, len(names), TOPICS_MAX)]
