"""Load-aware ranges: a newcomer relieves the busiest consumer, a leaver's keys go to its less busy neighbour.

It makes invariant 3 of DESIGN §3 possible: each slot has one owner, and a change affects one other consumer only.

1. The first consumer owns slots 0..65535.
2. Each consumer's load is the number of messages dispatched to it in the last :data:`WINDOW_SECONDS`, in buckets of
   :data:`BUCKET_SECONDS`. The time is that of the latest dispatch to any consumer, so without dispatches loads stay.
3. A newcomer takes the upper half of the range of the busiest consumer that has two slots or more; among equally busy
   ones of the largest range, then of the lowest. Half of the load moves along, as an estimate for the moved keys.
   Otherwise all newcomers of one second would halve the range of the same consumer again and again.
4. A leaver's range and its load go to the less busy neighbour; of equally busy ones to the one with the smaller range,
   then to the right one.

Balance: a join never raises the highest load, and halves that of the consumer it relieves, to within one message a
bucket (by estimate; measurements replace it within a window). Without load it is as in
:mod:`~replicator.engine.subscriptions.key_shared.hash_range`: after j joins since the last leave no range has more than
``2 * (65536 // j) + 1`` slots. One hot key cannot be split: it ends up in a range of a single slot, and then the next
busiest is relieved.

Source: seed 001 (there "Key_Failover").
"""

from __future__ import annotations

from typing import Final

from replicator.engine.errors import InvalidHashRanges
from replicator.engine.subscriptions.key_shared.hashing import SLOTS
from replicator.engine.subscriptions.key_shared.tiling import RangeMap, refuse_sticky_ranges
from replicator.engine.types import KeySharedPolicy

BUCKET_SECONDS: Final = 1.0
"""Length of a bucket, in which load is forgotten: a tenth of the window."""
BUCKETS: Final = 10
WINDOW_SECONDS: Final = BUCKET_SECONDS * BUCKETS
"""Time over which load is measured. It is so long that one large batch does not make a consumer the busiest. It is so
short that in a rolling deployment, with a join every few seconds, each join sees the effect of the joins before."""


class LoadAwareSelector(RangeMap):
    """Implements :class:`~replicator.engine.subscriptions.key_shared.selector.KeySelector`."""

    def __init__(self) -> None:
        super().__init__()
        # For each consumer its window: messages by bucket number modulo BUCKETS.
        self._sent: dict[int, list[int]] = {}
        self._bucket = 0

    def add(self, consumer_id: int, name: str, policy: KeySharedPolicy) -> None:
        """Add a consumer. Raise :class:`InvalidHashRanges` if it has sticky ranges, or is the 65,537th."""
        refuse_sticky_ranges(name, policy)
        if not self._owners:
            self._first(consumer_id)
            self._sent[consumer_id] = [0] * BUCKETS
            return
        index = max(range(len(self._owners)), key=self._load_key)
        if self._size(index) == 1:
            raise InvalidHashRanges(
                f"consumer {name!r} cannot get hash slots of this Key_Shared subscription, because each of its {SLOTS} "
                "has its own consumer: close another consumer first"
            )
        relieved = self._sent[self._owners[index]]
        self._sent[consumer_id] = [messages // 2 for messages in relieved]
        relieved[:] = [messages - messages // 2 for messages in relieved]
        self._split(index, consumer_id, newcomer_is_lower=False)

    def remove(self, consumer_id: int) -> None:
        """Remove a consumer. Its range goes to the less busy neighbour."""
        index = self._owners.index(consumer_id)
        sent = self._sent.pop(consumer_id)
        neighbours = [other for other in (index + 1, index - 1) if 0 <= other < len(self._owners)]
        heir = min(neighbours, key=lambda other: (self._load(other), self._size(other)), default=index)
        if neighbours:
            inherited = self._sent[self._owners[heir]]
            inherited[:] = [mine + its for mine, its in zip(inherited, sent, strict=True)]
        self._merge(index, into_right=heir > index)

    def record(self, consumer_id: int, messages: int, now_seconds: float) -> None:
        """Count dispatched messages. A time before the latest one counts as the latest."""
        bucket = int(now_seconds // BUCKET_SECONDS)
        if bucket > self._bucket:
            self._advance(bucket)
        self._sent[consumer_id][self._bucket % BUCKETS] += messages

    def loads(self) -> dict[int, float]:
        """Return each consumer's dispatch rate over the window, in messages per second."""
        return {consumer_id: sum(sent) / WINDOW_SECONDS for consumer_id, sent in self._sent.items()}

    def _load_key(self, index: int) -> tuple[bool, int, int]:
        """Return a sort key: the consumer at ``index`` with the highest one needs relief most."""
        size = self._size(index)
        return size > 1, self._load(index), size

    def _load(self, index: int) -> int:
        """Return the number of messages dispatched to the consumer at ``index`` within the window."""
        return sum(self._sent[self._owners[index]])

    def _advance(self, bucket: int) -> None:
        """Empty the buckets between the last one and ``bucket``, whose old counts are out of the window."""
        stale = [(self._bucket + 1 + step) % BUCKETS for step in range(min(bucket - self._bucket, BUCKETS))]
        for sent in self._sent.values():
            for index in stale:
                sent[index] = 0
        self._bucket = bucket
