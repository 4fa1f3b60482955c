"""Assignments of hashes to consumers of Key_Shared subscriptions: from workers, or as equal slots. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from replicator.engine.subscriptions.key_shared.hashing import HASH_SPACE, SLOTS

SUPPOSED_CONSUMERS: Final = 4
"""Number of equal slots that a topic is cut into if no Key_Shared consumer runs."""

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Assignment:
    """Ranges of hashes of one subscription, ascending and disjoint, each of one consumer.

    Hashes count modulo ``hash_space``; ``owner`` has the index in ``consumers`` for each range.
    """

    cluster: str
    topic: str
    subscription: str
    consumers: tuple[str, ...]
    hash_space: int
    start: tuple[int, ...]
    end: tuple[int, ...]
    """Last hash of each range."""
    owner: tuple[int, ...]
    running: bool = True
    """False for equal slots, which are assumed because no consumer runs."""

    @classmethod
    def equal_slots(cls, cluster: str, topic: str, consumers: int = SUPPOSED_CONSUMERS) -> Self:
        """Return an assignment as if ``consumers`` consumers shared the slots evenly."""
        borders = [SLOTS * number // consumers for number in range(consumers + 1)]
        return cls(
            cluster,
            topic,
            f"({consumers} equal slots)",
            tuple(f"slot {number + 1}" for number in range(consumers)),
            SLOTS,
            tuple(borders[:-1]),
            tuple(border - 1 for border in borders[1:]),
            tuple(range(consumers)),
            running=False,
        )

    def owners(self, hashes: Int64s) -> Int64s:
        """Return, for each 32-bit hash, the index of the consumer that has it; -1 if none has it."""
        if not self.start:
            return np.full(len(hashes), -1, dtype=np.int64)
        places = hashes % self.hash_space
        nearest = np.searchsorted(np.array(self.start), places, side="right") - 1
        inside = (nearest >= 0) & (places <= np.array(self.end)[nearest])
        return np.where(inside, np.array(self.owner, dtype=np.int64)[nearest], -1)


def running_assignments(cluster: str, status: Mapping[str, Any]) -> Iterator[Assignment]:
    """Yield the assignments of one worker's consumers, from its ``GET /replication/v1/status``."""
    for topic in status.get("topics", ()):
        for subscription in topic.get("subscriptions", ()):
            consumers = [each for each in subscription.get("consumers", ()) if "key_hash_ranges" in each]
            ranges = sorted(
                (start, end, number)
                for number, consumer in enumerate(consumers)
                for start, end in consumer["key_hash_ranges"]
            )
            if not ranges:
                continue
            # Consumers of one name share the ranges that a ring gives to that name: all counts for the first of them.
            distinct = list({start: (start, end, number) for start, end, number in reversed(ranges)}.values())[::-1]
            starts, ends, owners = zip(*distinct, strict=True)
            yield Assignment(
                cluster,
                topic["name"],
                subscription["name"],
                tuple(str(consumer["name"]) for consumer in consumers),
                HASH_SPACE if subscription.get("key_assignment") in _RINGS else SLOTS,
                starts,
                ends,
                owners,
            )


def with_slots_elsewhere(
    running: Iterable[Assignment], topics: Iterable[tuple[str, str]], consumers: int = SUPPOSED_CONSUMERS
) -> list[Assignment]:
    """Return ``running``, and equal slots for the (cluster, topic) pairs without a running consumer."""
    found = list(running)
    having = {(each.cluster, each.topic) for each in found}
    return found + [Assignment.equal_slots(*pair, consumers) for pair in topics if pair not in having]


_RINGS: Final = frozenset({"consistent-hashing"})
"""Ways of assigning keys that divide the whole ring of hashes, not slots."""
