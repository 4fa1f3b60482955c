"""Start of a worker on its store: asks other clusters, and takes back messages, waits, or refuses.

:mod:`replicator.worker.start_decision` decides; this module carries the decisions out.

1. Every start asks the other clusters which store of this cluster is the newest. A start on a new store also asks
   whether they have messages. The newest failover epoch of all answers is stored before anything else is done.
2. Messages are taken back as by ``replicator backup reclaim`` (:mod:`replicator.backup.reclaiming`), before clients are
   served. A start that is killed meanwhile goes on at the next one from what is stored. The peers that told of messages
   are stored first, so a later start waits for them.
3. The outcome of the first start on a store is a row in the store (:data:`START`), which the status shows. A start
   after ``replicator backup reclaim``, or after a start that was cut off once messages were back, is the first one too:
   it names what rows in Postgres prove to be lost, before they are replaced.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final

import structlog

from replicator.backup.errors import ReclaimPaused, WorkerNotAsked
from replicator.backup.reclaim_mark import settle
from replicator.backup.reclaim_reading import Pace
from replicator.backup.reclaiming import Progress, Reclaimed, reclaim_opened
from replicator.engine.engine import Engine
from replicator.engine.errors import StoreUnusable
from replicator.engine.lineage import StoreLine
from replicator.engine.restored import TAKEN_BACK, restored_mark, taken_back_row
from replicator.failover.epochs import from_json
from replicator.failover.service import learn_newest
from replicator.index.database import DatabaseUnavailable
from replicator.index.earlier_rows import EarlierRows
from replicator.operating.start_checks import never_served
from replicator.peering.known_stores import StoreOf
from replicator.running.naming import named
from replicator.running.short_tasks import awaited
from replicator.topology import Topology
from replicator.topology.fields import START as START_EMPTY
from replicator.worker.asking_peers import ask_all, list_peer_topics
from replicator.worker.early import Opening
from replicator.worker.start_decision import (
    IndexRows,
    Refuse,
    Serve,
    StartMode,
    StartState,
    TakeBack,
    Wait,
    decide,
)
from replicator.worker.taking_settings import take_settings, was_reclaimed_without_settings

START: Final = "start"
"""Name of a row in the table ``meta``: what the first start on this store did, and whom it could not ask."""
ROUND_SECONDS: Final = 2.0
"""Pause of a worker that waits, before it asks again."""
TOLD_SECONDS: Final = 30.0
"""Pause between two lines in the log about the same wait."""
PROGRESS_SECONDS: Final = 5.0
"""Pause between two lines in the log about the progress of taking back messages."""
WAITING_ASK_SECONDS: Final = 5
"""Time to ask peers where the topology's setting is 0, and an earlier start already took back messages."""

log = structlog.get_logger(__name__)


class StoreReplaced(StoreUnusable):
    """Error for a store whose place another store of the cluster took. It does not serve."""


class EmptyStoreRefused(StoreUnusable):
    """Error for a new store that does not start, by the topology, because other clusters have messages of an earlier
    store."""


class StoppedEarly(Exception):
    """Raised if the worker is told to stop while its start waits, or takes back messages."""


@dataclass(frozen=True, slots=True)
class Started:
    """Outcome of the decision to serve."""

    how: StartMode
    unasked: Mapping[str, str] = field(default_factory=dict)
    """Peers that did not answer, each with the reason."""
    nobody_asked: bool = False
    lost: tuple[str, ...] = ()
    """Known losses, in words."""
    index: IndexRows = IndexRows.NONE


class OpenStore:
    """Store of a starting worker, which is opened again after messages came back.

    ``opened`` is called with each opened engine, and with None when it closes.
    """

    def __init__(self, opening: Callable[[], Awaitable[Engine]], opened: Callable[[Engine | None], None]) -> None:
        self._opening = opening
        self._opened = opened
        self.engine: Engine | None = None

    async def open(self) -> Engine:
        if self.engine is None:
            self.engine = await self._opening()
            self._opened(self.engine)
        return self.engine

    async def close(self) -> None:
        engine, self.engine = self.engine, None
        if engine is not None:
            self._opened(None)
            await engine.close()


