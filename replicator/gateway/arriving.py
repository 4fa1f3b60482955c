"""Commands of one client, carried out in slices of the event loop's time, in the order in which they came. Sans-IO.

1. While nothing waits, what comes is carried out at once, for a slice at most (:mod:`replicator.running.turns`).
2. What is left waits for the client's turn. The client is *behind* then: nothing more of it is read.
3. Carrying out stops while the client is flooded with answers that it does not take.
4. What came before the client left is carried out also after that. What came before *this* side ended the connection is
   dropped: nobody was told that it was done.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, Protocol

import structlog

from replicator.gateway.outgoing import Outgoing
from replicator.protocol.errors import ProtocolError
from replicator.running.turns import SLICE_SECONDS, FairScheduler, LoopShare

NOTHING: Final[Iterator[Any]] = iter(())
"""Iterator that yields nothing. All connections share it."""

log: Final = structlog.get_logger(__name__)


class CommandHandler(Protocol):
    """Interface of a connection, to the part that says when its commands are carried out."""

    def commands(self, data: bytes) -> Iterator[Any]:
        """Yield the commands in ``data``. Raise :class:`ProtocolError` if the connection must be closed."""

    def carry_out(self, command: Any) -> Iterator[None] | None:
        """Carry a command out. Return an iterator over the work left for later slices; its steps are short."""

    def on_commands_run(self) -> None:
        """Look at what the commands of this slice have changed."""

    def fail(self, reason: str) -> None:
        """Close the connection: the client broke the protocol."""

    def on_backlog_changed(self) -> None:
        """Read on, or do not: :attr:`Arrivals.behind` has changed."""

    def over(self) -> None:
        """Let go of the client: it has left, and all that it sent is carried out."""


class Arrivals:
    """Decides when a client's commands are carried out."""

    __slots__ = (
        "_arrived",
        "_commands",
        "_connection",
        "_left",
        "_outgoing",
        "_queued",
        "_rest",
        "_share",
        "_turns",
        "_unread",
        "behind",
        "dropped",
    )

    def __init__(self, connection: CommandHandler, outgoing: Outgoing, turns: FairScheduler, share: LoopShare) -> None:
        self._connection = connection
        self._outgoing = outgoing
        self._turns = turns
        self._share = share
        self.behind = False
        """Whether some of the commands that came are left."""
        self._rest: Iterator[None] | None = None
        """Steps that are left of a large command; they come first."""
        self._commands: Iterator[Any] = NOTHING
        """Commands that are left of the bytes that are being carried out."""
        self._arrived: list[bytes] = []
        """Bytes that came behind these."""
        self._unread: Iterator[bytes] = NOTHING
        """Bytes behind these that the socket of a client that has left still holds."""
        self._queued = False
        """Whether the client waits for its turn."""
        self._left = False
        """Whether the client has left."""
        self.dropped = False
        """Whether nothing more is carried out, because this side ends the connection."""

    def came(self, data: bytes) -> None:
        """Carry out the commands that came, or keep them for the client's turn."""
        if self.dropped:
            return
        if self.behind or not self._turns.may_begin(self._share):
            self._arrived.append(data)
            if not self.behind:
                self._enter_backlog(left_over=False)
            return
        self._commands = self._connection.commands(data)
        if self._work():
            self._enter_backlog(left_over=True)

    def go_on(self, *, left_over: bool = True) -> None:
        """Carry out the bytes that came, when it is the client's turn. ``left_over``: a part is done already."""
        if self.behind and not self._queued and not self._outgoing.flooded:
            self._queued = True
            self._turns.wait(self._share, self._turn, left_over=left_over)

    def drop(self) -> None:
        """Carry out nothing more: this side ends the connection."""
        self.dropped = True
        self._rest, self._commands, self._unread = None, NOTHING, NOTHING
        self._arrived.clear()

    def left(self, unread: Iterable[bytes]) -> None:
        """Note that the client has left. ``unread`` yields the last bytes that it sent, a piece at a time."""
        self._left = True
        if not self.dropped:
            self._unread = iter(unread)
        if self.behind or self._next_piece():
            self.behind = True
            self._outgoing.flooded = False
            self.go_on()
        else:
            self._connection.over()

    def _enter_backlog(self, *, left_over: bool) -> None:
        self.behind = True
        self._connection.on_backlog_changed()
        self.go_on(left_over=left_over)

    def _next_piece(self) -> bool:
        """Return whether bytes are left to be carried out. If none are, first read a piece from the socket of a client
        that has left."""
        if not self._arrived and (piece := next(self._unread, None)) is not None:
            self._arrived.append(piece)
        return bool(self._arrived)

    def _turn(self) -> bool:
        """Work for a slice, and return whether to do so again."""
        try:
            more = self._work()
        except Exception:  # a bug: where a command is carried out at once, the transport closes the connection for it
            log.exception("a command failed")
            self._connection.fail("a command failed")
            more = False
        self._queued = more and not self._outgoing.flooded
        if not more:
            self.behind = False
            if self._left:
                self._connection.over()
            else:
                self._connection.on_backlog_changed()
        return self._queued

    def _work(self) -> bool:
        """Carry commands out for a slice at most. Return whether something is left."""
        turns = self._turns
        clock = turns.clock
        began = clock()
        more = False
        try:
            more = self._slice(began + SLICE_SECONDS)
            self._connection.on_commands_run()
        except ProtocolError as error:
            self.drop()
            self._connection.fail(str(error))
        except Exception:  # a bug: what comes after the command that failed is not carried out
            self.drop()
            raise
        finally:
            now = clock()
            turns.spend(self._share, now - began, now)
        return more

    def _slice(self, until: float) -> bool:
        clock, outgoing, carry_out = self._turns.clock, self._outgoing, self._connection.carry_out
        if outgoing.flooded or (self._rest is not None and not self._finished(self._rest, until)):
            return True
        while True:
            for command in self._commands:
                rest = carry_out(command)
                if rest is not None and not self._finished(rest, until):
                    return True
                if outgoing.flooded or clock() >= until:
                    return True
            if not self._next_piece():
                return False
            self._commands = self._connection.commands(self._arrived.pop(0))

    def _finished(self, rest: Iterator[None], until: float) -> bool:
        """Go on with a large command until it is ``until``. Return whether it is done."""
        self._rest = rest
        for _ in rest:
            if self._turns.clock() >= until:
                return self.dropped
        self._rest = None
        return True
