"""Producers (or consumers, or watchers) of one connection, by the ids that the client chose. Sans-IO.

A session goes through these states; any other step is an error of the client or changes nothing::

    begin ──> OPENING ──opened──> OPEN ──forget──> GONE
                 │                  │                │
                 └─failed, close─┐  └─close─┐        └─close, begin, or forgotten
                                 v          v
                                (not there)

1. Opening takes a while, and the client may close the id meanwhile, and even open it again. So the opener holds a
   :class:`Slot`, and :meth:`Sessions.opened` says whether that slot still counts.
2. The client may still be sending to a session that the server let go of. Such an id is GONE for a while, at most
   :data:`GONE_MAX` of them: its commands are dropped without an error.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Generic, TypeVar

from replicator.protocol.commands_pb2 import ServerError
from replicator.protocol.errors import OutOfOrder, Refused

GONE_MAX: Final = 1_000

S = TypeVar("S")


class Slot(Generic[S]):
    """Session that is being opened, or is open, under the id ``number``. ``session`` is None until it is open.

    ``abandoned``, if set, is called when the client closes the session before it is open."""

    __slots__ = ("abandoned", "number", "session")

    def __init__(self, number: int) -> None:
        self.number = number
        self.session: S | None = None
        self.abandoned: Callable[[], object] | None = None


class Sessions(Generic[S]):
    """Sessions of one kind on a connection, at most ``limit``; ``kind`` is a word for errors, such as "producer"."""

    def __init__(self, kind: str, limit: int) -> None:
        self._kind = kind
        self._limit = limit
        self._slots: dict[int, Slot[S]] = {}
        self._gone: dict[int, None] = {}

    def __len__(self) -> int:
        """Return the number of sessions that are open or being opened."""
        return len(self._slots)

    def get(self, number: int) -> S | None:
        """Return the session of that id; None unless it is open."""
        slot = self._slots.get(number)
        return None if slot is None else slot.session

    def receiving(self, number: int) -> S | None:
        """Return the session that a command is for; None if the server let go of it.

        Raises :class:`OutOfOrder` for an id that nobody opened.
        """
        slot = self._slots.get(number)
        if slot is not None and slot.session is not None:
            return slot.session
        if slot is None and number in self._gone:
            return None
        raise OutOfOrder(f"{self._kind} {number} is not open on this connection: the client must open it first")

    def begin(self, number: int) -> Slot[S]:
        """Return a slot for a session that is to be opened under id ``number``.

        Raise :class:`Refused` while the id is in use, and past the limit.
        """
        if number in self._slots:
            raise Refused(ServerError.ServiceNotReady, f"the {self._kind} is already present on the connection")
        if len(self._slots) >= self._limit:
            raise Refused(
                ServerError.TooManyRequests, f"a connection may have {self._limit} {self._kind}s: open another one"
            )
        self._gone.pop(number, None)
        slot = self._slots[number] = Slot[S](number)
        return slot

    def opened(self, slot: Slot[S], session: S) -> bool:
        """Record that the session of ``slot`` is open. Return False if the client closed it meanwhile: then the caller
        closes it."""
        if not self.holds(slot):
            return False
        slot.session = session
        return True

    def holds(self, slot: Slot[S]) -> bool:
        """Return whether the client still wants the session of ``slot``."""
        return self._slots.get(slot.number) is slot

    def failed(self, slot: Slot[S]) -> None:
        """Forget a session that could not be opened."""
        if self.holds(slot):
            del self._slots[slot.number]

    def close(self, number: int) -> S | None:
        """Close a session for the client; return the session to close, if it was open."""
        self._gone.pop(number, None)
        slot = self._slots.pop(number, None)
        if slot is None:
            return None
        if slot.session is None and slot.abandoned is not None:
            slot.abandoned()
        return slot.session

    def forget(self, number: int, session: S) -> bool:
        """Forget a session that the server closed; the client's later commands for it are dropped. Return False if the
        id does not belong to ``session``."""
        slot = self._slots.get(number)
        if slot is None or slot.session is not session:
            return False
        del self._slots[number]
        if len(self._gone) >= GONE_MAX:
            del self._gone[next(iter(self._gone))]
        self._gone[number] = None
        return True

    def open(self) -> list[S]:
        """Return all open sessions."""
        return [slot.session for slot in self._slots.values() if slot.session is not None]

    def clear(self) -> list[S]:
        """Forget all sessions at the end of the connection; return those that were open."""
        sessions = self.open()
        self._slots.clear()
        self._gone.clear()
        return sessions
