"""Which messages the replicated subscriptions of a topic have acknowledged, evaluated for many rows at once.

One bit a subscription, :data:`SUBSCRIPTIONS_PER_WORD` to a word, so that Spark compares the acknowledgements of two
clusters with one ``xor`` a word, whatever the number of subscriptions. A message is acknowledged if

1. its position is at or before the mark-delete, or
2. in one of the individually deleted ranges, or
3. its batch index is among those acknowledged of its entry.

Pure NumPy: n rows against r ranges cost O(n log r).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from replicator.pipeline.data_plane import SubscriptionState

SUBSCRIPTIONS_PER_WORD: Final = 63
"""A word is Spark's bigint; the sign bit stays out of it."""

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class AckedSet:
    """What one subscription has acknowledged in one topic of one cluster."""

    mark_delete: tuple[int, int]
    ranges: dict[int, tuple[Int64s, Int64s]]
    """For each ledger, the first and the last entries of its disjoint ranges, in order."""
    batch_indexes: dict[int, dict[int, frozenset[int]]]
    """For each ledger, and each of its entries that is acknowledged in part, which indexes."""

    @classmethod
    def of(cls, state: SubscriptionState) -> Self:
        pairs: dict[int, list[tuple[int, int]]] = {}
        for start, end in sorted(state.individually_deleted):
            pairs.setdefault(start.ledger, []).append((start.entry, end.entry))
        bounds = {ledger: np.array(rows, dtype=np.int64) for ledger, rows in pairs.items()}
        batch_indexes: dict[int, dict[int, frozenset[int]]] = {}
        for (ledger, entry), indexes in state.batch_acks.items():
            batch_indexes.setdefault(ledger, {})[entry] = frozenset(indexes)
        ranges = {ledger: (rows[:, 0], rows[:, 1]) for ledger, rows in bounds.items()}
        return cls((state.mark_delete.ledger, state.mark_delete.entry), ranges, batch_indexes)

    def contains(self, ledgers: Int64s, entries: Int64s, batch_indexes: Int64s) -> npt.NDArray[np.bool_]:
        """For each row, whether its message is acknowledged."""
        marked_ledger, marked_entry = self.mark_delete
        acked: npt.NDArray[np.bool_] = (ledgers < marked_ledger) | (
            (ledgers == marked_ledger) & (entries <= marked_entry)
        )
        for ledger in np.unique(ledgers).tolist():
            rows = np.flatnonzero(ledgers == ledger)
            if ledger in self.ranges:
                firsts, lasts = self.ranges[ledger]
                nearest = np.searchsorted(firsts, entries[rows], side="right") - 1
                acked[rows] |= (nearest >= 0) & (entries[rows] <= lasts[nearest])
            if ledger in self.batch_indexes:
                by_entry = self.batch_indexes[ledger]
                # Few entries are acknowledged in part, so looking at each of their messages is cheap.
                for row in rows[np.isin(entries[rows], list(by_entry))].tolist():
                    acked[row] |= int(batch_indexes[row]) in by_entry[int(entries[row])]
        return acked


@dataclass(frozen=True, slots=True)
class AckedSets:
    """The replicated subscriptions of all topics of one cluster, as bits.

    ``names[topic]`` gives each subscription its bit, the same in every cluster; ``sets[topic]`` has None for one
    that does not exist here.
    """

    names: dict[str, tuple[str, ...]]
    sets: dict[str, tuple[AckedSet | None, ...]]

    @property
    def words(self) -> int:
        most = max((len(names) for names in self.names.values()), default=0)
        return -(-most // SUBSCRIPTIONS_PER_WORD)

    def word(
        self, number: int, topics: npt.NDArray[np.object_], ledgers: Int64s, entries: Int64s, batch_indexes: Int64s
    ) -> Int64s:
        """For each row, the bits of the subscriptions of that word which have acknowledged it."""
        bits = np.zeros(len(ledgers), dtype=np.int64)
        for topic in set(topics.tolist()):
            here = np.flatnonzero(topics == topic)
            start = number * SUBSCRIPTIONS_PER_WORD
            for bit, acked in enumerate(self.sets.get(topic, ())[start : start + SUBSCRIPTIONS_PER_WORD]):
                if acked is not None:
                    rows = acked.contains(ledgers[here], entries[here], batch_indexes[here])
                    bits[here] |= rows.astype(np.int64) << bit
        return bits

    def named(self, topic: str, words: Sequence[int]) -> list[str]:
        """The subscriptions whose bits are set."""
        return [
            name
            for index, name in enumerate(self.names.get(topic, ()))
            if words[index // SUBSCRIPTIONS_PER_WORD] >> index % SUBSCRIPTIONS_PER_WORD & 1
        ]


def acked_sets(states: Mapping[str, Mapping[str, Sequence[SubscriptionState]]]) -> dict[str, AckedSets]:
    """Give each subscription that is replicated in some cluster its bit; ``states[cluster][topic]`` goes in.

    A subscription of the same name that is there but not marked as replicated counts with the state that it has.
    """
    replicated: dict[str, set[str]] = {}
    for topics in states.values():
        for topic, subscriptions in topics.items():
            names = replicated.setdefault(topic, set())
            names.update(subscription.name for subscription in subscriptions if subscription.replicated)
    bits = {topic: tuple(sorted(names)) for topic, names in replicated.items()}
    sets: dict[str, AckedSets] = {}
    for cluster, topics in states.items():
        of_cluster = {}
        for topic, subscriptions in topics.items():
            here = {subscription.name: AckedSet.of(subscription) for subscription in subscriptions}
            of_cluster[topic] = tuple(here.get(name) for name in bits[topic])
        sets[cluster] = AckedSets(bits, of_cluster)
    return sets
