"""Acknowledgement grouping tracker: it sends many acknowledgements in few requests. Sans-IO.

It takes events (an acknowledgement, the timer, a confirmation, a refusal) and returns actions for the shell. It keeps
invariant 5 on the client's side: it never widens what was acknowledged. After a reconnect it sends everything
unconfirmed again.

Algorithm:
1. Individual acknowledgements of whole entries are kept as one set; those of single messages of a batch as one bitmap
   for each entry. A bitmap that becomes full turns into the whole entry.
2. Only the highest cumulative acknowledgement is kept; a whole batch counts as higher than any index in it.
3. The group is flushed when its timer fires (100 ms after its first acknowledgement), when it holds ``size_max``
   acknowledgements, or at once with a group time of 0. The cumulative one goes first, and includes all entries that
   it covers.
4. At most ``REQUESTS_IN_FLIGHT_MAX`` requests are on their way. Past that the group goes on gathering, and the
   confirmation that makes room flushes it (invariant 11).
5. A request is kept until it is confirmed. After a reconnect, all that are left are sent again, in order: applying is
   idempotent.
6. Without batch-index acknowledgement an entry is acknowledged when all its messages are. Until then its indexes are
   kept apart and not sent, and a new delivery of the entry resets them. A cumulative acknowledgement in the middle of
   a batch then covers the entries before it.
7. After a seek or reset of the subscription everything unconfirmed is void: it was about an earlier state.
8. A refused request of several acknowledgements is halved and sent again, so that one bad position costs its neighbours
   nothing; a refused single one is reported.

Source: seed 002 (grouping by 100 ms or 1,000, the pending set, bit sets for batches, highest cumulative).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Final

from pyroaring import BitMap

from replicator.client.errors import PulsarException
from replicator.engine.log.entry import BATCH_MESSAGES_MAX
from replicator.engine.types import Ack
from snapshots.position import Position

REQUESTS_IN_FLIGHT_MAX: Final = 8
"""Limit of unconfirmed requests of one consumer. More would only queue up behind the same sync of the store."""
ACKS_PER_REQUEST_MAX: Final = 5_000
INDEXES_PER_REQUEST_MAX: Final = 100_000
"""Limit of batch indexes in one request, as many as one batch can have.

This limit and the one before keep a request far below the largest frame. A larger one would end the connection, again
and again."""


ACK_BYTES: Final = 20
"""Size of one acknowledgement on the wire, without the set of its batch."""
REQUEST_BYTES_MAX: Final = 512 * 1024
"""Limit of the size of one request: half of a command's limit."""


@dataclass(frozen=True, slots=True)
class StartTimer:
    """Call :meth:`AckGrouping.timer_fired` after ``delay_ms``."""

    delay_ms: int


@dataclass(frozen=True, slots=True)
class SendAcks:
    """Send individual acknowledgements."""

    request_id: int
    acks: tuple[Ack, ...]


@dataclass(frozen=True, slots=True)
class SendCumulative:
    """Send a cumulative acknowledgement through ``position``, or through ``batch_index`` in it."""

    request_id: int
    position: Position
    batch_index: int | None
    batch_size: int = field(default=0, compare=False)
    """Number of messages in the batch; 0 if it is not known."""


@dataclass(frozen=True, slots=True)
class Settled:
    """Report that every acknowledgement up to ticket ``through`` was answered: confirmed, or refused and reported."""

    through: int


@dataclass(frozen=True, slots=True)
class Refused:
    """Report that the cluster refused the acknowledgement of ``position``. It is not sent again."""

    position: Position
    error: PulsarException


Request = SendAcks | SendCumulative
Action = StartTimer | Request | Settled | Refused

_NOTHING: Final[tuple[Action, ...]] = ()


@dataclass(frozen=True, slots=True)
class _InFlight:
    """Request without an answer yet; ``since`` is at or below the ticket of everything in it."""

    request: Request
    since: int
    entries: Set[Position]
    batches: Mapping[Position, BitMap]


