"""Partitioned topics: their names and numbers of partitions, and checks of new ones.

A partitioned topic is a name and a number; its partitions are topics of their own, named ``NAME-partition-0`` and so
on. Invariant: a name is a plain topic or a partitioned one, never both, and a partition's index is below the number.

The number is stored before the partitions are created. So a worker that was killed in between knows that some are
missing. Creating the topic again with the same number creates the rest.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from replicator.engine.errors import InvalidPartitions, NotAllowedError
from replicator.engine.log.store import Store
from replicator.engine.topic_name import TOPIC_NAME_BYTES_MAX, TopicName, parse_topic

TABLE: Final = "partitioned"
PARTITIONS_MAX: Final = 10_000
"""Limit of partitions of one topic. Each is a log with its own cursors, which takes some kB of memory."""
SUFFIX: Final = "-partition-"
INDEX_DIGITS_MAX: Final = 6


@dataclass(frozen=True, slots=True)
class PartitionedTopic:
    """A partitioned topic: its full name and its number of partitions."""

    name: str
    partitions: int
    known: Mapping[str, int] = field(default_factory=dict, compare=False)
    """Earlier deletions of the name that were known when this topic was made: by cluster, the id of the newest one. A
    deletion with a higher id is one of this topic, or of a later one."""

    def partition(self, index: int) -> str:
        """Return the full name of one partition."""
        assert 0 <= index < self.partitions
        return f"{self.name}{SUFFIX}{index}"

    def encode(self) -> bytes:
        return json.dumps(
            {"partitions": self.partitions} | ({"known": dict(self.known)} if self.known else {})
        ).encode()

    @classmethod
    def decode(cls, name: str, stored: bytes) -> PartitionedTopic:
        row = json.loads(stored)
        return cls(name, row["partitions"], row.get("known", {}))


def load_partitioned(store: Store) -> dict[str, PartitionedTopic]:
    """Return all partitioned topics by full name."""
    with store.env.begin(db=store.tables[TABLE]) as txn:
        return {
            (name := bytes(key).decode()): PartitionedTopic.decode(name, bytes(value)) for key, value in txn.cursor()
        }


def partition_of(name: str, partitioned: Mapping[str, PartitionedTopic]) -> PartitionedTopic | None:
    """Return the partitioned topic to which the topic ``name`` belongs, or None if it is no partition."""
    base, separator, index = name.rpartition(SUFFIX)
    whole = partitioned.get(base) if separator else None
    if whole is None or not index.isdecimal() or index != str(int(index)) or int(index) >= whole.partitions:
        return None
    return whole


def base_name(name: str) -> str:
    """Return the partitioned topic's name for the full name of a partition, and "" for that of any other topic.

    It agrees with :attr:`TopicName.partition`: ``orders-partition-archive`` is no partition of ``orders``.
    """
    base, _, index = name.rpartition(SUFFIX)
    is_partition = index.isdecimal() and len(index) <= INDEX_DIGITS_MAX and base.rpartition("/")[2] not in ("", ".")
    return base if is_partition else ""


def check_new(name: str, partitions: int) -> PartitionedTopic:
    """Return a new partitioned topic. Raise :class:`InvalidTopicName`, :class:`InvalidPartitions` or
    :class:`NotAllowedError` if it is invalid."""
    parsed = parse_topic(name)
    if not 1 <= partitions <= PARTITIONS_MAX:
        raise InvalidPartitions(f"topic {parsed} can have 1 to {PARTITIONS_MAX} partitions, not {partitions}")
    if parsed.partition >= 0:
        raise NotAllowedError(
            f"{parsed} is the name of a partition; a partitioned topic cannot have it: take one that does not end in "
            "-partition- and a number"
        )
    made = PartitionedTopic(str(parsed), partitions)
    if len(made.partition(partitions - 1)) > TOPIC_NAME_BYTES_MAX:
        raise NotAllowedError(
            f"the partitions of {parsed} would have names longer than {TOPIC_NAME_BYTES_MAX} bytes: take a shorter name"
        )
    return made


def check_plain(name: TopicName, partitioned: Mapping[str, PartitionedTopic]) -> None:
    """Raise :class:`NotAllowedError` if ``name`` cannot have a log: it is partitioned, or is no valid partition of a
    partitioned topic."""
    if (whole := partitioned.get(str(name))) is not None:
        raise NotAllowedError(
            f"{name} has {whole.partitions} partitions and no log of its own: use {whole.partition(0)} and so on"
        )
    if name.partition >= 0:
        base = base_name(str(name))
        if (whole := partitioned.get(base)) is not None and str(name) != f"{base}{SUFFIX}{name.partition}":
            raise NotAllowedError(f"{name} is not a partition of {base}: its index has zeros in front")
        if whole is not None and name.partition >= whole.partitions:
            raise NotAllowedError(f"{name} is not a partition of {base}, which has {whole.partitions} of them")
