"""What waits for one consumer's socket, and how many permits the engine may have meanwhile. Sans-IO.

The engine sends what it has permits for, without asking how fast the socket is, so everything that it says has to
wait here, in order, and within bounds (invariant 11):

1. :class:`PermitGate` passes permits on only as fast as the socket takes entries.
2. A change of the active consumer replaces one that still waits behind the same entries.
3. A restart makes everything before it void: entries that wait are dropped, and their permits are the client's again;
   redeliveries that wait are dropped; of the changes of the active consumer the last is kept. A restart that waits
   already is moved to the end.
4. What the client asked before it saw a restart is void too (:attr:`OutgoingQueue.restart_unseen`): an acknowledgement
   of what came before a seek back would else mark as consumed what nobody has consumed since (invariant 5).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from replicator.client.wire.frames import (
    ENTRIES_PER_FRAME_MAX,
    FRAME_BYTES_TARGET,
    PERMITS_MAX,
    Active,
    Closed,
    Deliver,
    InvalidFrame,
    Redelivering,
    Restarted,
)
from replicator.engine.log.entry import ENTRY_BYTES_MAX
from replicator.engine.types import Delivery

OUTGOING_BYTES_MAX: Final = 16 * 1024 * 1024
"""Entries that wait for one consumer's socket."""
OUTGOING_CONTROLS_MAX: Final = 100
"""Redeliveries that a client may have asked for and not seen begin; then reading from it stops."""
GRANT_MESSAGES_MIN: Final = 16
GRANT_MESSAGES_MAX: Final = 1_000
"""With small messages a larger grant saves the engine work; with large ones it would only fill memory."""

OutgoingFrame = Deliver | Redelivering | Restarted | Active | Closed


