"""Shared part of transferring a link's blocks, used by the link's worker and by the plans for Spark."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

from replicator.engine.engine import Engine
from replicator.engine.errors import StoreFull
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
"""Longest time for which a topic stays halted after its cause is gone, such as an old copy that was deleted."""
RETRY_SECONDS_MIN: Final = 0.05
RETRY_SECONDS_MAX: Final = 1.0
FULL_RETRY_SECONDS_MAX: Final = 10.0
"""Longest pause after the destination said that it is full. Each try asks for the marks of all topics, and compares
them."""

_RETRY_WHOLE: Final = frozenset({"StoreFull", "StoreFailed", "TooBusy"})
"""Codes of refusals that concern the whole destination: it takes nothing now.

Other refusals halt their topic. It starts again once the destination was asked what it has: perhaps the topic is being
deleted there, the destination has not read its new topology yet, or a damaged block was mended."""


class TransferMethod(Protocol):
    """Way to transfer blocks: :class:`~replicator.links.frame_sender.FrameSender` does it in the worker.

    :class:`~replicator.links.planner.Planner` gives out plans instead.
    """

    def loops(self, transport: HttpTransport) -> Iterable[Coroutine[Any, Any, None]]:
        """Return the loops that run while the link is connected. If one fails, the link connects again."""

    def wake(self) -> None:
        """Wake the loops: there is something to copy or to announce."""


class Transfer:
    """Transfer of one link's blocks. ``on_state`` is called when its state or detail changes."""

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
        """Number of failures since the link last made progress."""
        self.state = "connecting"
        self.detail = ""
        self._on_state = on_state
        self._published_ms: int | None = None
        """Time at which the oldest block was published that was chosen since the last frame."""

    def set_state(self, state: str, detail: str) -> None:
        if (state, detail) != (self.state, self.detail):
            self.state, self.detail = state, detail
            self._on_state()

    def pause_seconds(self, error: BaseException | None) -> float:
        """Count a failure by ``error``, and return the pause before the next try. It grows with the failures since the
        link last made progress."""
        self.failures += 1
        is_full = isinstance(error, PeerRefused) and error.code == StoreFull.code
        longest = FULL_RETRY_SECONDS_MAX if is_full else RETRY_SECONDS_MAX
        pause = min(longest, RETRY_SECONDS_MIN * 2.0 ** min(self.failures, 16))
        return pause * random.uniform(0.5, 1.0)

    def choose(self, topic: Topic, headers: Sequence[BlockHeader]) -> tuple[list[tuple[int, Send]], bool]:
        """Return the blocks to carry, by index, and whether a gap follows them.

        A block that is not for the destination is replaced by a note.
        """
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
        """Record that a frame with the chosen blocks was sent. Return its number."""
        published_ms, self._published_ms = self._published_ms, None
        return self.copier.on_sent(size_bytes, lane=lane, published_ms=published_ms)

    def acknowledged(self, number: int | None = None) -> None:
        """Record that the destination has frame ``number``. Without a number, it is the oldest frame in flight."""
        published_ms = self.copier.published_ms(number)
        self.topics.reached(self.copier.on_acknowledged(number))
        if published_ms is not None:
            writer = self.engine.writer
            copies = writer.latencies.copy[self.topics.destination, self.topics.link_key]
            copies.observe((writer.wall_clock_ms() - published_ms) / 1000)

    def refused(self, refusals: Mapping[str, tuple[str, str]], frame: int | None = None) -> None:
        """Record that the destination refused topics of a frame in flight. Without ``frame``, it is the oldest one.

        Raises :class:`PeerRefused` if the destination takes nothing at all.
        """
        for topic, (code, message) in refusals.items():
            if code in _RETRY_WHOLE:
                raise PeerRefused(code, message)
            if not self.copier.is_stale(topic, frame):
                self.topics.refused(topic, f"{code}: {message}", seconds_max=SETTLE_SECONDS)

    async def announce(self, transport: HttpTransport) -> None:
        """Tell the destination what must be there before the blocks that are read next: partitions and schemas."""
        await self.partitions.announce(transport)
        await self.schemas.announce(transport)

    async def announce_first_blocks(self, topics: Iterable[str], transport: HttpTransport) -> None:
        """Announce partitions and schemas before a frame with which ``topics`` begin at the destination.

        The topics may have been deleted there, with their numbers of partitions. A schema may have been registered
        while the frame was read.
        """
        for topic in topics:
            if parse_topic(topic).partition >= 0:
                self.partitions.messages_follow(base_name(topic))
        await self.announce(transport)
