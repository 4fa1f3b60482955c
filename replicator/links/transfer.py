"""What the transfer of a link's blocks needs, whoever does it: the link's worker, or Spark by its plans."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

from replicator.engine.engine import Engine
from replicator.engine.errors import BlockCorrupt
from replicator.engine.log.block import BlockHeader
from replicator.engine.topic import Topic
from replicator.engine.topic_name import parse_topic
from replicator.engine.topics.partitions import base_name
from replicator.links.copier import Copier, Send
from replicator.links.errors import PeerRefused
from replicator.links.figures import LinkFigures
from replicator.links.gaps import Gap
from replicator.links.link_topics import LinkTopics
from replicator.links.partition_announcer import PartitionAnnouncer
from replicator.links.schema_announcer import SchemaAnnouncer
from replicator.links.token_bucket import TokenBucket
from replicator.links.transport import SILENCE_SECONDS_MAX, HttpTransport

SIGN_OF_LIFE_SECONDS: Final = SILENCE_SECONDS_MAX / 3
SETTLE_SECONDS: Final = 5.0
"""How long a topic stays halted after what halted it is over, such as an old copy that was deleted."""

_RETRY_WHOLE: Final = frozenset({"StoreFull", "StoreFailed", "TooBusy"})
"""Refusals that are of the destination, not of a topic: nothing would be taken now. Others halt their topic."""
_FOR_GOOD: Final = frozenset({BlockCorrupt.code})
"""Refusals of a topic that do not heal. Others may, as when it is being deleted there, or when the destination has not
read its new topology yet: it starts again once the destination was asked what it has."""


class TransferMethod(Protocol):
    """Who transfers the blocks: :class:`~replicator.links.frame_sender.FrameSender` in the worker, or
    :class:`~replicator.links.planner.Planner` by what it hands out."""

    def loops(self, transport: HttpTransport) -> Iterable[Coroutine[Any, Any, None]]:
        """What is to run while the link is connected; it is connected again when one of them fails."""

    def wake(self) -> None:
        """There is something to copy, or to announce."""


class Transfer:
    """Of one link. ``on_state`` is called when its state or detail changes."""

    def __init__(
        self,
        engine: Engine,
        topics: LinkTopics,
        partitions: PartitionAnnouncer,
        schemas: SchemaAnnouncer,
        rate_bytes: int | None,
        on_state: Callable[[], None],
    ) -> None:
        self.engine = engine
        self.topics = topics
        self.copier: Copier = topics.copier
        self.partitions = partitions
        self.schemas = schemas
        self.figures = LinkFigures()
        self.bucket = None if rate_bytes is None else TokenBucket(rate_bytes, time.monotonic())
        self.failures = 0
        """Since the link last made progress."""
        self.state = "connecting"
        self.detail = ""
        self._on_state = on_state
        self._published_ms: int | None = None
        """When the oldest block was published that was chosen since the last frame."""

    def set_state(self, state: str, detail: str) -> None:
        if (state, detail) != (self.state, self.detail):
            self.state, self.detail = state, detail
            self._on_state()

    def choose(self, topic: Topic, headers: Sequence[BlockHeader]) -> tuple[list[tuple[int, Send]], bool]:
        """Which of the blocks that were read are to be carried, by index; and whether a gap comes after them. Of one
        that is not for the destination a note goes in its place."""
        missing, unexpected = self.topics.start_positions.lacking(topic)
        chosen: list[tuple[int, Send]] = []
        for index, header in enumerate(headers):
            before = missing.before(header.origin, header.origin_first)
            if before > (gap_upto := unexpected.before(header.origin, header.origin_first)):
                self.copier.on_filtered(topic.name, header.origin, before, gap_upto)
            send = self.copier.on_block(topic.name, header.origin, header.origin_last, before)
            if isinstance(send, Gap):
                self.topics.found_gap(topic.name, send)
                return chosen, True
            if send is not None:
                if not header.is_for(self.topics.destination):
                    send = Send(send.previous, left_out=True, note=True)
                chosen.append((index, send))
        if chosen:
            published_ms = headers[chosen[0][0]].publish_time_ms
            self._published_ms = min(published_ms, self._published_ms or published_ms)
        return chosen, False

    def sent(self, size_bytes: int, *, lane: int = 0) -> int:
        """A frame of what was chosen is on its way; returns its number."""
        published_ms, self._published_ms = self._published_ms, None
        return self.copier.on_sent(size_bytes, lane=lane, published_ms=published_ms)

    def acknowledged(self, number: int | None = None) -> None:
        """The destination has that frame, the oldest in flight if none is named."""
        published_ms = self.copier.published_ms(number)
        self.topics.reached(self.copier.on_acknowledged(number))
        if published_ms is not None:
            writer = self.engine.writer
            copies = writer.latencies.copy[self.topics.destination, self.topics.link_key]
            copies.observe((writer.wall_clock_ms() - published_ms) / 1000)

    def refused(self, refusals: Mapping[str, tuple[str, str]], frame: int | None = None) -> None:
        """The destination refused these topics of a frame in flight, the oldest if none is named.

        Raises :class:`PeerRefused` where it takes nothing at all.
        """
        for topic, (code, message) in refusals.items():
            if code in _RETRY_WHOLE:
                raise PeerRefused(code, message)
            if not self.copier.outdated(topic, frame):
                again = code not in _FOR_GOOD
                self.topics.refused(topic, f"{code}: {message}", ask_again=again, seconds_max=SETTLE_SECONDS)

    async def announce(self, transport: HttpTransport) -> None:
        """Tell the destination what must be there before the blocks that are read next: partitions and schemas."""
        await self.partitions.announce(transport)
        await self.schemas.announce(transport)

    async def announce_first_blocks(self, topics: Iterable[str], transport: HttpTransport) -> None:
        """A frame was read, and these topics begin with it at the destination. They may have been deleted there, with
        the number of partitions. And its messages may need a schema that was registered while the frame was read."""
        for topic in topics:
            if parse_topic(topic).partition >= 0:
                self.partitions.changed(base_name(topic))
        await self.announce(transport)
