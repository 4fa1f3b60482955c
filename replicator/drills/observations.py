"""Record of events that producers and consumers saw during a drill, in compact columns.

This module owns the record and nothing that is derived from it (:mod:`replicator.drills.measures` does that). One drill
records about ten events for each message. So each kind of event is a table of typed arrays, and names (clusters,
subscriptions, consumers) are small codes.

Every message has an id, 0, 1, 2, … in the order in which it is published; it travels in the message property
:data:`DRILL_ID_PROPERTY`. Times are seconds of one clock for the whole drill, such as ``time.monotonic()``.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from replicator.engine.types import SubscriptionType
from snapshots.position import Position

DRILL_ID_PROPERTY: Final = "drill-id"

Column = npt.NDArray[Any]
_NUMPY_OF: Final = {"q": np.int64, "Q": np.uint64, "i": np.int32, "d": np.float64}


class ForeignMessage(Exception):
    """A message without a valid drill id: something else publishes into the drill's topic."""


def drill_id_property(message_id: int) -> dict[str, str]:
    """Return the property that carries the id of a message."""
    return {DRILL_ID_PROPERTY: str(message_id)}


def drill_id_of(properties: Mapping[str, str]) -> int:
    """Return the id in the properties of a received message. Raise :class:`ForeignMessage` if they have none."""
    text = properties.get(DRILL_ID_PROPERTY, "")
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise ForeignMessage(
            f"a message of the drill's topic is without a valid property {DRILL_ID_PROPERTY!r} ({text[:40]!r}): "
            "others publish there too; give the drill a namespace of its own"
        )
    return int(text)


@dataclass(frozen=True, slots=True)
class DrillSubscription:
    """A subscription under test."""

    name: str
    type: SubscriptionType
    cumulative: bool
    """Whether the consumers of the subscription acknowledge cumulatively."""

    @property
    def ordered(self) -> bool:
        """Return whether messages arrive in order by key: one consumer gets all of them, or all of a key."""
        return self.type is not SubscriptionType.SHARED


class FailoverKind(Enum):
    """Way in which clients were moved from one cluster to another, and the reason."""

    KILL = "kill"
    PARTITION = "partition"
    """The clients' cluster could not reach the others, and clients left it during that time."""
    MOVE = "move"
    """Clients moved while nothing was broken. Neither cluster was told before."""
    PLANNED = "planned"

    @property
    def planned(self) -> bool:
        return self is FailoverKind.PLANNED


_KINDS: Final = tuple(FailoverKind)


class Place(NamedTuple):
    """Position of a message in one cluster. Whole entries are from index :data:`FIRST_INDEX` to :data:`LAST_INDEX`.

    A message that is alone in its entry has index -1.
    """

    ledger: int
    entry: int
    batch_index: int


FIRST_INDEX: Final = -1
LAST_INDEX: Final = 2**31 - 1


class Table:
    """Table of the events of one kind: typed columns of equal length, to which rows are appended."""

    __slots__ = ("_columns", "_names")

    def __init__(self, **types: str) -> None:
        self._names = tuple(types)
        self._columns: tuple[array[Any], ...] = tuple(array(typecode) for typecode in types.values())

    def __len__(self) -> int:
        return len(self._columns[0])

    def append(self, *row: float) -> None:
        for column, value in zip(self._columns, row, strict=True):
            column.append(value)

    def extend(self, count: int, *columns: Sequence[float] | float) -> None:
        """Append ``count`` rows: for each column its values, or the one value of all of them."""
        for column, values in zip(self._columns, columns, strict=True):
            if isinstance(values, Sequence):
                assert len(values) == count
                column.extend(values)
            else:
                column.extend(array(column.typecode, [values]) * count)

    def column(self, name: str) -> Column:
        """Return a copy of a column, so that recording can go on."""
        column = self._columns[self._names.index(name)]
        return np.array(column, dtype=_NUMPY_OF[column.typecode])


class Names:
    """Codes 0, 1, 2, … for names, in the order in which they first appear."""

    __slots__ = ("_codes",)

    def __init__(self) -> None:
        self._codes: dict[str, int] = {}

    def code(self, name: str) -> int:
        return self._codes.setdefault(name, len(self._codes))

    def __len__(self) -> int:
        return len(self._codes)

    def __iter__(self) -> Iterator[str]:
        return iter(self._codes)


class Receipt(NamedTuple):
    """Delivery of one message to a consumer. ``position`` is the position at the origin."""

    message_id: int
    origin: str
    position: Position
    batch_index: int
    redelivery_count: int


