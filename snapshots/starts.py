"""Starts of subscriptions, by origin, apart from what is acknowledged (DESIGN 4.7). Pure.

Invariant (DESIGN §3): 5. A message that lies before the start was not consumed by anybody, so no claim may cover it.

1. The cluster where somebody makes a subscription names each origin that it has or receives, and the last entry before
   the start. It names no other origin: a spoke says nothing of another spoke's messages.
2. Where several clusters made the subscription, the earlier start counts, origin by origin. An origin that only one of
   them names starts there; of an origin that nobody names, every message counts.
3. A start in an older incarnation is earlier than each one in a newer incarnation. It was made before the newer
   incarnation had a message, so all of them count.

Merging takes the lesser of two values, so it is commutative, associative and idempotent (invariant 6).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from snapshots.ack_vector import AckVector
from snapshots.position import BEFORE_ALL, Position

AFTER_ALL: Final = Position((1 << 64) - 1, (1 << 63) - 1)
"""Higher than every entry's position."""


class Start(NamedTuple):
    """The last entry of an origin that lies before the start. The lesser of two is the earlier one."""

    incarnation: int
    """The incarnation of the topic at its origin; 0 is before each of them."""
    position: Position


FROM_THE_FIRST: Final = Start(0, BEFORE_ALL)
"""The start before which nothing lies."""

Starts = Mapping[str, Start]
"""By origin, where a subscription begins. It says nothing of an origin that it does not name."""


class Reached(Protocol):
    """How far the messages of an origin are here."""

    @property
    def incarnation(self) -> int: ...
    @property
    def position(self) -> Position: ...


def merged(one: Starts, other: Starts) -> dict[str, Start]:
    """Return the earlier start of each origin."""
    result = dict(one)
    for origin, start in other.items():
        mine = result.get(origin)
        result[origin] = start if mine is None else min(mine, start)
    return result


def end_before(starts: Starts, origin: str, incarnation: int) -> Position:
    """Return the position up to which that incarnation of an origin lies before the start."""
    start = starts.get(origin, FROM_THE_FIRST)
    if start.incarnation == incarnation:
        return start.position
    return BEFORE_ALL if start.incarnation < incarnation else AFTER_ALL


def ends_before(starts: Starts, incarnations: Mapping[str, int]) -> dict[str, Position]:
    """Return, by origin, the position up to which entries lie before the start; leave out origins without any."""
    ends = {origin: end_before(starts, origin, incarnation) for origin, incarnation in incarnations.items()}
    return {origin: end for origin, end in ends.items() if end > BEFORE_ALL}


def is_anything_before(starts: Starts) -> bool:
    """Return whether any message can lie before the start."""
    return any(start.position > BEFORE_ALL for start in starts.values())


def may_come_before(starts: Starts, reached: Mapping[str, Reached]) -> bool:
    """Return whether messages may still come that lie before the start. ``reached`` is how far each origin is here."""
    return any(
        start.position > BEFORE_ALL
        and ((here := reached.get(origin)) is None or (here.incarnation, here.position) < start)
        for origin, start in starts.items()
    )


def as_data(starts: Starts) -> dict[str, list[object]]:
    """Return the starts for JSON."""
    return {origin: [str(start.incarnation), str(start.position)] for origin, start in sorted(starts.items())}


def from_data(data: Mapping[str, Sequence[object]]) -> dict[str, Start]:
    """Read what :func:`as_data` made."""
    return {
        str(origin): Start(int(str(incarnation)), Position.parse(str(position)))
        for origin, (incarnation, position) in data.items()
    }


def cut(vector: AckVector, starts: Starts) -> None:
    """Take out of ``vector`` what lies before the start."""
    for origin, acks in vector.origins.items():
        end = end_before(starts, origin, acks.incarnation)
        if end > BEFORE_ALL:
            acks.discard_through(end)
