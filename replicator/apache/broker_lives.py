"""The lives of the brokers' data of one topic, and what the positions of each are called elsewhere. Pure.

Invariant (DESIGN §3): 2. A broker that is put back to an older copy of its data, or set up anew, gives positions that
it had before to other messages. In all clusters an origin's position names one message over all lives
(docs/adr/0080). So the positions of a later life are moved up.

1. A *place* is a position at the brokers. A *position* is what the message there is called in all clusters.
2. The first life has the positions of its places. Each later life begins behind the last place that it shares with the
   earlier ones. Its ledgers' numbers are raised by its incarnation, which is above every ledger of the earlier lives.
3. A place belongs to the last life that begins before it. A position of an earlier life beyond the place where a later
   one begins has no place any more: the brokers lost that message.
4. If the brokers are put back again, to before the begin of a life, that life has no place any more. Its positions
   stay taken.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from snapshots.position import BEFORE_ALL, Position
from snapshots.position_set import PositionSet


class BrokerLife(NamedTuple):
    """One later life. ``lost`` is the last position of the earlier life that the brokers had had."""

    after: Position
    """The last place that it shares with the earlier lives."""
    incarnation: int
    lost: Position = BEFORE_ALL
    ended: bool = False
    """Whether the brokers were put back to before its begin."""


class BrokerLives:
    """The lives of the brokers' data of one topic, in order. Most topics have one life only.

    A new life begins when the brokers are put back to an older copy of their data, or set up anew.
    """

    __slots__ = ("_all", "_first", "_raised")

    def __init__(self, lives: Sequence[BrokerLife] = (), first: int = 0) -> None:
        """``first`` is the incarnation of the first life; 0 if it is not known."""
        self._first = first
        self._all = list(lives)
        self._raised = [each for each in lives if not each.ended]

    @property
    def incarnations(self) -> list[int]:
        """Return the incarnations of all lives, in order; empty if there is one life only."""
        return [self._first, *(each.incarnation for each in self._all)] if self._all else []

    @property
    def begin(self) -> Position:
        """Return the last place that the newest life shares with earlier ones; BEFORE_ALL if there is one life only."""
        return self._raised[-1].after if self._raised else BEFORE_ALL

    @property
    def later(self) -> list[BrokerLife]:
        """Return the lives after the first one."""
        return list(self._all)

    def began(self, life: BrokerLife, first: int) -> BrokerLives:
        """Return these lives and ``life``, which began when the brokers were put back to ``life.after``.

        Lives that began there or behind are marked as ended. ``first`` is the incarnation of the first life, for lives
        that do not know it yet.
        """
        before = [each._replace(ended=each.ended or each.after >= life.after) for each in self._all]
        return BrokerLives([*before, life], self._first or first)

    def origin_of(self, place: Position) -> Position:
        """Return the position by which all clusters know the message that the brokers have at ``place``."""
        for life in reversed(self._raised):
            if place > life.after:
                return Position(place.ledger + life.incarnation, place.entry)
        return place

    def incarnation_at(self, place: Position) -> int:
        """Return the incarnation of the life that ``place`` belongs to; 0 if it is not known."""
        return next((life.incarnation for life in reversed(self._raised) if place > life.after), self._first)

    def place_of(self, position: Position) -> Position:
        """Return the place (position at the brokers) of the message that all clusters know by ``position``.

        If there is no such place, return the last place whose message has a lower position.
        """
        at = bisect_right(self._raised, position.ledger, key=lambda life: life.incarnation)
        raised = self._raised[at - 1].incarnation if at else 0
        after = self._raised[at - 1].after if at else BEFORE_ALL
        place = max(Position(position.ledger - raised, position.entry), after)
        return min(place, self._raised[at].after) if at < len(self._raised) else place

    def origins(self, places: PositionSet) -> PositionSet:
        """Return the positions of the messages at ``places``."""
        return self._moved(places, up=True) if self._raised else places

    def places(self, positions: PositionSet) -> PositionSet:
        """Return the places of ``positions``, which are the brokers' own. Positions that have no place are left out."""
        return self._moved(positions, up=False) if self._raised else positions

    def _moved(self, given: PositionSet, *, up: bool) -> PositionSet:
        found = PositionSet()
        begins = [(BEFORE_ALL, 0), *((life.after, life.incarnation) for life in self._raised)]
        for index, (after, raised) in enumerate(begins):
            through = begins[index + 1][0] if index + 1 < len(begins) else None
            add = 0 if up else raised
            part = given.after(Position(after.ledger + add, after.entry)) if index else given.copy()
            if through is not None:
                part.discard_after(Position(through.ledger + add, through.entry))
            for ledger, entries in part.by_ledger():
                found.add_entries(ledger + (raised if up else -raised), entries)
        return found

    def shown(self) -> list[dict[str, Any]]:
        """Return the lives of the brokers' data, in order, for the topic's status; empty if there is one life only."""
        first = [BrokerLife(BEFORE_ALL, self._first), *self._all] if self._all else []
        return [
            {"incarnation": each.incarnation, "after": str(each.after), "lost": str(each.lost), "ended": each.ended}
            for each in first
        ]

    @classmethod
    def of_shown(cls, shown: Sequence[Mapping[str, Any]]) -> BrokerLives:
        """Read what :meth:`shown` returned."""
        lives = [
            BrokerLife(Position.parse(each["after"]), each["incarnation"], Position.parse(each["lost"]), each["ended"])
            for each in shown
        ]
        return cls(lives[1:], lives[0].incarnation if lives else 0)

    def to_json(self) -> str:
        lives = [[*each.after, each.incarnation, *each.lost, each.ended] for each in self._all]
        return json.dumps({"first": self._first, "lives": lives})

    @classmethod
    def from_json(cls, stored: bytes) -> BrokerLives:
        """Return the lives that :meth:`to_json` wrote into the row ``stored``."""
        row = json.loads(stored)
        lives = [
            BrokerLife(Position(ledger, entry), incarnation, Position(lost_ledger, lost_entry), ended)
            for ledger, entry, incarnation, lost_ledger, lost_entry, ended in row["lives"]
        ]
        return cls(lives, row["first"])
