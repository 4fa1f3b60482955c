"""Opening of delivered entries into messages, when the application takes the first of them.

This module owns the incomplete chunked messages of a consumer. Chunks and entries that never become a message are
acknowledged if the user asked for it or nothing else can be done; otherwise they are asked for again after the negative
acknowledgement delay.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from pyroaring import BitMap

from replicator.client.chunking import Assembled, Chunk, ChunkAction, ChunkAssembler, DiscardedChunks
from replicator.client.errors import DecryptionFailed, InvalidMessage
from replicator.client.message import Message, Opening, messages_as_unpacked
from replicator.client.producing.encryption import ConsumerCryptoFailureAction
from replicator.client.settings import ConsumerSettings
from replicator.engine.types import Delivery
from replicator.running.limited_log import LimitedLog
from snapshots.position import Position

_log = logging.getLogger(__name__)
_LIMITED = LimitedLog(
    tell=lambda left_out: _log.warning("%s: %d more lines: %s", left_out.source, left_out.lines, left_out.event)
)
"""Limits lines about single messages: a topic may hold many that never become complete."""

ReleaseCallback = Callable[[Sequence[Position]], None]


class EntryOpener:
    """Opener that turns the entries of one consumer into messages."""

    def __init__(
        self,
        settings: ConsumerSettings,
        partition: int,
        opening: Opening,
        *,
        acknowledge: ReleaseCallback,
        reject: ReleaseCallback,
    ) -> None:
        self._topic = settings.topic
        self._partition = partition
        self._opening = replace(opening, on_chunk=self._on_chunk)
        self._acknowledge = acknowledge
        self._reject = reject
        self._loop = asyncio.get_running_loop()
        self._chunks = ChunkAssembler(
            pending_max=settings.max_pending_chunked_message,
            expire_after_ms=settings.expire_time_of_incomplete_chunked_message_ms,
            acknowledge_oldest=settings.auto_ack_oldest_chunked_message_on_queue_full,
        )
        self._timer: asyncio.TimerHandle | None = None
        self._chunked: dict[Position, tuple[Position, ...]] = {}
        """Positions of all chunks of each complete, unacknowledged chunked message, by the position of its last
        chunk."""

    @property
    def unpacks_in_thread(self) -> bool:
        """Whether entries are decompressed elsewhere, so that :meth:`open` may yield None."""
        return self._opening.unpack is not None

    def open(
        self, delivery: Delivery, skip: BitMap | None, ready: Callable[[], None] | None = None
    ) -> Iterator[Message | None]:
        """Yield the messages of an entry, without the indexes in ``skip``. Raises :class:`InvalidMessage`.

        It yields None while the entry is decompressed elsewhere: ask again when ``ready`` was called.
        """
        opening = self._opening if ready is None else replace(self._opening, ready=ready)
        messages = messages_as_unpacked(delivery, self._topic, self._partition, skip, opening)
        if self._opening.crypto_failure_action is ConsumerCryptoFailureAction.DISCARD:
            return self._skip_undecryptable(messages, delivery)
        return messages

    def _skip_undecryptable(self, messages: Iterator[Message | None], delivery: Delivery) -> Iterator[Message | None]:
        try:
            yield from messages
        except DecryptionFailed as error:
            if _LIMITED.may_log("acknowledged without being shown", self._topic):
                _log.warning("%s: acknowledged without being shown: %s", self._topic, error)
            self._acknowledge((delivery.position,))

    def entries_of(self, position: Position) -> tuple[Position, ...]:
        """Return the positions of all entries that hold the message whose id has ``position``."""
        return self._chunked.get(position, (position,))

    def forget(self, position: Position) -> None:
        """Forget the chunks of the message at ``position``, which is acknowledged or comes again."""
        self._chunked.pop(position, None)

    def forget_through(self, position: Position) -> None:
        """Forget the chunks of all messages up to ``position``, which are acknowledged."""
        for last in [last for last in self._chunked if last <= position]:
            del self._chunked[last]

    def clear(self) -> None:
        """Forget everything: all unacknowledged messages come again, or none."""
        self._chunked.clear()
        self._chunks.clear()
        self._set_timer()

    def _on_chunk(self, chunk: Chunk) -> Assembled | None:
        assembled, missing = self._run(self._chunks.add(chunk, _now_ms()))
        self._set_timer()
        if assembled is not None:
            self._chunked[assembled.positions[-1]] = assembled.positions
        elif missing is not None:
            raise missing
        return assembled

    def _run(self, actions: Iterable[ChunkAction]) -> tuple[Assembled | None, InvalidMessage | None]:
        assembled: Assembled | None = None
        missing: InvalidMessage | None = None
        for action in actions:
            match action:
                case Assembled():
                    assembled = action
                case DiscardedChunks(positions, error, acknowledge=True):
                    if _LIMITED.may_log("acknowledged without being shown", self._topic):
                        _log.warning("%s: acknowledged without being shown: %s", self._topic, error)
                    self._acknowledge(positions)
                case DiscardedChunks(positions, error):
                    if _LIMITED.may_log("asked for again", self._topic):
                        _log.warning("%s: asked for again: %s", self._topic, error)
                    self._reject(positions)
                    missing = error
        return assembled, missing

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        deadline_ms = self._chunks.deadline_ms
        if deadline_ms is not None:
            self._timer = self._loop.call_later(max(0, deadline_ms - _now_ms()) / 1000, self._expire)

    def _expire(self) -> None:
        self._run(self._chunks.expire(_now_ms()))
        self._set_timer()


def _now_ms() -> int:
    """Return the monotonic time in milliseconds. Changes of the wall clock do not alter how long chunks wait."""
    return time.monotonic_ns() // 1_000_000
