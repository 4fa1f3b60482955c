"""Cursor of one subscription at a broker, parsed from the broker's internal statistics. Sans-IO.

A cursor is a mark-delete position, up to which everything is acknowledged, and acknowledged ranges after it. The broker
does not show which messages of a batch are acknowledged. A batch counts as acknowledged only when all its messages are.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from replicator.apache.errors import BridgeError
from snapshots.position import Position
from snapshots.position_set import PositionSet

RANGES_MAX: Final = 100_000
"""Most ranges of acknowledged entries in one cursor. By default a broker keeps 10,000 of them durably."""
_POSITION = re.compile(r"(\d{1,19}):(-1|\d{1,10})")
_RANGE = re.compile(r"\((\d{1,19}):(-1|\d{1,10})\.\.(\d{1,19}):(-1|\d{1,10})\]")


@dataclass(frozen=True, slots=True)
class BrokerCursor:
    """State of one subscription at the broker: which entries are acknowledged."""

    mark_delete: Position
    beyond: PositionSet = field(default_factory=PositionSet)
    """Acknowledged entries after the mark-delete position. A batch is in it only as a whole."""

    def __contains__(self, position: Position) -> bool:
        return position <= self.mark_delete or position in self.beyond

    @property
    def first_open(self) -> Position:
        """Return the position right after the mark-delete position, in the same ledger. An entry need not exist
        there."""
        return Position(self.mark_delete.ledger, self.mark_delete.entry + 1)

    def among(self, positions: PositionSet) -> PositionSet:
        """Return the entries of ``positions`` that are acknowledged."""
        below = positions.copy()
        below.discard_after(self.mark_delete)
        below.update(positions.common(self.beyond))
        return below

    def not_among(self, positions: PositionSet) -> PositionSet:
        """Return the entries of ``positions`` that are not acknowledged."""
        left = positions.copy()
        left.discard_through(self.mark_delete)
        left.difference_update(self.beyond)
        return left

    def reaches(self, positions: PositionSet, last_entries: Mapping[int, int]) -> Position:
        """Return the mark-delete position that the cursor would have if ``positions`` were acknowledged, too.

        ``last_entries`` has the last entry of each ledger of the topic.
        """
        acknowledged = self.beyond.copy()
        acknowledged.update(positions)
        ledgers = sorted(ledger for ledger, last in last_entries.items() if last >= 0)
        at = self.mark_delete
        while True:
            following = Position(at.ledger, at.entry + 1)
            if at.entry >= last_entries.get(at.ledger, -1):  # the ledger ends there, or is gone
                later = next((ledger for ledger in ledgers if ledger > at.ledger), None)
                if later is None:
                    return at
                following = Position(later, 0)
            if following not in acknowledged:
                return at
            at = acknowledged.run_end(following)

    def lacks(self, earlier: BrokerCursor) -> bool:
        """Return whether an entry was acknowledged in the ``earlier`` cursor and is not any more."""
        return self.mark_delete < earlier.mark_delete or bool(self.not_among(earlier.beyond))

    def with_more(self, acknowledged: Iterable[Position]) -> BrokerCursor:
        """Return a copy of this cursor in which the entries ``acknowledged`` are acknowledged, too."""
        beyond = self.beyond.copy()
        beyond.update(PositionSet(acknowledged))
        return BrokerCursor(self.mark_delete, beyond)

    def to_json(self) -> dict[str, Any]:
        return {
            "mark_delete": list(self.mark_delete),
            "beyond": [[first.ledger, first.entry, last.entry] for first, last in self.beyond.runs()],
        }

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> BrokerCursor:
        beyond = PositionSet()
        for ledger, first, last in stored["beyond"]:
            beyond.add_range(ledger, first, last)
        return cls(Position(*stored["mark_delete"]), beyond)


class CursorCache:
    """Cache of a topic's parsed cursors. In most comparisons only the engine's state has changed, not the brokers'."""

    __slots__ = ("_known", "_last_entries")

    def __init__(self) -> None:
        self._known: dict[str, tuple[tuple[str, str], BrokerCursor]] = {}
        """By subscription: the text of its cursor, and the cursor parsed from that text."""
        self._last_entries: Mapping[int, int] = {}

    def look(self, last_entries: Mapping[int, int]) -> None:
        """Begin a comparison. Drop the cache if ``last_entries``, the last entry of each ledger, has changed."""
        if self._last_entries != last_entries:
            self._last_entries = last_entries
            self._known.clear()

    def parsed(self, name: str, shown: Mapping[str, Any]) -> BrokerCursor:
        """Return the parsed cursor of subscription ``name``, which ``shown`` has as the broker's statistics show it.

        Raises :class:`BridgeError` if ``shown`` is malformed.
        """
        text = text_of(shown)
        known = self._known.get(name)
        if known is None or known[0] != text:
            known = self._known[name] = text, parse_cursor(shown, self._last_entries, name)
        return known[1]

    def keep(self, names: Collection[str]) -> None:
        """Drop the cached cursors of all subscriptions except ``names``."""
        for name in self._known.keys() - names:
            del self._known[name]


