"""Writing to one topic's log: entries of producers, blocks of links, and markers.

All of it goes through the writer's queue and is durable when its call returns (invariant 1, DESIGN §3). The fence of a
failover and the gate of the backlog's quota stop only publishes: links and workers write on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from replicator.engine.admission import Admission
from replicator.engine.client_figures import ClientFigures
from replicator.engine.errors import EngineError
from replicator.engine.layered_policies import LayeredPolicies
from replicator.engine.log.block import BlockKind
from replicator.engine.log.commit.publishing import topic_terminated
from replicator.engine.log.requests import Answer
from replicator.engine.log.writer import CopiedBlock, Extent, Tail, Writer
from replicator.engine.policies import QuotaPolicy
from replicator.engine.producing.publish_order import OrderTicket
from replicator.engine.producing.publishing import PublishGate, check_entries
from replicator.engine.producing.traced_entries import choose
from replicator.tracing.notes import CarriedNotes
from replicator.tracing.tracing import Tracing
from snapshots.position import Position


class PublishingProducer(Protocol):
    """Interface of a connected producer for writing."""

    name: str
    figures: ClientFigures

    def check_open(self) -> None:
        """Raise an error if the producer may not publish any more, which says why."""


class TopicWriting:
    """Appends to one topic. ``check_there`` raises an error while the topic is being deleted."""

    __slots__ = ("_admission", "_check_there", "_policies", "_tracing", "_writer", "gate", "tail")

    def __init__(
        self,
        tail: Tail,
        writer: Writer,
        gate: PublishGate,
        policies: LayeredPolicies,
        admission: Admission,
        check_there: Callable[[], None],
        tracing: Tracing | None = None,
    ) -> None:
        self.tail = tail
        """Tail of the log. It belongs to the writer and is only passed on."""
        self.gate = gate
        """Gate that holds or refuses publishes."""
        self._writer = writer
        self._policies = policies
        self._admission = admission
        self._check_there = check_there
        self._tracing = tracing

    async def publish(
        self, entries: Sequence[bytes], producer: PublishingProducer | None = None, turn: OrderTicket | None = None
    ) -> list[Position]:
        """Append entries of producers, and return their positions when they are durable (invariant 1); ``DUPLICATE``
        for duplicates.

        Wait while the backlog's quota holds publishes. With ``turn``, refuse the entries if earlier ones of the
        producer were refused. Raises :class:`EntryCorrupt`, :class:`MessageTooLarge`, :class:`NotAllowedError`,
        :class:`BacklogQuotaExceeded` (then none was appended), and the store's errors.
        """
        if turn is None:
            return await self._publish(entries, producer, None)
        if turn.refusal is not None:
            raise turn.refusal.with_traceback(None)
        try:
            return await self._publish(entries, producer, turn)
        except EngineError as error:
            turn.refused(error)
            raise

    def begin_publish(
        self, entries: Sequence[bytes], producer: PublishingProducer, turn: OrderTicket, answer: Answer
    ) -> bool:
        """Begin :meth:`publish`; ``answer`` receives its result. Return False if the caller must use :meth:`publish`.

        That is the case if the call would have to wait or is refused, or if publishes are traced.
        """
        if turn.refusal is not None or not self.gate.open or self._tracing is not None:
            return False
        try:
            checked = check_entries(entries, self._policies.effective, producer.name)
            self._admission.check_producer()
        except EngineError:
            return False
        if checked.only is not None or checked.size_bytes > self._admission.entry_bytes_max:
            return False
        begun = self._writer.begin_publish(
            self.tail, entries, checked.batch_sizes, checked.size_bytes, checked.numbered, turn, answer
        )
        if begun:
            producer.figures.messages += sum(checked.batch_sizes)
            producer.figures.bytes += checked.size_bytes
        return begun

    async def _publish(
        self, entries: Sequence[bytes], producer: PublishingProducer | None, turn: OrderTicket | None
    ) -> list[Position]:
        checked = check_entries(entries, self._policies.effective, None if producer is None else producer.name)
        if checked.size_bytes > self._admission.entry_bytes_max:  # seldom, even of all together
            self._admission.check_entry(max(map(len, entries)))
        only = None if checked.only is None else self.only(checked.only)
        self._admission.check_producer()
        publication = None
        if self._tracing is not None and (chosen := choose(self._tracing, entries, checked.batch_sizes)):
            publication = self._tracing.publication(self.tail.name, chosen)
        try:
            if not self.gate.open:
                await self.gate.enter(checked.size_bytes, producer)
                self._admission.check_producer()
                if producer is not None:
                    producer.check_open()
            if producer is not None:
                producer.figures.messages += sum(checked.batch_sizes)
                producer.figures.bytes += checked.size_bytes
            noted = None if publication is None else publication.durable
            return await self._writer.publish(
                self.tail, BlockKind.MESSAGES, entries, checked.batch_sizes, checked.numbered, turn, only, noted
            )
        except EngineError as error:
            if publication is not None:
                publication.refused(str(error))
            raise

    async def marker(
        self, entry: bytes, *, local: bool = False, noted: Callable[[Sequence[Position]], None] | None = None
    ) -> Position:
        """Append one marker. Links do not carry a ``local`` one.

        ``noted`` receives its position before anybody learns of the block.
        """
        kind = BlockKind.LOCAL_MARKERS if local else BlockKind.MARKERS
        (position,) = await self._writer.publish(self.tail, kind, [entry], [0], noted=noted)
        return position

    async def copy(
        self,
        blocks: Sequence[CopiedBlock],
        notes: Sequence[CarriedNotes] = (),
        writes: Sequence[tuple[str, bytes, bytes | None]] = (),
    ) -> list[Extent]:
        """Append blocks of other clusters exactly once (invariant 2), and return the new extents.

        ``notes`` say which of their messages are traced. ``writes`` are rows that are set, or with None deleted, in the
        same transaction. Raises :class:`BlockCorrupt`, :class:`CopyGap` or :class:`IncarnationMismatch`; then none was
        appended.
        """
        numbered = self._policies.effective.deduplication
        copying = self._writer.copy(self.tail, blocks, numbered=numbered, writes=writes)
        if not notes or self._tracing is None:
            return await copying
        with self._tracing.appending(self.tail.name, notes):
            return await copying

    def begin_copy(self, blocks: Sequence[CopiedBlock]) -> asyncio.Future[list[Extent]] | None:
        """Begin :meth:`copy` of blocks that are not traced, and return the future of its result.

        Return None if the caller must use :meth:`copy`, because the call would have to wait or is refused.
        """
        return self._writer.begin_copy(self.tail, blocks, numbered=self._policies.effective.deduplication)

    def only(self, named: frozenset[str]) -> frozenset[str]:
        """Return the clusters that may have the entries, as :meth:`Admission.only` does."""
        return self._admission.only(self.tail.name, named)

    def knows_of(self, named: frozenset[str]) -> bool:
        """Return whether the clusters are known, as :meth:`Admission.knows_of` does."""
        return self._admission.knows_of(named)

    def check_takes(self) -> None:
        """Raise the error that says why publishes are refused. Do not raise if they are only held."""
        self._check_there()
        if self.tail.terminated:
            raise topic_terminated(self.tail.name)
        self._admission.check_producer()
        self.gate.check()

    async def admit(self, size_bytes: int) -> None:
        """Check and wait as :meth:`publish` does before it appends. Use it before writing by :attr:`tail` for several
        topics.

        It refuses while the topic is being deleted or the cluster is fenced. While the backlog is over its quota it
        refuses or holds.
        """
        self._check_there()
        self._admission.check_producer()
        if not self.gate.open:
            await self.gate.enter(size_bytes)
            self._check_there()
            self._admission.check_producer()

    @property
    def quota_exceeded(self) -> QuotaPolicy | None:
        """Policy that applies to publishes while the backlog is over its quota; None while it is not."""
        return self.gate.policy

    @quota_exceeded.setter
    def quota_exceeded(self, policy: QuotaPolicy | None) -> None:
        self.gate.policy = policy
