"""Starts of subscriptions, by origin, kept apart from acknowledgements (DESIGN 4.7). Pure.

A subscription's start for an origin is the last entry before the messages that the subscription receives. Nobody
consumed the messages before the start.

Invariant (DESIGN §3): 5. No cluster may announce a message before the start as acknowledged.

1. The cluster in which a subscription is made names each origin that it has or receives, with the last entry before the
   start. It names no other origin: a spoke says nothing about another spoke's messages.
2. If several clusters made the subscription, the earlier start counts, origin by origin. If only one cluster names an
   origin, its start counts. If no cluster names an origin, all messages of the origin lie after the start.
3. Starts are compared by position first, then by incarnation (:func:`by_position`). Positions ascend from life to life,
   so the older life's start is normally earlier. A start before all messages is earlier in any incarnation.

Merging takes the lesser of two values, so it is commutative, associative and idempotent (invariant 6).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from snapshots.ack_vector import AckVector
from snapshots.position import BEFORE_ALL, Position


class Start(NamedTuple):
    """Start of a subscription for one origin: the last entry before it. :func:`by_position` orders starts."""

    incarnation: int
    """Incarnation of the topic at the origin; 0 comes before every real one."""
    position: Position


FROM_THE_FIRST: Final = Start(0, BEFORE_ALL)
"""Start before the first message: no message lies before it."""

Starts = Mapping[str, Start]
"""Start of one subscription, by origin. Nothing is known about an origin that is not named."""


class OriginProgress(Protocol):
    """Progress of an origin's messages in this cluster."""

    @property
    def position(self) -> Position: ...


def merged(one: Starts, other: Starts) -> dict[str, Start]:
    """Return, by origin, the earlier start of ``one`` and ``other``.

    If only one of them names an origin, the result has that start.
    """
    result = dict(one)
    for origin, start in other.items():
        mine = result.get(origin)
        result[origin] = start if mine is None else min(mine, start, key=by_position)
    return result


def of_a_seek(before: Starts, known: Iterable[str]) -> dict[str, Start]:
    """Return the starts of the generation that a seek begins in a cluster that has messages of the origins ``known``.

    No message of these origins lies before the start, because those that the seek passed over count as acknowledged.
    The other origins keep the start that they have in ``before``.
    """
    return {**before, **dict.fromkeys(known, FROM_THE_FIRST)}


def by_position(start: Start) -> tuple[Position, int]:
    """Return the key that sorts starts from the earliest to the latest.

    Positions ascend from life to life. So a start of a newer incarnation can only be earlier if it lies in an earlier
    life than its incarnation says, or if no message lies before it.
    """
    return start.position, start.incarnation


def end_before(starts: Starts, origin: str) -> Position:
    """Return the position of the last entry of ``origin`` before the start; BEFORE_ALL if no message lies before the
    start.

    Positions of a later life of the topic are greater, so the position alone decides what lies before it, in any life.
    """
    return starts.get(origin, FROM_THE_FIRST).position


def ends_before(starts: Starts, origins: Iterable[str]) -> dict[str, Position]:
    """Return, by origin, the position of the last entry before the subscription's start.

    Origins without messages before the start are left out.
    """
    ends = {origin: end_before(starts, origin) for origin in origins}
    return {origin: end for origin, end in ends.items() if end > BEFORE_ALL}


def end_of_earlier_lives(incarnation: int, newest: Position) -> Position:
    """Return a position above all earlier lives of a topic at its origin, and below the life ``incarnation``.

    ``newest`` is the newest known position of the origin. Return BEFORE_ALL if ``newest`` does not lie in the life
    ``incarnation``. Either the life has no message yet, or the origin is a cluster of brokers, which number their
    ledgers apart from incarnations.
    """
    return Position(incarnation, 0) if newest.ledger > incarnation else BEFORE_ALL


def is_anything_before(starts: Starts) -> bool:
    """Return whether messages can lie before the start of at least one origin."""
    return any(start.position > BEFORE_ALL for start in starts.values())


def may_come_before(starts: Starts, reached: Mapping[str, OriginProgress]) -> bool:
    """Return whether messages that lie before the start may still arrive. ``reached`` is how far each origin is
    here."""
    return any(
        start.position > BEFORE_ALL and ((here := reached.get(origin)) is None or here.position < start.position)
        for origin, start in starts.items()
    )


def as_data(starts: Starts) -> dict[str, list[object]]:
    """Return a subscription's starts by origin, in a form that JSON can encode. :func:`from_data` decodes it."""
    return {origin: [str(start.incarnation), str(start.position)] for origin, start in sorted(starts.items())}


def from_data(data: Mapping[str, Sequence[object]]) -> dict[str, Start]:
    """Return the starts that :func:`as_data` encoded."""
    return {
        str(origin): Start(int(str(incarnation)), Position.parse(str(position)))
        for origin, (incarnation, position) in data.items()
    }


def cut(vector: AckVector, starts: Starts) -> None:
    """Remove the acknowledgements of messages before the start from ``vector``."""
    for origin, acks in vector.origins.items():
        end = end_before(starts, origin)
        if end > BEFORE_ALL:
            acks.discard_through(end)
