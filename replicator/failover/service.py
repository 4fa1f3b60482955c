"""The failover of one worker: the shell around :class:`FailoverCore`.

It keeps the record in the store, reads and writes the markers of the epochs' topic, asks and tells the other workers,
and closes the engine's gate. What the API asks is here too.

Every other worker is asked every :data:`POLL_SECONDS`, so that a record travels even where no link leads, and so
that each knows since when another is not heard of.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, Protocol

import structlog

from replicator.engine.engine import Engine
from replicator.engine.errors import EngineError, Redirect
from replicator.engine.gate import Gate
from replicator.failover.core import (
    HOLD_MS_MAX,
    Action,
    Announce,
    AskOthers,
    FailoverCore,
    Save,
    SetGate,
)
from replicator.failover.engine_clients import EngineClients
from replicator.failover.epochs import (
    FIRST,
    Precedence,
    as_json,
    from_json,
    is_fenced,
    precedence,
    served_homes,
    serving,
    switched,
)
from replicator.failover.epochs_log import EpochsLog
from replicator.failover.errors import EpochConflict, FailoverError, SwitchImpossible
from replicator.failover.peers import Peers, record_of
from replicator.failover.positions import Earlier, Positions
from replicator.failover.served_clients import ServedClients
from replicator.running.short_tasks import in_background
from replicator.running.timeouts import timeout
from snapshots.markers import FailoverEpoch
from snapshots.position import Position

POLL_SECONDS: Final = 2.0
TICK_SECONDS: Final = 0.5
SWITCHES_KEPT: Final = 10
"""Number of newest switches to and from this cluster whose positions are kept: some 100 kilobytes for a thousand
topics.
"""
ENDED_SECONDS_MAX: Final = 5.0
"""Longest wait for what was in flight at the fence before messages are counted: shorter than the coordinator's."""
RECORD: Final = "failover_record"
SWITCHES: Final = "failover_switches"
ENDS: Final = "failover_ends"
"""Table of this cluster's last own positions, by the record that fenced it."""

log = structlog.get_logger(__name__)


async def learn_newest(engine: Engine, records: Iterable[FailoverEpoch]) -> tuple[FailoverEpoch, FailoverEpoch]:
    """Store the newest of ``records`` that other clusters know, if it is newer than the stored one.

    So an old primary knows who serves before its worker starts. Return the record that was stored before, and the
    newest one.
    """
    stored = engine.store.meta(RECORD)
    known = FIRST if stored is None else from_json(stored)
    newest = max([known, *records], key=precedence)
    if precedence(newest) > precedence(known):
        await engine.remember(RECORD, as_json(newest))
    return known, newest


class EpochIndex(Protocol):
    """Index of epochs and of operators' actions, for people; nothing is read from it to work (invariant 9)."""

    def failover_epoch(self, record: FailoverEpoch) -> None: ...
    def audit(self, actor: str, action: str, subject: str, detail: Mapping[str, Any] | None = None) -> None: ...