class StoreStart:
    """One start of the worker of cluster ``name``. ``on_empty_store``, if given, replaces the topology's setting.

    ``stopping`` is set when the worker is told to stop.
    """

    def __init__(
        self,
        topology: Topology,
        name: str,
        store: OpenStore,
        opening: Opening,
        earlier: Callable[[], Awaitable[EarlierRows | None]],
        *,
        on_empty_store: str | None = None,
        stopping: asyncio.Event | None = None,
    ) -> None:
        self._topology = topology
        self._name = name
        self._store = store
        self._opening = opening
        self._earlier = earlier
        self._setting = on_empty_store or topology.store.on_empty_store
        self._stopping = stopping or asyncio.Event()
        self._peers = {each.name: each.address for each in topology.clusters if each.name != name}
        self._rows: EarlierRows | None = None
        self._index: IndexRows | None = None
        self._told: tuple[str, float] = "", 0.0

    async def begin(self) -> Started:
        """Return when the worker may serve; its store is open then.

        Raises :class:`StoreReplaced`, :class:`EmptyStoreRefused` or :class:`StoppedEarly`.
        """
        engine = self._store.engine
        mark = None if engine is None else restored_mark(engine.store)
        new = engine is None or never_served(engine.store.meta, mark)
        row = {} if engine is None else engine.store.meta(START) or {}
        had = set(row.get("sources", ())) & self._peers.keys() if new else set()
        begun = new and mark is not None
        reclaimed = not new and engine is not None and was_reclaimed_without_settings(engine)
        done: Reclaimed | None = None
        while True:
            answers, silent = await self._ask(new=new, begun=begun)
            index = await self._look() if reclaimed or (new and self._setting != START_EMPTY) else IndexRows.NONE
            now = self._situation(answers, silent, new=new, begun=begun, had=frozenset(had), index=index)
            decision = decide(now)
            match decision:
                case Refuse(older, reason):
                    raise (StoreReplaced if older else EmptyStoreRefused)(reason)
                case Wait(_, reason):
                    await self._wait(reason)
                case TakeBack(sources, unasked):
                    had |= set(sources)
                    done = await self._take_back(answers, sources, had, unasked)
                    begun = True
                    if done is not None:
                        served = decide(replace(now, taken_back=True))
                        assert isinstance(served, Serve)
                        return await self._serve(served, silent, index, answers)
                case Serve():
                    return await self._serve(
                        decision, silent, index, answers, settles=begun, new=new, reclaimed=reclaimed
                    )

    def _situation(
        self,
        answers: Mapping[str, StoreOf],
        silent: Mapping[str, str],
        *,
        new: bool,
        begun: bool,
        had: frozenset[str],
        index: IndexRows,
    ) -> StartState:
        engine = self._store.engine
        return StartState(
            self._name,
            str(self._topology.cluster(self._name).data),
            new,
            StoreLine("") if engine is None else StoreLine.of_head(engine.store.head),
            self._setting,
            answers,
            silent,
            had,
            begun,
            index=index,
            asks=self._topology.store.ask_peers_seconds > 0,
        )

    async def _ask(self, *, new: bool, begun: bool) -> tuple[dict[str, StoreOf], dict[str, str]]:
        """Ask the peers what they know of this cluster and its store. Return answers, and why others gave none.

        Both are by cluster. ``new`` says that the store has never served; if an operator wants it to start empty,
        nobody is asked. ``begun`` says that taking back from peers has begun; then they are asked even if the topology
        gives no time for it.
        """
        if not self._peers or (new and self._setting == START_EMPTY):
            return {}, {}
        seconds = self._topology.store.ask_peers_seconds or (WAITING_ASK_SECONDS if begun else 0)
        if not seconds:
            return {}, dict.fromkeys(self._peers, "not asked: store.ask_peers_seconds is 0")
        if self._opening.state == "opening":
            self._opening.enter("asking", "the worker asks the other clusters what they know of its store")
        answers, silent = await self._await_unless_stopped(
            ask_all(self._peers, self._name, seconds=seconds, new=new, counted=new)
        )
        self._opening.peers = {**dict.fromkeys(answers, "answered"), **silent}
        if self._store.engine is not None:
            await _learn_epoch(self._store.engine, answers)
        return answers, silent

    async def _look(self) -> IndexRows:
        """Look into Postgres for rows of an earlier store, until it answers once."""
        if self._index is None or self._index is IndexRows.AWAY:
            try:
                self._rows = await self._earlier()
                self._index = IndexRows.NONE if self._rows is None else IndexRows.EARLIER
            except DatabaseUnavailable as error:
                log.warning("Postgres was not asked for an earlier store", cluster=self._name, reason=str(error))
                self._index = IndexRows.AWAY
        return self._index

    async def _wait(self, reason: str) -> None:
        self._opening.enter("waiting", reason)
        now = time.monotonic()
        if self._told[0] != reason or now - self._told[1] >= TOLD_SECONDS:
            self._told = reason, now
            log.warning("the worker waits before it serves", cluster=self._name, reason=reason)
        await self._await_unless_stopped(asyncio.sleep(ROUND_SECONDS))

    async def _take_back(
        self, answers: Mapping[str, StoreOf], sources: Sequence[str], had: set[str], unasked: frozenset[str]
    ) -> Reclaimed | None:
        """Take back messages from the peers ``sources``. Return None if one of them does not answer any more."""
        reason = f"the worker takes back messages of {self._name} from {', '.join(sources)}"
        self._opening.enter("reclaiming", reason)
        log.warning(
            "the store is new, and other clusters have its messages: taking them back",
            cluster=self._name,
            sources=list(sources),
            unasked=sorted(unasked),
        )
        engine = await self._store.open()
        await engine.remember(START, {"sources": sorted(had)})
        await _learn_epoch(engine, answers)
        pace, nothing = Pace(), frozenset(answers.keys() - set(sources))
        watching = awaited(_pause_when(self._stopping, pace))
        try:
            done = await reclaim_opened(
                engine,
                self._topology,
                without=unasked,
                nothing=nothing,
                pace=pace,
                on_progress=_ProgressReporter(self._name, self._opening).tell,
            )
        except ReclaimPaused:
            raise StoppedEarly from None
        except WorkerNotAsked as error:
            await self._reopen()
            why = str(error).partition(";")[0]
            await self._wait(
                f"{', '.join(sources)} told of messages of {self._name}, and one does not give them: {why}"
            )
            return None
        finally:
            watching.cancel()
            with suppress(asyncio.CancelledError):
                await watching
        self._log_done(done)
        await self._reopen()
        return done

    async def _reopen(self) -> None:
        """Open the store anew after blocks were put back: only then does the memory of its topics have them."""
        await self._store.close()
        await self._store.open()

    def _log_done(self, done: Reclaimed) -> None:
        messages = sum(topic.messages for topic in done.topics)
        topics = len({topic.name for topic in done.topics if topic.messages})
        log.warning("took back messages from other clusters", cluster=self._name, messages=messages, topics=topics)
        for each in done.lost:
            log.warning("lost", cluster=self._name, what=each)
        for each in (*done.deleted, *done.begun):
            log.info("not taken back", cluster=self._name, what=each)

    async def _serve(
        self,
        decision: Serve,
        silent: Mapping[str, str],
        index: IndexRows,
        answers: Mapping[str, StoreOf],
        *,
        settles: bool = False,
        new: bool = True,
        reclaimed: bool = False,
    ) -> Started:
        """Do what is left before the worker serves. ``reclaimed`` says that a command, or a start that was cut off,
        took the messages back: what is lost is still to be named, and the settings are still to come."""
        engine = await self._store.open()
        await _learn_epoch(engine, answers)
        lost: tuple[str, ...] = ()
        if names := reclaimed or (new and self._setting != START_EMPTY):
            lost = await self._missing(engine, answers)
        if settles:  # an operator said so
            ended = "an operator ended a reclaim before its end: what it had not taken back"
            lost = (*lost, ended)
            mark = restored_mark(engine.store)
            await settle(engine, (*(() if mark is None else mark.lost), *lost), found_again=[ended])
        if names:
            await self._take_settings(engine, answers, reclaimed=reclaimed or decision.how is StartMode.RECLAIMED)
        back: dict[str, Any] = {}
        if reclaimed or decision.how is StartMode.RECLAIMED:
            back = taken_back_row(engine.topics(), self._name)
            await engine.remember(TAKEN_BACK, back)
        started = Started(decision.how, silent, decision.nobody_asked, lost, index)
        if new or reclaimed:
            await engine.remember(START, {**_row(started), "topics_taken_back": len(back)})
        for each in lost:
            log.warning("lost", cluster=self._name, what=each)
        if decision.nobody_asked and new:
            log.warning("no other cluster answers: serving a new store, and nobody was asked", cluster=self._name)
        elif new and silent and decision.how is not StartMode.EMPTY:
            log.warning("some clusters were not asked", cluster=self._name, unasked=dict(silent))
        return started

    async def _take_settings(self, engine: Engine, answers: Mapping[str, StoreOf], *, reclaimed: bool) -> None:
        """Put back policies and permissions that the clusters that answer keep of an earlier store of this cluster."""
        await take_settings(engine, self._peers, answers.keys(), seconds=self._seconds(), reclaimed=reclaimed)

    async def _missing(self, engine: Engine, answers: Mapping[str, StoreOf]) -> tuple[str, ...]:
        """Return in words what rows in Postgres prove to be lost: no topic of that name is here, or at a cluster that
        answers."""
        rows = self._rows
        if rows is None:
            return ()
        if not self._peers and not engine.topics():  # a reclaim can have taken back some from a directory
            return (f"{rows.in_words()}; the topology has no other cluster that could have its messages",)
        there, silent = await list_peer_topics({name: self._peers[name] for name in answers}, seconds=self._seconds())
        missing = [name for name in rows.names if name not in there and engine.find(name) is None]
        if not missing:
            return ()
        unasked = sorted(self._peers.keys() - answers.keys() | silent.keys())
        topics = "1 topic" if len(missing) == 1 else f"{len(missing)} topics"
        return (
            f"Postgres has {topics} of an earlier store that no cluster that was asked has: {named(missing)}"
            + (f"; {', '.join(unasked)} {'was' if len(unasked) == 1 else 'were'} not asked" if unasked else "")
            + (
                f"; the rows of {more} more topics were not compared" if (more := rows.topics - len(rows.names)) else ""
            ),
        )

    def _seconds(self) -> float:
        return self._topology.store.ask_peers_seconds or WAITING_ASK_SECONDS

    async def _await_unless_stopped(self, work: Any) -> Any:
        """Await ``work``. Raises :class:`StoppedEarly` if the worker is told to stop meanwhile."""
        doing, stopping = awaited(work), awaited(self._stopping.wait())
        try:
            await asyncio.wait([doing, stopping], return_when=asyncio.FIRST_COMPLETED)
            if not doing.done():
                raise StoppedEarly
            return await doing
        finally:
            for each in (doing, stopping):
                each.cancel()
            await asyncio.gather(doing, stopping, return_exceptions=True)


