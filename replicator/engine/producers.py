"""Who may publish to a topic: the registry of connected producers, and the producer that a channel holds.

Invariants: at any time a topic has either any number of shared producers or one exclusive one; a name belongs to one
session; the topic's epoch grows with each exclusive owner, and is durable before that owner is told.

:class:`ProducerRegistry` is sans-IO: it takes who comes and goes, and says who is admitted and who is fenced.

1. A producer that brings the epoch and the name of the owner is that owner on a new connection: it takes the place of
   its old session, before all that wait.
2. One that brings an older epoch is fenced: somebody else has owned the topic since.
3. Else the access mode decides. Shared: refused while there is an owner, or one waiting. Exclusive: refused while
   there is anybody. WaitForExclusive: queues while there is anybody; first come, first served, but one that brings the
   present epoch goes first. ExclusiveWithFencing: everybody else goes, those that wait included.
4. When the last connected producer leaves, the first that waits becomes the owner.

:class:`TopicProducers` is the shell: it writes the epoch and wakes those that wait. Since the epoch goes through the
writer's queue, all that was published by those who were fenced lies before it in the log, and nothing after it.

Source: PIP-68 and PIP-161. Unlike upstream, a producer with an old epoch fences nobody before it is refused, and one
that waits behind shared producers is admitted when the last of them has left.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Final, Protocol

from replicator.engine.errors import EngineError, NotAllowedError, ProducerBusy, ProducerFenced
from replicator.engine.policies import TopicPolicies
from replicator.engine.types import AccessMode, ProducerOptions
from replicator.engine.writer import Tail, Writer
from snapshots.position import Position

PRODUCERS_MAX: Final = 10_000
"""Connected to one topic, and as many waiting; a policy can set fewer."""
PRODUCER_NAME_BYTES_MAX: Final = 400
"""A name is part of a key of the store, and those end at 511 bytes."""
FORGET_EVERY_MS: Final = 15 * 60 * 1000
"""Looking for inactive producers reads the rows of a topic; they are kept for hours."""
EPOCH_MAX: Final = 2**63 - 1
CLOSED: Final = "ProducerClosed"
"""The code for a producer that the worker lets go of without fault of its own: it may connect again."""

_sessions = count(1)


@dataclass(frozen=True, slots=True)
class Admitted:
    """This session is connected. With ``save_epoch``, its epoch has to be durable before it is told."""

    session: int
    epoch: int | None
    save_epoch: bool


@dataclass(frozen=True, slots=True)
class Fenced:
    """This session, connected or waiting, is out."""

    session: int
    reason: str


Decision = Admitted | Fenced


@dataclass(frozen=True, slots=True)
class _Waiting:
    session: int
    name: str
    epoch: int | None


class ProducerRegistry:
    """Decides who may publish to one topic. ``epoch`` is the topic's durable one, None if it never had an owner."""

    def __init__(self, epoch: int | None) -> None:
        self.epoch = epoch
        self.sessions: dict[str, int] = {}
        """Session by name, of those that are connected or wait."""
        self._connected: dict[int, str] = {}
        self._waiting: deque[_Waiting] = deque()
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
        """Somebody comes. No :class:`Admitted` of it among the decisions means that it waits.

        Raises :class:`ProducerBusy`, :class:`ProducerFenced` and :class:`NotAllowedError`; then nothing has changed.
        """
        check_producer_name(name)
        mode, epoch = options.access_mode, options.topic_epoch
        if mode is AccessMode.SHARED:
            return self._connect_shared(session, name, producers_max)
        if epoch is not None and not 0 <= epoch <= EPOCH_MAX:
            raise NotAllowedError(f"topic epoch {epoch} is not in 0..{EPOCH_MAX}")
        if epoch is not None and self.epoch is not None and epoch < self.epoch:
            raise ProducerFenced(
                f"producer {name!r} owned the topic in epoch {epoch}, and it is in {self.epoch}: another producer has "
                "owned it since; connect without an epoch to own it again"
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
            raise ProducerBusy(f"{PRODUCERS_MAX} producers wait for the topic already, the limit")
        waiting = _Waiting(session, name, epoch)
        if epoch is not None and epoch == self.epoch:
            self._waiting.appendleft(waiting)
        else:
            self._waiting.append(waiting)
        self.sessions[name] = session
        return []

    def leave(self, session: int) -> list[Decision]:
        """Somebody goes, or gives up waiting; one that is not here is no error."""
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
        following = self._waiting.popleft()
        return [self._own(following.session, following.name, following.epoch)]

    def _connect_shared(self, session: int, name: str, producers_max: int | None) -> list[Decision]:
        if self._owner is not None or self._waiting:
            raise ProducerBusy(
                f"the topic has {self._others()}: producer {name!r} cannot share it; connect again when it has left"
            )
        self._check_name_is_free(name)
        limit = PRODUCERS_MAX if producers_max is None else min(producers_max, PRODUCERS_MAX)
        if len(self._connected) >= limit:
            raise ProducerBusy(f"the topic has {limit} producers, the limit (max_producers): close one, or raise it")
        self._connected[session] = name
        self.sessions[name] = session
        return [Admitted(session, None, save_epoch=False)]

    def _own(self, session: int, name: str, epoch: int | None) -> Admitted:
        """A new owner; one with the present epoch (or a higher one: the store is older than it) goes on with it."""
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
    """Return ``name`` if a producer can have it; raises :class:`NotAllowedError`."""
    length = len(name.encode("utf-8", "surrogatepass"))
    if not 0 < length <= PRODUCER_NAME_BYTES_MAX or "\0" in name:
        raise NotAllowedError(
            f"producer name {name[:60]!r} must have 1 to {PRODUCER_NAME_BYTES_MAX} bytes, none of them 0"
        )
    return name


class ProducedTopic(Protocol):
    """What producers ask of the topic that they are on."""

    name: str
    loop: asyncio.AbstractEventLoop
    writer: Writer

    @property
    def cluster(self) -> str: ...

    @property
    def policies(self) -> TopicPolicies: ...

    @property
    def tail(self) -> Tail: ...

    async def publish(self, entries: Sequence[bytes], producer: EngineProducer | None = None) -> list[Position]: ...


class EngineProducer:
    """A producer that is connected to a topic. Made by :meth:`TopicProducers.create`."""

    def __init__(self, producers: TopicProducers, name: str) -> None:
        self.id = next(_sessions)
        self.name = name
        self.last_sequence_id = -1
        """The highest sequence id that the topic has of this name; -1 if none, or without deduplication."""
        self.topic_epoch: int | None = None
        """For an exclusive producer: brings it back into its place when it connects again."""
        self.on_closed: Callable[[str, str], None] | None = None
        """Called with a code and a reason when the topic lets go of the producer, not for its own :meth:`close`."""
        self.admission: asyncio.Future[Admitted] = producers.topic.loop.create_future()
        self._producers = producers
        self._out: EngineError | None = None

    @property
    def closed(self) -> bool:
        return self._out is not None

    async def publish(self, entries: Sequence[bytes]) -> list[Position]:
        """Append entries; returns their positions when they are durable, ``DUPLICATE`` for those that are here already.

        Raises :class:`ProducerFenced`, :class:`NotAllowedError` once closed, and what :meth:`Topic.publish` does.
        """
        self.check_open()
        return await self._producers.topic.publish(entries, self)

    def check_open(self) -> None:
        """Raises why the producer may not publish any more."""
        if self._out is not None:
            raise self._out

    def close(self) -> None:
        """Leave; a producer that waits for the topic gets it. What was published before is not undone."""
        if self._out is None:
            self._out = NotAllowedError(f"producer {self.name!r} is closed")
            self._producers.leave(self)

    def put_out(self, error: EngineError, code: str) -> None:
        """The topic lets go of the producer; whoever holds it hears of that on a later tick."""
        if self._out is not None:
            return
        self._out = error
        if not self.admission.done():
            self.admission.set_exception(error)
        else:
            self._producers.topic.loop.call_soon(self._tell_closed, code, str(error))

    def _tell_closed(self, code: str, reason: str) -> None:
        if self.on_closed is not None:
            self.on_closed(code, reason)


class TopicProducers:
    """The producers of one topic: acts on what the registry decides. Runs on the engine's event loop."""

    def __init__(self, topic: ProducedTopic, epoch: int | None) -> None:
        self.topic = topic
        self.registry = ProducerRegistry(epoch)
        self._members: dict[int, EngineProducer] = {}
        self._forgot_at_ms = topic.writer.wall_clock_ms()
        topic.tail.connected = self.registry.sessions

    async def create(self, options: ProducerOptions) -> EngineProducer:
        """Connect a producer; one that waits for the topic is connected when this returns, or cancelled.

        Raises what :meth:`ProducerRegistry.connect` does, and the store's errors.
        """
        producer = EngineProducer(self, options.name if options.name is not None else self._new_name())
        decisions = self.registry.connect(producer.id, producer.name, options, self.topic.policies.max_producers)
        self._members[producer.id] = producer
        self._act(decisions)
        try:
            admitted = await producer.admission
            producer.topic_epoch = admitted.epoch
            numbered = self.topic.policies.deduplication
            if admitted.save_epoch or numbered:
                producer.last_sequence_id = await self.topic.writer.open_producer(
                    self.topic.tail,
                    producer.name,
                    epoch=admitted.epoch if admitted.save_epoch else None,
                    numbered=numbered,
                )
            producer.check_open()  # it may have been fenced meanwhile
        except BaseException:
            producer.close()
            raise
        return producer

    def leave(self, producer: EngineProducer) -> None:
        self._members.pop(producer.id, None)
        self._act(self.registry.leave(producer.id))

    async def forget_inactive(self) -> None:
        """Now and then, drop what deduplication knows of producers that were not seen for long."""
        now_ms = self.topic.writer.wall_clock_ms()
        if self.topic.policies.deduplication and abs(now_ms - self._forgot_at_ms) >= FORGET_EVERY_MS:
            self._forgot_at_ms = now_ms
            await self.topic.writer.drop_inactive_producers(self.topic.tail)

    def close(self, reason: str) -> None:
        """Let go of everybody."""
        members, self._members = self._members, {}
        for session in members:  # whoever this admits leaves as well
            self.registry.leave(session)
        for producer in members.values():
            producer.put_out(NotAllowedError(f"producer {producer.name!r} is closed: {reason}"), CLOSED)

    def _act(self, decisions: Sequence[Decision]) -> None:
        for decision in decisions:
            if isinstance(decision, Admitted):
                admission = self._members[decision.session].admission
                if not admission.done():  # else it was cancelled, and leaves as soon as it runs
                    admission.set_result(decision)
            else:
                fenced = self._members.pop(decision.session)
                fenced.put_out(ProducerFenced(f"{self.topic.name}: {decision.reason}"), ProducerFenced.code)

    def _new_name(self) -> str:
        """One that nobody has or had: what deduplication knows of an older namesake would drop its messages."""
        return f"{self.topic.cluster}-{secrets.token_hex(8)}"
