"""Knowledge of one worker about failovers, and whether it may take clients. Sans-IO.

Invariants (DESIGN §3, §4.5):
- The known record only goes up in the order of :mod:`replicator.failover.epochs`.
- A worker that starts takes no clients before it has asked the others (or they had their time): an old primary that
  comes back takes no write after it could have known of the epoch that fenced it.
- What a planned switch fenced is free again when its coordinator dies, but not before the others were asked: the
  coordinator may have died after the target had taken over.
- Nothing is announced before it is durable here.

Algorithm:
1. Start: take what is stored; ask every other cluster; the highest answer wins; then the gate opens or not.
2. A record comes by marker, poll or push: if it is higher it is adopted at once (the gate follows in the same step)
   and saved. A lower one is ignored.
3. A switch to this cluster is proposed by a coordinator who names the record that it builds upon: if that is not the
   one known here, it is refused (:class:`EpochConflict`). Else it is saved, then adopted, then announced by a marker.
   A higher record that comes while it is saved wins: then the switch is refused, too, and nothing is announced.
4. A planned switch away from here holds the gate closed under a lease. When the lease runs out, the others are asked
   again, and the hold ends with their answers. A hold ends as well by its release, or with a record that fences us.

Events are methods; they return what the shell has to do, in order.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from replicator.engine.gate import Closed, Gate
from replicator.failover.epochs import FIRST, Precedence, is_fenced, precedence, successor
from replicator.failover.errors import EpochConflict
from snapshots.markers import FailoverEpoch

HOLD_MS_MAX: Final = 60_000
"""Time for which a silent coordinator keeps a cluster fenced. It renews its lease while it works."""


@dataclass(frozen=True, slots=True)
class SetGate:
    """Let this gate hold from now on, before anything else is done; disconnect the clients that it refuses."""

    gate: Gate


@dataclass(frozen=True, slots=True)
class Save:
    """Make the record durable, and index it."""

    record: FailoverEpoch


@dataclass(frozen=True, slots=True)
class Announce:
    """Write the record's marker, and tell the other clusters."""

    record: FailoverEpoch


@dataclass(frozen=True, slots=True)
class AskOthers:
    """Ask every other cluster for its record, and report with :meth:`FailoverCore.on_answers`."""


Action = SetGate | Save | Announce | AskOthers


@dataclass(frozen=True, slots=True)
class Hold:
    """A planned switch to ``target`` under way. ``until_ms`` is its lease, on the shell's clock."""

    operation: str
    target: str
    keep_consumers: bool
    until_ms: int
    asking: bool = False
    """The lease is over, and the others are being asked."""