class PermitGate:
    """How many of a client's permits the engine may have.

    1. It gets none while :data:`OUTGOING_BYTES_MAX` wait for the socket;
    2. it gets at most as many at once as fit in that, by the largest entry of late, within
       :data:`GRANT_MESSAGES_MIN` and :data:`GRANT_MESSAGES_MAX`; the memory of a large entry fades by half a delivery.
    """

    __slots__ = ("_entry_bytes", "_granted", "_queued_bytes", "_requested")

    def __init__(self) -> None:
        self._requested = 0
        self._granted = 0
        self._queued_bytes = 0
        self._entry_bytes = ENTRY_BYTES_MAX

    def requested(self, permits: int) -> int:
        """The client allows more; returns what to grant the engine now. Raises :class:`InvalidFrame`."""
        if permits <= 0:
            raise InvalidFrame(f"flow: {permits} permits; expected at least one")
        if self._requested + permits > PERMITS_MAX:
            raise InvalidFrame(f"flow: more than {PERMITS_MAX} permits without a delivery")
        self._requested += permits
        return self._grant()

    def delivered(self, deliveries: Sequence[Delivery]) -> None:
        """The engine used permits; what it has may go below zero, because it does not split batches."""
        sizes = [len(delivery.entry) for delivery in deliveries]
        self._granted -= sum(delivery.batch_size for delivery in deliveries)
        self._queued_bytes += sum(sizes)
        self._entry_bytes = max(self._entry_bytes // 2, *sizes, 1)

    def sent(self, entry_bytes: int) -> int:
        """Entries left; returns what to grant the engine now."""
        self._queued_bytes -= entry_bytes
        assert self._queued_bytes >= 0
        return self._grant()

    def dropped(self, deliveries: Sequence[Delivery]) -> int:
        """Entries are not going to be sent: their permits are unused. Returns what to grant the engine now."""
        self._requested += sum(delivery.batch_size for delivery in deliveries)
        return self.sent(sum(len(delivery.entry) for delivery in deliveries))

    def _grant(self) -> int:
        if self._queued_bytes >= OUTGOING_BYTES_MAX:
            return 0
        fitting = OUTGOING_BYTES_MAX // self._entry_bytes
        fitting = min(max(fitting, GRANT_MESSAGES_MIN), GRANT_MESSAGES_MAX)
        permits = max(0, min(self._requested, fitting - self._granted))
        self._requested -= permits
        self._granted += permits
        return permits


class OutgoingQueue:
    """The frames of one consumer, in order. A caller sends what :meth:`take` gives, then calls :meth:`sent`."""

    __slots__ = ("_active_taken", "_gate", "_unseen", "_untold", "_waiting", "redeliveries", "restarts")

    def __init__(self) -> None:
        self._gate = PermitGate()
        self._waiting: deque[Delivery | Redelivering | Restarted | Active | Closed] = deque()
        self._active_taken: bool | None = None
        self._untold = 0
        self._unseen = 0
        self.redeliveries = 0
        """How many :class:`Redelivering` wait."""
        self.restarts = 0
        """How often the subscription was put elsewhere."""

    @property
    def restart_untold(self) -> bool:
        """Whether a restart is not sent yet."""
        return self._untold > 0

    @property
    def restart_unseen(self) -> bool:
        """Whether the client may not know of a restart yet."""
        return self._unseen > 0

    # Of each of these that return a number: the permits to grant the engine now.

    def requested(self, permits: int) -> int:
        """The client allows more; raises :class:`InvalidFrame` for a number that makes no sense."""
        return self._gate.requested(permits)

    def delivered(self, deliveries: Sequence[Delivery]) -> None:
        """The engine has entries for the consumer."""
        self._waiting.extend(deliveries)
        self._gate.delivered(deliveries)

    def redelivering(self) -> None:
        """What the engine delivers from here on belongs to a redelivery of everything."""
        self._waiting.append(Redelivering())
        self.redeliveries += 1

    def active(self, active: bool) -> None:
        """The consumer became the active one, or is not any more."""
        if self._waiting and isinstance(self._waiting[-1], Active):
            self._waiting.pop()
        if active is not self._last_active():
            self._waiting.append(Active(active))

    def restarted(self) -> int:
        """The subscription was put elsewhere."""
        dropped = [waiting for waiting in self._waiting if isinstance(waiting, Delivery)]
        active = self._last_active()
        if not any(isinstance(waiting, Restarted) for waiting in self._waiting):
            self._untold += 1
            self._unseen += 1
        self.restarts += 1
        self._waiting.clear()
        self.redeliveries = 0
        if active is not None and active is not self._active_taken:
            self._waiting.append(Active(active))
        self._waiting.append(Restarted())
        return self._gate.dropped(dropped)

    def restart_seen(self) -> None:
        """The client says so; raises :class:`InvalidFrame` if it was told of none."""
        if self._unseen == self._untold:
            raise InvalidFrame("restart_seen without a restart")
        self._unseen -= 1

    def closed(self, code: str, reason: str) -> None:
        """The engine let go of the consumer: nothing comes after this."""
        self._waiting.append(Closed(code, reason))

    def take(self) -> OutgoingFrame | None:
        """The next frame to send, with as many entries as fit; None if nothing waits."""
        if not self._waiting:
            return None
        first = self._waiting.popleft()
        if isinstance(first, Active):
            self._active_taken = first.active
        elif isinstance(first, Redelivering):
            self.redeliveries -= 1
        if not isinstance(first, Delivery):
            return first
        deliveries = [first]
        size = len(first.entry)
        while self._waiting and len(deliveries) < ENTRIES_PER_FRAME_MAX:
            following = self._waiting[0]
            if not isinstance(following, Delivery) or size + len(following.entry) > FRAME_BYTES_TARGET:
                break
            self._waiting.popleft()
            deliveries.append(following)
            size += len(following.entry)
        return Deliver(tuple(deliveries))

    def sent(self, frame: OutgoingFrame) -> int:
        """A frame that was taken has left."""
        match frame:
            case Deliver(deliveries):
                return self._gate.sent(sum(len(delivery.entry) for delivery in deliveries))
            case Restarted():
                self._untold -= 1
        return 0

    def _last_active(self) -> bool | None:
        """What the client knows of being active once all that waits is sent; None if it was never told."""
        for waiting in reversed(self._waiting):
            if isinstance(waiting, Active):
                return waiting.active
        return self._active_taken