_POSITION: Final = {"ledger": "Q", "entry": "q"}
_FIRST: Final = {"first_ledger": "Q", "first_entry": "q", "first_index": "i"}
_LAST: Final = {"last_ledger": "Q", "last_entry": "q", "last_index": "i"}
_ORIGIN_POSITION: Final = {"origin_ledger": "Q", "origin_entry": "q", "batch_index": "i"}


class Observations:
    """Record of one drill. One thread or asyncio loop appends to it. Columns are read when the drill is over."""

    def __init__(self, subscriptions: tuple[DrillSubscription, ...], topics: int = 1) -> None:
        """Begin with no observations.

        ``subscriptions`` are all subscriptions under test, so that one that receives nothing is noticed. ``topics`` is
        the number of topics. Each topic has all subscriptions.
        """
        assert len({subscription.name for subscription in subscriptions}) == len(subscriptions)
        self.subscriptions = subscriptions
        self.topics = topics
        self._subscription_codes = {each.name: code for code, each in enumerate(subscriptions)}
        self.clusters = Names()
        self.keys = Names()
        self.consumers = Names()
        self.messages = Table(key="q", topic="i")
        self.sends = Table(id="q", time_s="d")
        self.confirms = Table(id="q", cluster="i", **_POSITION, batch_index="i", time_s="d")
        self.receipts = Table(
            subscription="i",
            consumer="i",
            cluster="i",
            id="q",
            origin="i",
            **_ORIGIN_POSITION,
            redelivery_count="q",
            time_s="d",
        )
        self.acks = Table(subscription="i", cluster="i", id="q", time_s="d")
        self.copies = Table(cluster="i", id="q", **_POSITION, batch_index="i", time_s="d")
        self.covers = Table(subscription="i", topic="i", cluster="i", **_FIRST, **_LAST, time_s="d")
        self.failovers = Table(kind="i", cluster="i", to="i", cut_s="d", time_s="d")
        self.returns = Table(cluster="i", time_s="d")
        self.high_waters = Table(failover="i", topic="i", cluster="i", **_POSITION)
        self.taken_back = Table(topic="i", cluster="i", **_POSITION, lost_s="d", time_s="d")
        self.link_breaks = Table(source="i", destination="i", time_s="d")
        self.link_repairs = Table(source="i", destination="i", time_s="d")
        self.phase_names = Names()
        self.phases = Table(phase="i", time_s="d")
        self.counter_names = Names()
        self.counters = Table(counter="i", cluster="i", value="q", time_s="d")
        self._confirmed = bytearray()

    def add_message(self, key: str, topic: int = 0) -> int:
        """Add the next input message, for the topic with number ``topic``, and return the message's id.

        Order is promised by key within a topic, so equal keys of two topics are two keys.
        """
        self.messages.append(self.keys.code(f"{topic}/{key}" if topic else key), topic)
        self._confirmed.append(0)
        return len(self._confirmed) - 1

    def sent(self, message_id: int, time_s: float) -> None:
        """Record that a producer sends the message. A message that is sent again elsewhere is recorded again."""
        self._check(message_id)
        self.sends.append(message_id, time_s)

    def confirmed(self, message_id: int, cluster: str, position: Position, batch_index: int, time_s: float) -> None:
        """Record that a producer's send was confirmed at ``position`` of ``cluster``, at most once for a message."""
        self._check(message_id)
        assert not self._confirmed[message_id], f"message {message_id} is confirmed a second time"
        self._confirmed[message_id] = 1
        self.confirms.append(message_id, self.clusters.code(cluster), *position, batch_index, time_s)

    def is_confirmed(self, message_id: int) -> bool:
        """Return whether a producer's send of this message was confirmed."""
        return bool(self._confirmed[message_id])

    def received(
        self,
        subscription: str,
        consumer: str,
        cluster: str,
        message_id: int,
        origin: str,
        origin_position: Position,
        batch_index: int,
        redelivery_count: int,
        time_s: float,
    ) -> None:
        """Record that a consumer of ``subscription``, connected to ``cluster``, received the message."""
        row = Receipt(message_id, origin, origin_position, batch_index, redelivery_count)
        self.received_many(subscription, consumer, cluster, [row], time_s)

    def received_many(
        self, subscription: str, consumer: str, cluster: str, receipts: Sequence[Receipt], time_s: float
    ) -> None:
        """Record that a consumer received several messages together, in order. One drill has millions of them."""
        if not receipts:
            return
        ids, origins, positions, batch_indexes, redelivery_counts = zip(*receipts, strict=True)
        ledgers, entries = zip(*positions, strict=True)
        self._check_all(ids)
        code = self.clusters.code
        self.receipts.extend(
            len(ids),
            self._subscription_codes[subscription],
            self.consumers.code(consumer),
            code(cluster),
            ids,
            [code(origin) for origin in origins],
            ledgers,
            entries,
            batch_indexes,
            redelivery_counts,
            time_s,
        )

    def acked(self, subscription: str, cluster: str, message_id: int, time_s: float) -> None:
        """Record that the worker accepted the acknowledgement of a message.

        A cumulative one is recorded for each message that it covers and that was not acknowledged before.
        """
        self.acked_many(subscription, cluster, [message_id], time_s)

    def acked_many(self, subscription: str, cluster: str, message_ids: Sequence[int], time_s: float) -> None:
        """Record that the worker accepted the acknowledgement of several messages."""
        self._check_all(message_ids)
        codes = self._subscription_codes[subscription], self.clusters.code(cluster)
        self.acks.extend(len(message_ids), *codes, message_ids, time_s)

    def observed(self, cluster: str, message_id: int, position: Position, batch_index: int, time_s: float) -> None:
        """Record that a reader at the end of the topic saw the message at ``position`` of ``cluster``."""
        self._check(message_id)
        self.copies.append(self.clusters.code(cluster), message_id, *position, batch_index, time_s)

    def covered(
        self, subscription: str, cluster: str, first: Place, last: Place, time_s: float, topic: int = 0
    ) -> None:
        """Record that ``cluster`` has all of the subscription from ``first`` to ``last`` acknowledged, as a poll found.

        A range that an earlier poll found need not be recorded again.
        """
        codes = self._subscription_codes[subscription], topic, self.clusters.code(cluster)
        self.covers.append(*codes, *first, *last, time_s)

    def failed_over(self, kind: FailoverKind, cluster: str, to: str, cut_s: float, time_s: float) -> int:
        """Record that clients leave ``cluster`` for ``to`` at ``time_s``. Return its number, for :meth:`high_water`.

        From ``cut_s`` on, nothing of ``cluster`` was sure to reach ``to``. It equals ``time_s`` if no link broke.
        """
        assert cut_s <= time_s
        assert not len(self.failovers) or time_s >= self.failovers.column("time_s")[-1], "they are recorded in order"
        code = self.clusters.code
        self.failovers.append(_KINDS.index(kind), code(cluster), code(to), cut_s, time_s)
        return len(self.failovers) - 1

    def returned(self, cluster: str, time_s: float) -> None:
        """Record that messages that ``cluster`` confirms from now on reach the others again."""
        self.returns.append(self.clusters.code(cluster), time_s)

    def high_water(self, failover: int, cluster: str, position: Position, topic: int = 0) -> None:
        """Record up to which position ``cluster`` had the messages of the cluster that was left, at that failover."""
        assert 0 <= failover < len(self.failovers), f"there was no failover {failover}"
        self.high_waters.append(failover, topic, self.clusters.code(cluster), *position)

    def took_back(self, cluster: str, position: Position, topic: int, lost_s: float, time_s: float) -> None:
        """Record that ``cluster`` lost its disk at ``lost_s`` and served again at ``time_s``, and that its status names
        its own messages after ``position`` as lost."""
        self.taken_back.append(topic, self.clusters.code(cluster), *position, lost_s, time_s)

    def link_broke(self, source: str, destination: str, time_s: float) -> None:
        """Record that copies from ``source`` to ``destination`` take longer now: the link is cut, or a cluster is
        down."""
        self.link_breaks.append(self.clusters.code(source), self.clusters.code(destination), time_s)

    def link_repaired(self, source: str, destination: str, time_s: float) -> None:
        """Record that the link from ``source`` to ``destination`` works again."""
        self.link_repairs.append(self.clusters.code(source), self.clusters.code(destination), time_s)

    def phase(self, name: str, time_s: float) -> None:
        """Record that a phase of the drill begins."""
        self.phases.append(self.phase_names.code(name), time_s)

    def counted(self, counter: str, cluster: str, value: int, time_s: float) -> None:
        """Record the value of a worker's own counter, which only grows while the worker runs."""
        self.counters.append(self.counter_names.code(counter), self.clusters.code(cluster), value, time_s)

    def kind_of(self, failover: int) -> FailoverKind:
        return _KINDS[int(self.failovers.column("kind")[failover])]

    def _check_all(self, message_ids: Sequence[int]) -> None:
        if message_ids:
            self._check(max(message_ids))
            self._check(min(message_ids))

    def _check(self, message_id: int) -> None:
        if not 0 <= message_id < len(self._confirmed):
            raise ForeignMessage(
                f"message {message_id} is not one of the {len(self._confirmed)} of this drill: others publish to its "
                "topics too; give it a namespace of its own"
            )