class _ProgressReporter:
    """Tells the progress of taking back messages: in the state of the start, and every few seconds in the log."""

    def __init__(self, cluster: str, opening: Opening) -> None:
        self._cluster = cluster
        self._opening = opening
        self._logged = time.monotonic()
        self._messages: dict[str, int] = {}

    def tell(self, progress: Progress) -> None:
        self._messages[progress.topic] = progress.messages
        self._opening.progress = {
            "topic": progress.topic,
            "number": progress.number,
            "topics": progress.topics,
            "messages": sum(self._messages.values()),
            "read_bytes": progress.read_bytes,
        }
        now = time.monotonic()
        if now - self._logged >= PROGRESS_SECONDS:
            self._logged = now
            log.info("taking back messages", cluster=self._cluster, **self._opening.progress)


def _row(started: Started) -> dict[str, Any]:
    return {
        "at_ms": time.time_ns() // 1_000_000,
        "how": started.how.value,
        "nobody_asked": started.nobody_asked,
        "unasked": sorted(started.unasked),
        "database": started.index.value,
        "lost": list(started.lost),
    }


async def _learn_epoch(engine: Engine, answers: Mapping[str, StoreOf]) -> None:
    await learn_newest(engine, [from_json(dict(each.record)) for each in answers.values()])


async def _pause_when(stopping: asyncio.Event, pace: Pace) -> None:
    await stopping.wait()
    pace.pause()