class FailoverService:
    """The failover of the worker of ``engine``'s cluster. ``addresses`` has the HTTP address of every cluster of the
    topology, this one included. ``service_urls`` has the address for clients, and ``origins`` the origin of their
    messages, for clusters where these are different ones. ``clients`` are those of this cluster; None for those of
    the engine.
    """

    def __init__(
        self,
        engine: Engine,
        addresses: Mapping[str, str],
        *,
        service_urls: Mapping[str, Redirect] | None = None,
        origins: Mapping[str, str] | None = None,
        clients: ServedClients | None = None,
        index: EpochIndex | None = None,
    ) -> None:
        self.engine = engine
        self._addresses = dict(addresses)
        self._service_urls = dict(service_urls or {})
        self._index = index
        self._core = FailoverCore(engine.cluster)
        self._origins = dict(origins or {})
        self._clients = clients or EngineClients(engine)
        self._clients.on_addresses(self._urls(), self._service_urls)
        self._positions = Positions(engine, self._clients)
        self._on_gate: Callable[[Gate], None] = lambda gate: None
        """Function that is called with each gate, before any client is disconnected."""
        self._log = EpochsLog(engine, self.adopt)
        self._peers = Peers({name: at for name, at in addresses.items() if name != engine.cluster})
        self._heard_ms: dict[str, int] = {}
        """Wall clock of each cluster's last answer."""
        self._silent: dict[str, str] = {}
        """Clusters that did not answer when they were asked last, each with why."""
        self._proposing = asyncio.Lock()
        self._saving = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._polling = engine.supervisor.task("failover", "failover polls", self._poll)
        self._ticking = engine.supervisor.task("failover", "failover ticks", self._tick)

    # Life.

    def close_gate(self) -> None:
        """Close the gate before the API is there: no client is taken until the others were asked."""
        stored = self.engine.store.meta(RECORD)
        self.engine.add_listener(self._log)
        actions = self._core.start(None if stored is None else from_json(stored), self._log.records())
        self._asking_at_start = [action for action in actions if not isinstance(action, SetGate)]
        self._run_gates(actions)

    def watch_gate(self, on_gate: Callable[[Gate], None]) -> None:
        """Call ``on_gate`` with the present gate, and again whenever it changes."""
        self._on_gate = on_gate
        on_gate(self._core.gate)

    async def start(self) -> None:
        """Ask the others, and open the gate if nobody has taken over. Return when that is decided, in about 2 s."""
        for action in self._asking_at_start:
            await self._run(action)
        record = self._core.record
        if is_fenced(record, self.engine.cluster) and self.engine.store.meta(f"{ENDS} {record.record_id}") is None:
            self._task(self._remember_end(record))  # it was not there yet when this worker stopped
        if self._silent and len(self._silent) == len(self._peers.addresses):
            log.warning(
                "no other cluster answers: going on with the failover epoch that is stored",
                cluster=self.engine.cluster,
                epoch=self._core.record.epoch,
                fenced=is_fenced(self._core.record, self.engine.cluster),
            )
        self._polling.start()
        self._ticking.start()

    async def stop(self) -> None:
        await asyncio.gather(self._polling.stop(), self._ticking.stop())
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._peers.close()

    def on_topology(
        self,
        addresses: Mapping[str, str],
        service_urls: Mapping[str, Redirect] | None = None,
        origins: Mapping[str, str] | None = None,
    ) -> None:
        """Replace the known addresses and origins of clusters by those of a new topology. The mappings are by cluster.

        ``addresses`` has the HTTP addresses of all workers. ``service_urls`` has the URLs for clients of the binary
        protocol, and ``origins`` the origin of the messages that clients publish, for clusters where these are others.
        """
        self._addresses = dict(addresses)
        self._service_urls = dict(service_urls or {})
        self._origins = dict(origins or {})
        self._clients.on_addresses(self._urls(), self._service_urls)
        self._peers.addresses = {name: at for name, at in addresses.items() if name != self.engine.cluster}
        self._silent = {name: why for name, why in self._silent.items() if name in addresses}
        self._set_gate(self._core.gate)

    def resync(self) -> None:
        """Index everything again: the index lost what it had."""
        if self._index is not None and self._core.record.epoch:
            self._index.failover_epoch(self._core.record)

    # Carrying out what the core says.

    def _spawn(self, actions: Sequence[Action]) -> None:
        """Set the gate at once, and do the other actions as soon as possible."""
        self._run_gates(actions)
        rest = [action for action in actions if not isinstance(action, SetGate)]
        if rest:
            self._task(self._run_all(rest))

    def _task(self, work: Coroutine[Any, Any, None]) -> None:
        task = in_background(work, "an answer to news of a failover", tell=_tell_failure)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _run_gates(self, actions: Sequence[Action]) -> None:
        for action in actions:
            if isinstance(action, SetGate):
                self._set_gate(action.gate)

    def _set_gate(self, gate: Gate) -> None:
        self._on_gate(gate)
        self._clients.set_gate(gate)

    async def _run_all(self, actions: Sequence[Action]) -> None:
        for action in actions:
            await self._run(action)

    async def _run(self, action: Action) -> None:
        try:
            match action:
                case SetGate(gate):
                    self._set_gate(gate)
                case Save(record):
                    await self._save(record)
                case Announce(record):
                    await self._announce(record)
                case AskOthers():
                    answers = await asyncio.gather(*map(self._ask, list(self._peers.addresses)))
                    self._spawn(self._core.on_answers([answer for answer in answers if answer is not None]))
        except EngineError as error:
            # A store that is full or failed. What is not saved is asked for again at the next start.
            log.error("failover epoch is not stored", cluster=self.engine.cluster, reason=str(error))  # noqa: TRY400

    async def _save(self, record: FailoverEpoch) -> None:
        """Store ``record``, or the one that this worker knows if that is newer: what is stored only goes up."""
        async with self._saving:
            record = max(record, self._core.record, key=precedence)
            log.info(
                "failover epoch",
                cluster=self.engine.cluster,
                epoch=record.epoch,
                writer=record.writer,
                kind=record.kind,
                source=record.source,
                target=record.target,
                fenced=is_fenced(record, self.engine.cluster),
            )
            if self._index is not None:
                self._index.failover_epoch(record)
            if is_fenced(record, self.engine.cluster):
                self._task(self._remember_end(record))
            await self.engine.remember(RECORD, as_json(record))

    async def _remember_end(self, record: FailoverEpoch) -> None:
        """Store what clients had published here when the record fenced this cluster, once all of it is in the
        engine.
        """
        await self._clients.ended()
        if self._core.record == record:
            await self._remember(ENDS, record.record_id, self._positions.marks_of(self._clients.origin))

    async def _announce(self, record: FailoverEpoch) -> None:
        await self._log.write(record)
        await asyncio.gather(*(self._announce_to(cluster, record) for cluster in list(self._peers.addresses)))

    async def _announce_to(self, cluster: str, record: FailoverEpoch) -> None:
        try:
            await self._peers.announce(cluster, record)
        except FailoverError as error:
            log.info("not told of the failover epoch", cluster=self.engine.cluster, other=cluster, reason=str(error))

    async def _ask(self, cluster: str) -> FailoverEpoch | None:
        try:
            state = await self._peers.state(cluster)
        except FailoverError as error:
            self._silent[cluster] = str(error)
            return None
        self._silent.pop(cluster, None)
        self._heard_ms[cluster] = _wall_ms()
        record = record_of(cluster, state)
        if precedence(record) < precedence(self._core.record):
            self._task(self._announce_to(cluster, self._core.record))
        return record

    async def _poll(self) -> None:
        while True:
            await asyncio.sleep(POLL_SECONDS)
            for record in await asyncio.gather(*map(self._ask, list(self._peers.addresses))):
                if record is not None:
                    self._spawn(self._core.on_record(record))

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            self._spawn(self._core.on_tick(_now_ms()))

    def link_opened(self, cluster: str) -> None:
        """Poll a cluster whose link has connected: it may know a newer record."""
        if cluster in self._peers.addresses:
            self._task(self._ask_one(cluster))

    async def _ask_one(self, cluster: str) -> None:
        record = await self._ask(cluster)
        if record is not None:
            self._spawn(self._core.on_record(record))

    # What the API asks.

    def state(self) -> dict[str, Any]:
        core, cluster = self._core, self.engine.cluster
        gate, hold = core.gate, core.hold
        return {
            "cluster": cluster,
            "record": as_json(core.record),
            "epoch": core.record.epoch,
            "serves": list(served_homes(core.record, cluster)),
            "served_by": serving(core.record, cluster),
            "fenced": is_fenced(core.record, cluster),
            "learned": core.learned,
            "producers": "open" if gate.producers is None else gate.producers.value,
            "consumers": "open" if gate.consumers is None else gate.consumers.value,
            "switching_to": None if hold is None else hold.target,
            "heard_ms": dict(self._heard_ms),
            "silent": dict(self._silent),
            "clients_unknown": self._clients.unknown(),
        }

    def not_ready(self) -> str | None:
        """Return why no client is taken for the moment. A fenced worker is ready: links and readers use it."""
        return None if self._core.learned else "the other clusters are being asked whether one of them took over"

    def service_url(self, home: str) -> tuple[dict[str, str], FailoverEpoch]:
        """Return where the clients of ``home`` connect, in the form that Pulsar's clients poll, and the record behind
        it. Raise :class:`KeyError` for a cluster that the topology does not have.
        """
        if home not in self._addresses:
            raise KeyError(home)
        by = serving(self._core.record, home)
        if by not in self._addresses:
            by = home
        return {
            "serviceUrl": self._urls()[by],
            "tlsTrustCertsFilePath": "",
            "authPluginClassName": "",
            "authParamsString": "",
        }, self._core.record

    @property
    def clusters(self) -> list[str]:
        return list(self._addresses)

    def topics(self, names: list[str] | None, earlier: Earlier | None = None) -> list[dict[str, Any]]:
        """See :meth:`Positions.topics`."""
        return self._positions.topics(names, earlier)

    async def topics_in_brief(self, names: list[str] | None) -> dict[str, Any]:
        """See :meth:`Positions.in_brief`."""
        return await self._positions.in_brief(names)

    async def missing(
        self, marks: Mapping[str, Position], record_id: str | None, names: Collection[str] | None = None
    ) -> dict[str, dict[str, Any]]:
        """Return :meth:`Positions.missing`. With the ``record_id`` of a switch that fenced this cluster, count only
        messages that were here then.
        """
        ends = None if record_id is None else self.engine.store.meta(f"{ENDS} {record_id}")
        record = self._core.record
        if ends is None and record.record_id == record_id and is_fenced(record, self.engine.cluster):
            with suppress(TimeoutError, EngineError):  # then what the engine has is counted
                async with timeout(ENDED_SECONDS_MAX):
                    await self._clients.ended()
        upto = None if ends is None else {name: Position.parse(end["position"]) for name, end in ends.items()}
        return await self._positions.missing(marks, upto, names)

    async def hold(
        self, operation: str, target: str, expected: Precedence, lease_ms: int, *, keep_consumers: bool
    ) -> dict[str, Any]:
        """Fence this cluster for a planned switch; return its topics when nobody changes them any more."""
        until_ms = _now_ms() + min(lease_ms, HOLD_MS_MAX)
        self._run_gates(self._core.hold_clients(operation, target, expected, until_ms, keep_consumers=keep_consumers))
        self._audit("failover hold", self.engine.cluster, target=target)
        held = await self._clients.settle(operation, keep_consumers=keep_consumers)
        self._core.renew(operation, _now_ms() + min(lease_ms, HOLD_MS_MAX))
        return {"held_entries": held, "topics": self._positions.topics()}

    def renew(self, operation: str, lease_ms: int) -> None:
        """Renew the lease of a switch. Raise :class:`EpochConflict`."""
        self._core.renew(operation, _now_ms() + min(lease_ms, HOLD_MS_MAX))

    def release(self, operation: str) -> None:
        actions = self._core.release(operation)
        if actions:
            self._audit("failover release", self.engine.cluster)
        self._run_gates(actions)

    def _audit(self, action: str, cluster: str, **detail: Any) -> None:
        if self._index is not None:
            self._index.audit("operator", action, f"cluster {cluster}", detail or None)

    async def propose(
        self, *, kind: str, homes: Sequence[str], expected: Precedence, keep_consumers: bool
    ) -> dict[str, Any]:
        """Take over. When that is durable, return the record, and which messages of the former server are here. Raise
        :class:`EpochConflict`, and the store's errors.
        """
        async with self._proposing:
            try:
                record = switched(
                    self._core.record,
                    kind=kind,
                    homes=homes,
                    target=self.engine.cluster,
                    record_id=uuid.uuid4().hex,
                    at_ms=_wall_ms(),
                    keep_consumers=keep_consumers,
                )
            except SwitchImpossible as error:  # since the coordinator looked
                raise EpochConflict(str(error)) from None
            self._core.propose(record, expected)
            self._audit(f"failover {kind}", record.target, source=record.source, epoch=record.epoch, homes=list(homes))
            switch = {
                "record": as_json(record),
                "marks": self._positions.marks_of(self._origins.get(record.source, record.source)),
            }
            await self._remember(SWITCHES, record.record_id, switch)
            self._core.propose(record, expected)  # another record may have come meanwhile
            await self._save(record)
            self._spawn(self._core.on_saved(record))
            return switch

    def adopt(self, record: FailoverEpoch) -> None:
        """Adopt a record that another worker or a coordinator sent, if it is newer than the one here."""
        if actions := self._core.on_record(record):
            self._audit("failover adopt", record.target, source=record.source, epoch=record.epoch)
            self._spawn(actions)

    def switches(self) -> list[dict[str, Any]]:
        """Return the newest switches to this cluster, newest first. Each has the former server's messages that were
        here.
        """
        stored = self.engine.store.meta(SWITCHES) or []
        found = (self.engine.store.meta(f"{SWITCHES} {name}") for name in reversed(stored))
        return [switch for switch in found if switch is not None]

    async def _remember(self, table: str, name: str, value: Any) -> None:
        """Keep ``value`` under the name of a switch; drop the oldest beyond :data:`SWITCHES_KEPT`."""
        names = [each for each in self.engine.store.meta(table) or [] if each != name] + [name]
        for old in names[:-SWITCHES_KEPT]:
            await self.engine.writer.put("meta", f"{table} {old}".encode(), None)
        await self.engine.remember(f"{table} {name}", value)
        await self.engine.remember(table, names[-SWITCHES_KEPT:])

    def _urls(self) -> dict[str, str]:
        urls = {name: f"pulsar://{address}" for name, address in self._addresses.items()}
        return urls | {name: place.url for name, place in self._service_urls.items() if name in urls}


def _tell_failure(name: str, error: BaseException) -> None:
    log.error("failover: a step failed", step=name, exc_info=error)


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
