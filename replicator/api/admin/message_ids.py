"""Message ids as Pulsar's REST API writes them: ``{"ledgerId", "entryId", "partitionIndex"}``. Pure.

Two ids name no message: the earliest, -1 and -1, and the latest, which has the largest number in both places.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from replicator.api.admin.requests import flag_field, number_field, object_field
from replicator.api.errors import BadRequest
from replicator.engine.types import END_LEDGER
from snapshots.position import BEFORE_ALL, Position

LATEST: Final = Position(END_LEDGER, END_LEDGER)
NO_INDEX: Final = -1
PARTITION_INDEX_MAX: Final = 999_999


@dataclass(frozen=True, slots=True)
class Target:
    """The place to which a subscription moves: the entry at ``position`` comes next, or the one after it if
    ``excluded``.
    """

    position: Position
    excluded: bool = False
    partition: int = NO_INDEX

    @property
    def anywhere(self) -> bool:
        """Return whether the target is the same in every topic: the earliest or the latest."""
        return self.position in (BEFORE_ALL, LATEST)

    @property
    def next_position(self) -> Position:
        """Return the position that comes next after a seek to this target."""
        if self.excluded and not self.anywhere:
            return Position(self.position.ledger, self.position.entry + 1)
        return self.position


def to_json(position: Position, partition: int, batch_index: int = NO_INDEX) -> dict[str, int]:
    """Return a position as a message id; the place before all messages is the earliest one."""
    if position == BEFORE_ALL:
        position = Position(-1, -1)
    of_a_batch = {} if batch_index == NO_INDEX else {"originalBatchSize": 0, "outstandingAcksInSameBatch": 0}
    return {
        "ledgerId": position.ledger,
        "entryId": position.entry,
        "partitionIndex": partition,
        "batchIndex": batch_index,
        "batchSize": 0,
        **of_a_batch,  # upstream leaves them 0, as it does the size
    }


def read_target(body: Any, name: str = "message id") -> Target:
    """Read the target in a body; an empty body means the latest. Raise :class:`BadRequest`. Other fields, which
    Pulsar's libraries add to message ids, are ignored.
    """
    if body is None:
        return Target(LATEST)
    fields: Mapping[str, Any] = object_field(body, name)
    if "messageId" in fields and "ledgerId" not in fields:  # with properties beside it, as a new subscription has it
        return read_target(fields["messageId"], f"{name}.messageId")
    for key in ("ledgerId", "entryId"):
        if key not in fields:
            raise BadRequest(f"{name} lacks the field {key}: give ledgerId and entryId, as the message has them")
    ledger = number_field(fields["ledgerId"], f"{name}.ledgerId", least=-1)
    entry = number_field(fields["entryId"], f"{name}.entryId", least=-1)
    partition = number_field(
        fields.get("partitionIndex", NO_INDEX), f"{name}.partitionIndex", least=NO_INDEX, most=PARTITION_INDEX_MAX
    )
    if number_field(fields.get("batchIndex") or 0, f"{name}.batchIndex", least=NO_INDEX) > 0:
        raise BadRequest(
            f"{name}.batchIndex: a subscription is set to a whole entry, not to a message in a batch; leave batchIndex "
            "out"
        )
    excluded = flag_field(fields.get("excluded", False), f"{name}.excluded")
    if ledger < 0:
        return Target(BEFORE_ALL, partition=partition)
    return Target(Position(ledger, entry), excluded, partition)
