"""Producers of a topic: the objects that channels hold, and the shell that carries out the registry's decisions.

:mod:`replicator.engine.producing.producer_registry` decides which producers may publish. The shell writes the epoch and
wakes waiting producers. Since the epoch goes through the writer's queue, fenced producers have no entry after it in the
log.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Sequence
from itertools import count
from typing import Final, Protocol

from replicator.engine.admission import Admission
from replicator.engine.client_figures import ClientFigures
from replicator.engine.errors import EngineError, NotAllowedError, ProducerFenced
from replicator.engine.layered_policies import LayeredPolicies
from replicator.engine.log.commit.publishing import topic_terminated
from replicator.engine.log.log_index import LogIndex
from replicator.engine.log.requests import Answer
from replicator.engine.log.writer import Writer
from replicator.engine.producing.producer_registry import Admitted, Decision, ProducerRegistry
from replicator.engine.producing.publish_order import OrderTicket
from replicator.engine.producing.topic_writing import TopicWriting
from replicator.engine.types import ProducerOptions
from replicator.running.short_tasks import awaited, complete
from snapshots.position import Position

FORGET_EVERY_MS: Final = 15 * 60 * 1000
"""Time between two searches for inactive producers. A search reads the rows of a topic, which are kept for hours."""
CLOSED: Final = "ProducerClosed"
"""Code for a producer that the worker closes for a reason of its own. It may connect again."""

_sessions = count(1)


class ProducedTopic(Protocol):
    """Interface of a topic for its producers."""

    name: str
    loop: asyncio.AbstractEventLoop
    log: LogIndex
    writer: Writer
    writing: TopicWriting
    policies: LayeredPolicies
    admission: Admission

    @property
    def cluster(self) -> str: ...

    def check_there(self) -> None:
        """Raise the error that says why the topic takes no more calls: it is being deleted."""


class EngineProducer:
    """A producer that is connected to a topic. Made by :meth:`TopicProducers.create`."""

    def __init__(self, producers: TopicProducers, name: str, options: ProducerOptions) -> None:
        self.id = next(_sessions)
        self.name = name
        self.options = options
        self.last_sequence_id = -1
        """Highest sequence id that the topic has of this name; -1 if none, or without deduplication."""
        self.topic_epoch: int | None = None
        """Epoch of an exclusive producer, with which it takes its place again when it reconnects."""
        self.on_closed: Callable[[str, str], None] | None = None
        """Called with a code and a reason if the topic closes the producer, but not after the producer's own
        :meth:`close`."""
        self.connected_at_ms = producers.topic.writer.wall_clock_ms()
        self.admission: asyncio.Future[Admitted] = producers.topic.loop.create_future()
        self._producers = producers
        self._writing = producers.topic.writing
        self._out: EngineError | None = None
        self._not_begun: set[OrderTicket] = set()
        """Calls whose tasks have not run yet. Later calls must wait for them."""
        self.figures = ClientFigures(time.monotonic())

    @property
    def closed(self) -> bool:
        return self._out is not None

    @property
    def deduplicated(self) -> bool:
        """Whether messages that the producer sends again are not stored twice."""
        return self._producers.topic.policies.effective.deduplication

    async def publish(self, entries: Sequence[bytes], turn: OrderTicket | None = None) -> list[Position]:
        """Append entries, and return their positions when they are durable; ``DUPLICATE`` for entries that are here
        already.

        A caller that does not wait for one call before the next gives each call its ``turn``. After a refused call, the
        later ones are refused, too. Raises :class:`ProducerFenced`, :class:`NotAllowedError` once closed, and the
        errors of :meth:`TopicWriting.publish`.
        """
        self.check_open()
        return await self._writing.publish(entries, self, turn)

    def begin_publish(
        self, entries: Sequence[bytes], turn: OrderTicket, answer: Answer
    ) -> asyncio.Task[list[Position]] | None:
        """Begin :meth:`publish`; ``answer`` receives its result later, never within this call.

        Return None if neither the call nor an earlier one need wait. Otherwise return the task that publishes. Whoever
        cancels it gives the call up.
        """
        if self._out is None and not self._not_begun and self._writing.begin_publish(entries, self, turn, answer):
            return None
        self._not_begun.add(turn)
        task = awaited(self._publish_by_task(entries, turn))

        def ended(task: asyncio.Task[list[Position]]) -> None:
            self._not_begun.discard(turn)  # it may be cancelled before it runs
            if task.cancelled():
                answer.cancel()
            else:
                complete(answer, task.exception() or task.result())

        task.add_done_callback(ended)
        return task

    async def _publish_by_task(self, entries: Sequence[bytes], turn: OrderTicket) -> list[Position]:
        self._not_begun.discard(turn)  # from here on, what it waits for holds up the later calls as well
        return await self.publish(entries, turn)

    def check_open(self) -> None:
        """Raise an error if the producer may not publish any more, which says why."""
        if self._out is not None:
            raise self._out

    def close(self) -> None:
        """Disconnect. A producer that waits for the topic is admitted. Messages published before stay."""
        if self._out is None:
            self._out = NotAllowedError(f"producer {self.name!r} is closed")
            self._producers.leave(self)

    def give_back(self, error: EngineError) -> bool:
        """Disconnect if publishes of this producer wait for the backlog's quota. These get ``error``. Return whether
        there were any."""
        given_back = self._producers.topic.writing.gate.give_back(self, error)
        if given_back:
            self.close()
        return given_back

    def evict(self, error: EngineError, code: str) -> None:
        """Disconnect the producer from the topic. Its owner hears of that on a later turn of the event loop."""
        if self._out is not None:
            return
        self._out = error
        if not self.admission.done():
            self.admission.set_exception(error)
        else:
            self._producers.topic.loop.call_soon(self._tell_closed, code, str(error))

    def _tell_closed(self, code: str, reason: str) -> None:
        if self.on_closed is not None:
            self.on_closed(code, reason)


class TopicProducers:
    """Producers of one topic. Carries out the registry's decisions. Runs on the engine's event loop."""

    def __init__(self, topic: ProducedTopic, epoch: int | None) -> None:
        self.topic = topic
        self.registry = ProducerRegistry(epoch)
        self._members: dict[int, EngineProducer] = {}
        self._forgot_at_ms = topic.writer.wall_clock_ms()
        topic.writing.tail.connected = self.registry.sessions

    async def create(self, options: ProducerOptions) -> EngineProducer:
        """Connect a producer, and return it. One that must wait for the topic is connected when this returns, unless
        cancelled.

        Raises :class:`ProducerBusy`, :class:`ProducerFenced`, :class:`TopicTerminated`, :class:`NotAllowedError` and
        the store's errors.
        """
        self.topic.check_there()
        if self.topic.log.terminated:
            raise topic_terminated(self.topic.name)
        self.topic.admission.check_producer()
        name = options.name if options.name is not None else self._new_name()
        producer = EngineProducer(self, name, options)
        decisions = self.registry.connect(
            producer.id, producer.name, options, self.topic.policies.effective.max_producers
        )
        self._members[producer.id] = producer
        self._act(decisions)
        try:
            admitted = await producer.admission
            producer.topic_epoch = admitted.epoch
            numbered = self.topic.policies.effective.deduplication
            if admitted.save_epoch or numbered:
                producer.last_sequence_id = await self.topic.writer.open_producer(
                    self.topic.writing.tail,
                    producer.name,
                    epoch=admitted.epoch if admitted.save_epoch else None,
                    numbered=numbered,
                )
            producer.check_open()  # it may have been fenced meanwhile
        except BaseException:
            producer.close()
            raise
        return producer

    def publishers(self) -> list[EngineProducer]:
        """Return the producers that may publish now, without those that wait."""
        return [producer for producer in self._members.values() if producer.admission.done()]

    def connected_since(self, name: str) -> int | None:
        """Return when the producer ``name`` connected, in milliseconds since 1970, or None if it is not connected."""
        session = self.registry.sessions.get(name)
        producer = None if session is None else self._members.get(session)
        return None if producer is None else producer.connected_at_ms

    def leave(self, producer: EngineProducer) -> None:
        self._members.pop(producer.id, None)
        self._act(self.registry.leave(producer.id))

    async def forget_inactive(self) -> None:
        """Drop deduplication rows of producers that were not seen for long, at most every :data:`FORGET_EVERY_MS`."""
        now_ms = self.topic.writer.wall_clock_ms()
        if self.topic.policies.effective.deduplication and abs(now_ms - self._forgot_at_ms) >= FORGET_EVERY_MS:
            self._forgot_at_ms = now_ms
            await self.topic.writer.drop_inactive_producers(self.topic.writing.tail)

    @property
    def connected(self) -> int:
        """Number of producers that are connected or wait for the topic."""
        return len(self._members)

    def close(self, reason: str, code: str = CLOSED) -> None:
        """Disconnect all producers. The ``code`` says whether they may connect again."""
        members, self._members = self._members, {}
        for session in members:  # whoever this admits leaves as well
            self.registry.leave(session)
        for producer in members.values():
            producer.evict(NotAllowedError(f"producer {producer.name!r} is closed: {reason}"), code)

    def fence(self, error: EngineError) -> None:
        """Disconnect all producers with ``error``. They may come back after the fence, or go to the cluster that it
        names."""
        members, self._members = self._members, {}
        for session in members:
            self.registry.leave(session)
        for producer in members.values():
            producer.evict(error, error.code)

    def _act(self, decisions: Sequence[Decision]) -> None:
        for decision in decisions:
            if isinstance(decision, Admitted):
                admission = self._members[decision.session].admission
                if not admission.done():  # else it was cancelled, and leaves as soon as it runs
                    admission.set_result(decision)
            else:
                fenced = self._members.pop(decision.session)
                fenced.evict(ProducerFenced(f"{self.topic.name}: {decision.reason}"), ProducerFenced.code)

    def _new_name(self) -> str:
        """Return an unused name. With a used one, deduplication would drop messages that look like those of the
        earlier producer."""
        return f"{self.topic.cluster}-{secrets.token_hex(8)}"
