"""Registry that decides which producers may publish to a topic, by names, access modes and epochs. Sans-IO.

Invariants: at any time a topic has either any number of shared producers or one exclusive one; a name belongs to one
session; the topic's epoch grows with each exclusive owner, and is durable before that owner is told.

1. A producer that brings the epoch and the name of the owner is that owner on a new connection. It takes the place of
   its old session, before all that wait.
2. A producer that brings an older epoch is fenced, because another one has owned the topic since.
3. Otherwise the access mode decides. Shared: refused while there is an owner, or one waits. Exclusive: refused while
   there is any producer. WaitForExclusive: queues while there is any producer; first come, first served, but one that
   brings the present epoch goes first. ExclusiveWithFencing: all other producers are disconnected, even waiting ones.
4. When the last connected producer leaves, the first that waits becomes the owner.

Source: PIP-68 and PIP-161. Unlike upstream, a producer with an old epoch is refused without fencing others, and one
that waits behind shared producers is admitted when the last of them has left.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from replicator.engine.errors import NotAllowedError, ProducerBusy, ProducerFenced
from replicator.engine.types import AccessMode, ProducerOptions

PRODUCERS_MAX: Final = 10_000
"""Limit of producers that are connected to one topic, and of those that wait. A policy can set fewer."""
PRODUCER_NAME_BYTES_MAX: Final = 400
"""Limit of a producer's name, which is part of a key of the store; keys have at most 511 bytes."""
EPOCH_MAX: Final = 2**62
"""Highest epoch that a producer may bring. The topic's own epoch grows from there by one with each owner, within 63
bits."""


@dataclass(frozen=True, slots=True)
class Admitted:
    """Decision that a session is connected. With ``save_epoch``, its epoch must be durable before the session is
    told."""

    session: int
    epoch: int | None
    save_epoch: bool


@dataclass(frozen=True, slots=True)
class Fenced:
    """Decision that a session, connected or waiting, is disconnected."""

    session: int
    reason: str


Decision = Admitted | Fenced


@dataclass(frozen=True, slots=True)
class _Waiting:
    session: int
    name: str
    epoch: int | None