class FailoverCore:
    """The failover state of one worker of ``cluster``."""

    def __init__(self, cluster: str) -> None:
        self.cluster = cluster
        self.record: FailoverEpoch = FIRST
        self.learned = False
        """Whether the others were asked since the start."""
        self.hold: Hold | None = None

    @property
    def gate(self) -> Gate:
        """Return the gate, which follows from the state alone."""
        record, hold = self.record, self.hold
        if is_fenced(record, self.cluster):
            kept = self.cluster in record.consumers_kept
            return Gate(Closed.FENCED, None if kept else Closed.FENCED, successor(record, self.cluster), record.epoch)
        if not self.learned:
            return Gate(Closed.STARTING, Closed.STARTING, self.cluster, record.epoch)
        if hold is not None:
            consumers = None if hold.keep_consumers else Closed.SWITCHING
            return Gate(Closed.SWITCHING, consumers, hold.target, record.epoch)
        return Gate(None, None, self.cluster, record.epoch)

    # Learning.

    def start(self, stored: FailoverEpoch | None, logged: Iterable[FailoverEpoch]) -> list[Action]:
        """Start with the stored record. ``logged`` are the records in the log of epochs, in any order."""
        assert not self.learned, "started twice"
        self.record = stored or FIRST
        announced = list(logged)
        newest = max(announced, key=precedence, default=FIRST)
        actions: list[Action] = []
        if precedence(newest) > precedence(self.record):  # it came by a link, and we fell before it was saved
            self.record = newest
            actions.append(Save(newest))
        elif (
            self.record.writer == self.cluster and self.record not in announced
        ):  # saved, and we fell before the marker
            actions.append(Announce(self.record))
        return [SetGate(self.gate), *actions, AskOthers()]

    def on_answers(self, records: Iterable[FailoverEpoch]) -> list[Action]:
        """Process the others' answers, or those that came in time."""
        self.learned = True
        if self.hold is not None and self.hold.asking:
            self.hold = None
        highest = max(records, key=precedence, default=FIRST)
        return self._adopt(highest) or [SetGate(self.gate)]

    def on_record(self, record: FailoverEpoch) -> list[Action]:
        """Process a record that came by a marker, a push, or an answer to a poll."""
        return self._adopt(record)

    def _adopt(self, record: FailoverEpoch) -> list[Action]:
        if precedence(record) <= precedence(self.record):
            return []
        self.record = record
        if self.hold is not None and (is_fenced(record, self.cluster) or record.target == self.hold.target):
            self.hold = None  # the switch that it was for is done
        return [SetGate(self.gate), Save(record)]

    # Taking over.

    def propose(self, record: FailoverEpoch, expected: Precedence) -> list[Action]:
        """Propose a switch to this cluster, built upon the record with the precedence ``expected``. The shell calls
        :meth:`on_saved` when it is saved. Raise :class:`EpochConflict` and change nothing if another record is
        known.
        """
        assert record.writer == record.target == self.cluster, record
        if precedence(self.record) != expected:
            raise EpochConflict(
                f"{self.cluster} is at failover epoch {self.record.epoch} of {self.record.writer or 'nobody'}, and the "
                f"requested switch builds upon epoch {expected[0]} of {expected[1] or 'nobody'}: look at `replicator "
                "failover-status`, and begin the switch again"
            )
        assert record.epoch == self.record.epoch + 1, record
        return [Save(record)]

    def on_saved(self, record: FailoverEpoch) -> list[Action]:
        """Adopt and announce the proposed record, which is durable now. Raise :class:`EpochConflict` if a higher one
        came meanwhile.
        """
        if precedence(self.record) > precedence(record):
            raise EpochConflict(
                f"{self.record.writer} switched to {self.record.target} at the same time, and its failover epoch "
                f"{self.record.epoch} wins, so that the switch to {self.cluster} does not count: look at `replicator "
                "failover-status`"
            )
        actions = self._adopt(record)
        return [*(action for action in actions if not isinstance(action, Save)), Announce(record)]

    # Being switched away from.

    def hold_clients(
        self, operation: str, target: str, expected: Precedence, until_ms: int, *, keep_consumers: bool
    ) -> list[Action]:
        """Fence this cluster for a planned switch. Raise :class:`EpochConflict` if the coordinator knows another
        record, or another switch is under way.
        """
        if precedence(self.record) != expected:
            raise EpochConflict(
                f"{self.cluster} is at failover epoch {self.record.epoch} of {self.record.writer or 'nobody'}, and the "
                f"requested switch builds upon epoch {expected[0]} of {expected[1] or 'nobody'}: look at `replicator "
                "failover-status`, and begin the switch again"
            )
        if self.hold is not None and self.hold.operation != operation:
            raise EpochConflict(f"{self.cluster} is being switched to {self.hold.target} already: wait for that to end")
        self.hold = Hold(operation, target, keep_consumers, until_ms)
        return [SetGate(self.gate)]

    def renew(self, operation: str, until_ms: int) -> None:
        """Renew the lease of a switch that goes on. Raise :class:`EpochConflict` if the hold is over: clients may have
        been here.
        """
        if self.hold is None or self.hold.operation != operation:
            raise EpochConflict(
                f"{self.cluster} does not keep clients away for this switch any more, and may have taken some again: "
                "begin the switch again"
            )
        self.hold = Hold(operation, self.hold.target, self.hold.keep_consumers, until_ms)

    def release(self, operation: str) -> list[Action]:
        """End the hold of a switch that was given up; do nothing if another one holds."""
        if self.hold is None or self.hold.operation != operation:
            return []
        self.hold = None
        return [SetGate(self.gate)]

    def on_tick(self, now_ms: int) -> list[Action]:
        """Ask the other clusters if the lease has run out."""
        hold = self.hold
        if hold is None or hold.asking or now_ms < hold.until_ms:
            return []
        self.hold = Hold(hold.operation, hold.target, hold.keep_consumers, hold.until_ms, asking=True)
        return [AskOthers()]