def text_of(shown: Mapping[str, Any]) -> tuple[str, str]:
    """Return the text of a cursor in the broker's statistics. Equal texts mean equal cursors."""
    return str(shown["markDeletePosition"]), str(shown["individuallyDeletedMessages"])


def parse_position(text: str) -> Position:
    """Return the position in the text ``ledger:entry``. Raises :class:`BridgeError` for any other text."""
    found = _POSITION.fullmatch(text)
    if found is None:
        raise BridgeError(
            f"the broker shows {text[:80]!r} where a position as 3:14 was expected: see that `admin_url` leads to a "
            "Pulsar broker, of a version that the bridge knows"
        )
    return Position(int(found[1]), int(found[2]))


def parse_cursor(shown: Mapping[str, Any], last_entries: Mapping[int, int], name: str = "") -> BrokerCursor:
    """Return the cursor of subscription ``name`` in an item of ``cursors`` in a topic's internal statistics.

    ``last_entries`` has the last entry of each ledger of the topic: a range that spans ledgers ends and begins there.
    Raises :class:`BridgeError` if the item is malformed.
    """
    beyond = parse_ranges(str(shown["individuallyDeletedMessages"]), last_entries, name)
    return BrokerCursor(parse_position(str(shown["markDeletePosition"])), beyond)


def parse_ranges(ranges: str, last_entries: Mapping[int, int], name: str = "") -> PositionSet:
    """Return the entries in ranges like ``[(3:10..3:12],…]``: the first position is exclusive, the last one
    inclusive.

    See :func:`parse_cursor`.
    """
    beyond = PositionSet()
    for count, match in enumerate(_RANGE.finditer(ranges)):
        if count >= RANGES_MAX:
            raise BridgeError(
                f"subscription {name!r} has more than {RANGES_MAX} ranges of acknowledged messages at the brokers, so "
                "that they cannot be read: have its consumers acknowledge the messages between them"
            )
        (ledger, after), (end_ledger, end) = (int(match[1]), int(match[2])), (int(match[3]), int(match[4]))
        if ledger == end_ledger:
            beyond.add_range(ledger, after + 1, end)
            continue
        for each, last in last_entries.items():
            if ledger <= each < end_ledger:
                beyond.add_range(each, after + 1 if each == ledger else 0, last)
        beyond.add_range(end_ledger, 0, end)
    if set(_RANGE.sub("", ranges)) - set("[], "):  # a list that is cut, too: what it lacks would seem to be open again
        raise BridgeError(
            f"the broker shows ranges of acknowledged messages that nobody can read: {ranges[:200]!r}: see that "
            "`admin_url` leads to a Pulsar broker, of a version that the bridge knows"
        )
    return beyond