class ProducerRegistry:
    """Decides which producers may publish to one topic. ``epoch`` is the topic's durable epoch, None if it never had an
    owner."""

    def __init__(self, epoch: int | None) -> None:
        self.epoch = epoch
        self.sessions: dict[str, int] = {}
        """Session of each producer that is connected or waits, by name."""
        self._connected: dict[int, str] = {}
        self._waiting: list[_Waiting] = []  # an empty deque takes 600 bytes, for each topic
        self._owner: int | None = None

    def __len__(self) -> int:
        return len(self._connected)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def exclusive(self) -> bool:
        return self._owner is not None

    def connect(
        self, session: int, name: str, options: ProducerOptions, producers_max: int | None = None
    ) -> list[Decision]:
        """Add a producer, and return the decisions. Without an :class:`Admitted` for ``session``, it waits.

        Raises :class:`ProducerBusy`, :class:`ProducerFenced` or :class:`NotAllowedError`, and changes nothing then.
        """
        check_producer_name(name)
        mode, epoch = options.access_mode, options.topic_epoch
        if mode is AccessMode.SHARED:
            return self._connect_shared(session, name, producers_max)
        if epoch is not None and not 0 <= epoch <= max(EPOCH_MAX, self.epoch or 0):
            raise NotAllowedError(f"topic epoch {epoch} is not in 0..{EPOCH_MAX}: connect without an epoch")
        if epoch is not None and self.epoch is not None and epoch < self.epoch:
            raise ProducerFenced(
                f"producer {name!r} owned the topic in epoch {epoch}, and the topic is in epoch {self.epoch} now: "
                "another producer has owned it since; connect without an epoch to own it again"
            )
        if (
            epoch is not None
            and epoch == self.epoch
            and self._owner is not None
            and self.sessions.get(name) == self._owner
        ):
            return self._replace_owner(session, name)
        if mode is AccessMode.EXCLUSIVE_WITH_FENCING:
            decisions = self._fence_all(f"producer {name!r} has taken the topic for itself")
            return [*decisions, self._own(session, name, epoch)]
        self._check_name_is_free(name)
        if mode is AccessMode.EXCLUSIVE:
            if self._connected or self._waiting:
                raise ProducerFenced(
                    f"the topic has {self._others()}: producer {name!r} cannot have it for itself; "
                    "wait for it (WaitForExclusive) or take it (ExclusiveWithFencing)"
                )
            return [self._own(session, name, epoch)]
        if not self._connected:
            return [self._own(session, name, epoch)]
        if len(self._waiting) >= PRODUCERS_MAX:
            raise ProducerBusy(f"{PRODUCERS_MAX} producers wait for the topic already, the limit: close some of them")
        waiting = _Waiting(session, name, epoch)
        if epoch is not None and epoch == self.epoch:
            self._waiting.insert(0, waiting)
        else:
            self._waiting.append(waiting)
        self.sessions[name] = session
        return []

    def leave(self, session: int) -> list[Decision]:
        """Remove a session that was connected or waited, and return the decisions. An unknown session is no error."""
        name = self._connected.pop(session, None)
        if name is None:
            gone = next((waiting for waiting in self._waiting if waiting.session == session), None)
            if gone is not None:
                self._waiting.remove(gone)
                del self.sessions[gone.name]
            return []
        del self.sessions[name]
        if session == self._owner:
            self._owner = None
        if self._connected or not self._waiting:
            return []
        following = self._waiting.pop(0)
        return [self._own(following.session, following.name, following.epoch)]

    def _connect_shared(self, session: int, name: str, producers_max: int | None) -> list[Decision]:
        if self._owner is not None or self._waiting:
            raise ProducerBusy(
                f"producer {name!r} cannot share the topic with {self._others()}: connect again when that has left"
            )
        self._check_name_is_free(name)
        limit = PRODUCERS_MAX if producers_max is None else min(producers_max, PRODUCERS_MAX)
        if len(self._connected) >= limit:
            raise ProducerBusy(f"the topic has {limit} producers, the limit (max_producers): close one, or raise it")
        self._connected[session] = name
        self.sessions[name] = session
        return [Admitted(session, None, save_epoch=False)]

    def _own(self, session: int, name: str, epoch: int | None) -> Admitted:
        """Make a session the owner. If it brings the present epoch, it keeps that epoch. It also keeps a higher one,
        because then the store is older than the epoch."""
        assert not self._connected
        assert self._owner is None
        before = self.epoch
        if epoch is not None and (before is None or epoch >= before):
            self.epoch = epoch
        else:
            self.epoch = 0 if before is None else before + 1
        self._owner = session
        self._connected[session] = name
        self.sessions[name] = session
        return Admitted(session, self.epoch, save_epoch=self.epoch != before)

    def _replace_owner(self, session: int, name: str) -> list[Decision]:
        assert self._owner is not None
        before = self._owner
        del self._connected[before]
        self._connected[session] = name
        self.sessions[name] = self._owner = session
        return [
            Fenced(before, f"producer {name!r} has connected again"),
            Admitted(session, self.epoch, save_epoch=False),
        ]

    def _fence_all(self, reason: str) -> list[Decision]:
        out = [*self._connected, *(waiting.session for waiting in self._waiting)]
        self._connected.clear()
        self._waiting.clear()
        self.sessions.clear()
        self._owner = None
        return [Fenced(session, reason) for session in out]

    def _check_name_is_free(self, name: str) -> None:
        if name in self.sessions:
            raise ProducerBusy(
                f"a producer named {name!r} is connected: close it, or take another name (no name lets the topic "
                "choose one)"
            )

    def _others(self) -> str:
        if self._owner is not None:
            return f"an exclusive producer, {self._connected[self._owner]!r}"
        if self._connected:
            return f"{len(self._connected)} other producers"
        return f"{len(self._waiting)} producers that wait to own it"


def check_producer_name(name: str) -> str:
    """Return ``name`` if a producer can have it. Raise :class:`NotAllowedError` otherwise."""
    length = len(name.encode("utf-8", "surrogatepass"))
    if not 0 < length <= PRODUCER_NAME_BYTES_MAX or "\0" in name:
        raise NotAllowedError(
            f"producer name {name[:60]!r} must have 1 to {PRODUCER_NAME_BYTES_MAX} bytes, and none of them may be a "
            "zero byte"
        )
    return name