class AckGrouping:
    """Unconfirmed acknowledgements of one consumer.

    Each acknowledgement has a ticket, counted from 1. A :class:`Settled` action names the ticket through which all are
    answered.
    """

    __slots__ = (
        "_batch_index_acks",
        "_batches",
        "_count",
        "_cumulative",
        "_cumulative_size",
        "_entries",
        "_flush_due",
        "_group_time_ms",
        "_in_flight",
        "_next_request_id",
        "_partial",
        "_since",
        "_size_max",
        "_sizes",
        "_timer_running",
        "settled",
        "ticket",
    )

    def __init__(self, group_time_ms: int = 100, size_max: int = 1000, *, batch_index_acks: bool = True) -> None:
        self._group_time_ms = group_time_ms
        self._size_max = size_max
        self._entries: set[Position] = set()
        self._batches: dict[Position, BitMap] = {}
        self._sizes: dict[Position, int] = {}
        """Number of messages of each batch; 0: unknown."""
        self._batch_index_acks = batch_index_acks
        self._partial: dict[Position, BitMap] = {}
        """Acknowledged indexes of incomplete entries, if batch-index acknowledgement is off."""
        self._cumulative: _Cumulative | None = None
        self._cumulative_size = 0
        self._count = 0
        self._since = 0
        self._in_flight: dict[int, _InFlight] = {}
        self._next_request_id = 1
        self._timer_running = False
        self._flush_due = False
        self.ticket = 0
        """The ticket of the last acknowledgement."""
        self.settled = 0
        """Every acknowledgement up to this ticket was answered."""

    def acknowledge(self, position: Position, batch_index: int = -1, batch_size: int = 1) -> Sequence[Action]:
        """Acknowledge one message, or with ``batch_index`` -1 the whole entry.

        An index at or above ``batch_size`` is of an id that was made without the size: it counts alone.
        """
        if batch_index < 0 or (batch_index == 0 and batch_size <= 1):
            return self._acknowledge_entry(position)
        if not self._batch_index_acks:
            return self._acknowledge_partial(position, BitMap([batch_index]), batch_size)
        self._take_ticket()
        if position in self._entries:
            return self._gathered()
        indexes = self._batches.get(position)
        if indexes is None:
            indexes = self._batches[position] = BitMap()
            self._sizes[position] = batch_size if batch_index < batch_size else 0
        indexes.add(batch_index)
        if len(indexes) == batch_size > batch_index:
            del self._batches[position]
            self._entries.add(position)
        return self._gathered()

    def acknowledge_entries(self, positions: Sequence[Position]) -> Sequence[Action]:
        """Acknowledge the entries that are the chunks of one message.

        One request has them all, up to :data:`ACKS_PER_REQUEST_MAX`. With a request for each, another cluster could
        learn of some of them only, and would deliver chunks that never make a message.
        """
        for position in positions:
            self._add_entry(position)
        self._count += len(positions) - 1
        return self._gathered()

    def acknowledge_cumulative(
        self, position: Position, batch_index: int = -1, batch_size: int = 1
    ) -> Sequence[Action]:
        """Acknowledge everything through this message. The last message of a batch means the whole entry."""
        whole = batch_index < 0 or batch_index == batch_size - 1
        if not whole and not self._batch_index_acks:
            actions = self._acknowledge_partial(position, BitMap(range(batch_index + 1)), batch_size)
            if position.entry == 0 or position not in self._partial:  # nothing before it in its ledger, or complete
                return actions
            before = self.acknowledge_cumulative(Position(position.ledger, position.entry - 1))
            return [*actions, *before]
        self._take_ticket()
        if self._partial:
            self._partial = {entry: indexes for entry, indexes in self._partial.items() if entry > position}
        newer = (position, None if whole else batch_index)
        if self._cumulative is None or _height(newer) > _height(self._cumulative):
            self._cumulative = newer
            self._cumulative_size = batch_size if batch_index < batch_size else 0
        return self._gathered()

    def timer_fired(self) -> Sequence[Action]:
        """Flush the group, because its time is over."""
        self._timer_running = False
        return self.flush()

    def flush(self) -> Sequence[Action]:
        """Send the gathered acknowledgements, as far as the limit of requests allows. The rest is sent as requests are
        answered."""
        self._flush_due = True
        actions: list[Action] = []
        while self._pending() and len(self._in_flight) < REQUESTS_IN_FLIGHT_MAX:
            actions.append(self._next_request())
        self._flush_due = self._pending()
        return actions

    def confirmed(self, request_id: int) -> Sequence[Action]:
        """Take note that the cluster made the request durable. An unknown id was answered before: no action."""
        if self._in_flight.pop(request_id, None) is None:
            return _NOTHING
        return self._answered()

    def refused(self, request_id: int, error: PulsarException, *, split: bool) -> Sequence[Action]:
        """Handle a refused request. ``split`` says that one acknowledgement was at fault, and others may be good."""
        flight = self._in_flight.pop(request_id, None)
        if flight is None:
            return _NOTHING
        request = flight.request
        if isinstance(request, SendCumulative):
            return [Refused(request.position, error), *self._answered()]
        if not split or len(request.acks) == 1:
            return [*(Refused(ack.position, error) for ack in request.acks), *self._answered()]
        middle = len(request.acks) // 2
        return [self._send(acks, flight.since) for acks in (request.acks[:middle], request.acks[middle:])]

    def flight(self, request_id: int) -> tuple[Set[Position], Position | None]:
        """Return what an unconfirmed request acknowledges as a whole: entries, and the position up to which it covers
        all."""
        flight = self._in_flight.get(request_id)
        if flight is None:
            return frozenset(), None
        request = flight.request
        through = request.position if isinstance(request, SendCumulative) and request.batch_index is None else None
        return flight.entries, through

    def everything(self) -> tuple[set[Position], dict[Position, BitMap], list[tuple[Position, int | None]]]:
        """Return everything acknowledged but unconfirmed: entries, indexes of batches, and cumulative positions."""
        entries, batches = set(self._entries), {entry: BitMap(found) for entry, found in self._batches.items()}
        for flight in self._in_flight.values():
            entries |= flight.entries
            for entry, indexes in flight.batches.items():
                batches[entry] = batches.get(entry, BitMap()) | indexes
        return entries, batches, list(self._cumulatives())

    def unconfirmed(self) -> list[Request]:
        """Return the requests to send again after a reconnect, in order."""
        return [flight.request for flight in self._in_flight.values()]

    def restart(self) -> Sequence[Action]:
        """Forget all unconfirmed acknowledgements, because the subscription moved by a seek or reset. Every ticket so
        far counts as answered."""
        self._entries.clear()
        self._batches.clear()
        self._sizes.clear()
        self._partial.clear()
        self._cumulative = None
        self._in_flight.clear()
        self._flush_due = False
        return self._answered()

    def delivered(self, position: Position) -> None:
        """Take note that the entry was delivered (again): without batch-index acknowledgement its messages count
        anew."""
        self._partial.pop(position, None)

    def acknowledged(self, position: Position) -> BitMap | bool:
        """Return which part of this entry is acknowledged here: all (True), nothing (False), or some indexes.

        The cluster may not know of these acknowledgements yet."""
        if position in self._entries:
            return True
        found: BitMap | None = self._batches.get(position)
        if self._cumulative is not None and position <= self._cumulative[0]:
            if _covers(self._cumulative, position):
                return True
            found = _with_first(found, self._cumulative[1])
        for flight in self._in_flight.values():  # few: each has many acknowledgements
            request = flight.request
            if isinstance(request, SendCumulative):
                if position > request.position:
                    continue  # as most: what comes lies behind what was received before
                if _covers((request.position, request.batch_index), position):
                    return True
                found = _with_first(found, request.batch_index)
            elif position in flight.entries:
                return True
            elif (indexes := flight.batches.get(position)) is not None:
                found = indexes if found is None else found | indexes
        return found.copy() if found else False

    def _acknowledge_entry(self, position: Position) -> Sequence[Action]:
        self._add_entry(position)
        return self._gathered()

    def _add_entry(self, position: Position) -> None:
        self._take_ticket()
        self._batches.pop(position, None)
        self._partial.pop(position, None)
        self._entries.add(position)

    def _acknowledge_partial(self, position: Position, indexes: BitMap, batch_size: int) -> Sequence[Action]:
        gathered = self._partial.setdefault(position, BitMap())
        gathered |= indexes
        complete = len(gathered) == batch_size > gathered.max()
        return self._acknowledge_entry(position) if complete else _NOTHING

    def _take_ticket(self) -> None:
        self.ticket += 1
        if not self._pending():
            self._since = self.ticket
            self._count = 0

    def _gathered(self) -> Sequence[Action]:
        self._count += 1
        if self._group_time_ms == 0 or self._count >= self._size_max:
            return self.flush()
        if self._timer_running:
            return _NOTHING
        self._timer_running = True
        return (StartTimer(self._group_time_ms),)

    def _pending(self) -> bool:
        return bool(self._entries) or bool(self._batches) or self._cumulative is not None

    def _cumulatives(self) -> Iterator[_Cumulative]:
        if self._cumulative is not None:
            yield self._cumulative
        for flight in self._in_flight.values():
            if isinstance(flight.request, SendCumulative):
                yield (flight.request.position, flight.request.batch_index)

    def _next_request(self) -> Request:
        if self._cumulative is not None:
            cumulative, self._cumulative = self._cumulative, None
            self._entries = {entry for entry in self._entries if not _covers(cumulative, entry)}
            self._batches = {
                entry: indexes for entry, indexes in self._batches.items() if not _covers(cumulative, entry)
            }
            request = SendCumulative(self._take_request_id(), *cumulative, self._cumulative_size)
            self._in_flight[request.request_id] = _InFlight(request, self._since, frozenset(), {})
            return request
        acks: list[Ack] = []
        while self._entries and len(acks) < ACKS_PER_REQUEST_MAX:
            acks.append(Ack(self._entries.pop()))
        indexes_sent = 0
        bytes_sent = ACK_BYTES * len(acks)
        while (
            self._batches
            and len(acks) < ACKS_PER_REQUEST_MAX
            and indexes_sent < INDEXES_PER_REQUEST_MAX
            and bytes_sent < REQUEST_BYTES_MAX
        ):
            position, indexes = self._batches.popitem()
            size = self._sizes.get(position, 0)
            indexes_sent += len(indexes)
            bytes_sent += ACK_BYTES + (size or BATCH_MESSAGES_MAX) // 5  # a set bit for each message: 11 bytes for 64
            acks.append(Ack(position, tuple(indexes), size))
        if not self._batches:
            self._sizes.clear()
        acks.sort(key=lambda ack: ack.position)
        return self._send(tuple(acks), self._since)

    def _send(self, acks: tuple[Ack, ...], since: int) -> SendAcks:
        request = SendAcks(self._take_request_id(), acks)
        self._in_flight[request.request_id] = _InFlight(
            request,
            since,
            {ack.position for ack in acks if ack.batch_indexes is None},
            {ack.position: BitMap(ack.batch_indexes) for ack in acks if ack.batch_indexes is not None},
        )
        return request

    def _answered(self) -> list[Action]:
        """Continue a flush that waited for room, and report the tickets that are settled."""
        actions = list(self.flush()) if self._flush_due else []
        unanswered = [flight.since for flight in self._in_flight.values()]
        if self._pending():
            unanswered.append(self._since)
        settled = min(unanswered) - 1 if unanswered else self.ticket
        assert settled >= self.settled
        if settled > self.settled:
            self.settled = settled
            actions.append(Settled(settled))
        return actions

    def _take_request_id(self) -> int:
        request_id = self._next_request_id
        self._next_request_id += 1
        return request_id


_Cumulative = tuple[Position, int | None]
"""Position, and the last acknowledged index in its batch, or None for the whole entry."""


def _height(cumulative: _Cumulative) -> tuple[Position, float]:
    position, batch_index = cumulative
    return (position, float("inf") if batch_index is None else batch_index)


def _with_first(found: BitMap | None, last_index: int | None) -> BitMap:
    """Return ``found`` together with the indexes of a batch up to ``last_index``."""
    first = BitMap(range(0 if last_index is None else last_index + 1))
    return first if found is None else found | first


def _covers(cumulative: _Cumulative, position: Position) -> bool:
    """Return whether the cumulative acknowledgement covers the whole entry at ``position``."""
    return position < cumulative[0] or (position == cumulative[0] and cumulative[1] is None)
