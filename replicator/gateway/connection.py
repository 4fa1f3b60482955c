"""One client's connection: its transport, its clock, and the calls that run for it.

The shell around :class:`replicator.protocol.server.ServerConnection`, which knows what may come when. Commands are
begun in the order in which they come. A command that breaks the protocol closes the connection, and it alone; a request
that is refused costs nothing but that request.

Invariant 11 on this path: frames have a limit (:mod:`replicator.protocol.frames`); reading stops while
:data:`HELD_BYTES_MAX` of the client wait for the engine (not for a quota: that is given back) or :data:`CALLS_MAX`
calls run; consumers have no permits while the socket takes no more bytes, and nothing is read from a client that leaves
too many bytes unread (:mod:`replicator.gateway.outgoing`); producers, consumers and watchers of one connection are
counted. Producers that wait for their turn count as producers, and not as calls: they may wait for days, and would keep
the connection from everything else.

Time has a limit as well: commands are carried out in slices (:mod:`replicator.gateway.arriving`).

A connection ends within :data:`CLOSE_SECONDS_MAX`, also where the other side takes nothing any more: what its consumers
hold goes to others then.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, cast

import structlog

from replicator import __version__
from replicator.engine.engine import Engine
from replicator.engine.errors import EngineError
from replicator.engine.schemas.registry import SchemaRegistry
from replicator.engine.topics.topic_watchers import TopicWatchers
from replicator.engine.types import ClientInfo
from replicator.gateway.arriving import NOTHING, Arrivals
from replicator.gateway.consuming import ConsumerSession
from replicator.gateway.counted import unread
from replicator.gateway.message_ids import MessageAlias, SeekPositions
from replicator.gateway.outgoing import Outgoing
from replicator.gateway.refusals import server_error
from replicator.gateway.wire import PendingReceipts
from replicator.protocol.authentication import Admitted, AllowAll, Authenticator, Pending
from replicator.protocol.commands_pb2 import BaseCommand, CommandError, CommandSuccess, FeatureFlags, ServerError
from replicator.protocol.data_commands import Acks, Sends
from replicator.protocol.errors import NotAuthenticated, ProtocolError, Refused
from replicator.protocol.frames import Frame, encode
from replicator.protocol.server import ServerConnection
from replicator.running.connecting import address_of, plain_host
from replicator.running.limited_log import LIMITED
from replicator.running.pacing import MeteredCoroutine
from replicator.running.short_tasks import awaited
from replicator.running.turns import SLICE_SECONDS, LoopShare
from replicator.security.certificates import Certificate
from replicator.security.client_limits import ClientLimits
from replicator.security.guard import EVERYBODY, Guard
from replicator.security.identifying import ShownCertificate
from snapshots.position import Position

HELD_BYTES_MAX: Final = 32 * 1024 * 1024
CALLS_MAX: Final = 1_000
CLOSE_SECONDS_MAX: Final = 2.0
"""Time limit for sending the last bytes of a connection that is over."""
SOFTWARE: Final = f"replicator {__version__}"
FEATURES: Final = FeatureFlags(
    supports_topic_watchers=True,
    supports_get_partitioned_metadata_without_auto_creation=True,
    supports_partial_producer=True,
)

log = structlog.get_logger(__name__)

T = BaseCommand.Type
Handler = Callable[["Connection", Frame], Iterator[None] | None]
"""Begins to carry out a command. It returns an iterator with short steps if it leaves work for later slices."""


@dataclass(frozen=True, slots=True)
class Addresses:
    """Addresses at which clients reach this worker, for lookups."""

    url: str
    """``pulsar://host:port``."""
    tls_url: str | None = None


@dataclass(frozen=True, slots=True)
class Served:
    """Things that all connections of one gateway share."""

    engine: Engine
    addresses: Addresses
    watchers: TopicWatchers
    schemas: SchemaRegistry
    handlers: Mapping[int, Handler]
    """Handlers by the type of a command."""
    authenticator: Callable[[ShownCertificate], Authenticator] = lambda certificate: AllowAll()
    """Makes the one of a connection, which may ask for the certificate that its client showed."""
    guard: Guard = EVERYBODY
    """Says what a client may do, by its name."""
    broker_metadata: bool = False
    """Whether clients that ask for it are told the index and the time of each entry."""
    limits: ClientLimits = field(default_factory=ClientLimits)


class Connection(asyncio.Protocol):
    """One client's connection. The gateway makes it for each socket that speaks the binary protocol."""

    def __init__(
        self, served: Served, on_made: Callable[[Connection], None], on_over: Callable[[Connection], None]
    ) -> None:
        """Make the connection. ``on_made`` is called when there is a transport, which may be a while after the socket
        was accepted.
        """
        self.engine = served.engine
        self.addresses = served.addresses
        self.watchers = served.watchers
        self.schemas = served.schemas
        self.admission = served.engine.admission
        self.guard = served.guard
        self._limits = served.limits
        self._broker_metadata = served.broker_metadata
        self.known_as: SeekPositions[MessageAlias] = SeekPositions()
        self.put_at: SeekPositions[Position] = SeekPositions()
        """Positions where seeks left subscriptions that were removed with their consumers."""
        self.lookups_waiting: list[Frame] = []
        """See :mod:`replicator.gateway.lookups`."""
        self._loop = asyncio.get_running_loop()
        self.state = ServerConnection(
            self._loop.time(),
            software=SOFTWARE,
            features=FEATURES,
            cluster=served.engine.cluster,
            authenticator=served.authenticator(self._certificate),
            message_bytes_max=self.admission.message_bytes_max,
        )
        self._handlers = served.handlers
        self._on_made = on_made
        self._on_over = on_over
        self._transport: asyncio.Transport
        self._connected_at_ms = 0
        self._turns = served.engine.turns
        self.share = LoopShare("", self._end)
        self._host = ""
        self._counted_as = ""
        """Role under which the connection is counted."""
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at = 0.0
        self._calls: dict[asyncio.Task[None], tuple[bool, bool]] = {}
        """Calls that run, each with whether it goes on when the client is gone, and whether it counts for the limit.
        Answers to what a producer sent go on. They do not count, as calls that wait for other clients do not: there is
        one of each for each producer at most."""
        self._counting_calls = 0
        """Number of calls that count for the limit."""
        self.unanswered: dict[PendingReceipts, None] = {}
        self._held_bytes = 0
        self._reading = True
        self._outgoing = Outgoing(self._loop, self._update_reading)
        self.write = self._outgoing.write
        self._arrivals = Arrivals(self, self._outgoing, self._turns, self.share)
        self.data_received = self._arrivals.came  # type: ignore[method-assign]
        self._to_close: Iterator[Any] = NOTHING
        """Sessions that are still to be closed after the client has left."""
        self._first_consumer = 0
        self._later: list[Callable[[], None]] = []

    # The transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._outgoing.begin(self._transport)
        self._connected_at_ms = time.time_ns() // 1_000_000
        self._set_alarm()
        self._host, self.share.address = address_of(transport)
        self._turns.opened(self.share)
        self._on_made(self)
        self._count(self._limits.connections_of_address.take(self._host))

    # What came, as it is carried out.

    def commands(self, data: bytes) -> Iterator[Frame | Sends | Acks | Pending | bytes]:
        return self.state.receive(data, self._loop.time())

    def carry_out(self, step: Frame | Sends | Acks | Pending | bytes) -> Iterator[None] | None:
        if isinstance(step, Frame):
            return self._handlers[step.command.type](self, step)
        if isinstance(step, Sends):
            self._send(step)
        elif isinstance(step, Acks):
            return self._acknowledge(step)
        elif isinstance(step, Pending):
            self.work(self._find_out(step), "authenticating")
        else:
            self.write(step)
        return None

    def on_commands_run(self) -> None:
        if self._counted_as != self.state.name:
            self._was_admitted()
        if self.state.due < self._alarm_at:
            self._set_alarm()

    def on_backlog_changed(self) -> None:
        self.state.note_alive()
        self._update_reading()

    def _was_admitted(self) -> None:
        self._counted_as = self.share.role = self.state.name
        self._count(self._limits.connections_of_role.take(self._counted_as))

    def _count(self, too_many: str | None) -> None:
        if too_many is not None:
            self.fail(too_many)

    async def _find_out(self, pending: Pending) -> None:
        """Identify the client, within the handshake's time limit."""
        outcome: Admitted | NotAuthenticated
        try:
            outcome = await pending.find_out()
        except NotAuthenticated as error:
            outcome = error
        try:
            for frames in self.state.on_identified(pending, outcome, self._loop.time()):
                self.write(frames)
        except ProtocolError as error:
            self.fail(str(error))
        else:
            if self._counted_as != self.state.name:
                self._was_admitted()
            self._set_alarm()

    def _certificate(self) -> Certificate | None:
        """Return the client's certificate, which TLS has checked."""
        found: Certificate | None = self._transport.get_extra_info("peercert")
        return found

    def _send(self, sends: Sends) -> None:
        """Handle SENDs for one producer. If the engine has closed it, drop them: the client sends them again."""
        session = self.state.producers.receiving(sends.producer_id)
        if session is not None:
            session.send(sends)

    def _acknowledge(self, acks: Acks) -> Iterator[None] | None:
        """Handle ACKs of one consumer. Drop them if the consumer is gone, as a Pulsar broker does."""
        session: ConsumerSession | None = self.state.consumers.get(acks.consumer_id)
        return None if session is None else session.acknowledge(acks.commands)

    def pause_writing(self) -> None:
        self._outgoing.writable = False
        for session in self.state.consumers.open():
            session.blocked()

    def resume_writing(self) -> None:
        self._outgoing.writable = True
        consumers = self.state.consumers.open()
        # Another one first each time: what the first gets may fill the buffer again.
        self._first_consumer = first = (self._first_consumer + 1) % max(1, len(consumers))
        for session in consumers[first:] + consumers[:first]:
            session.writable()
        if self._outgoing.flooded:
            self._outgoing.flooded = False
            self._arrivals.go_on()
            self._update_reading()

    def eof_received(self) -> None:
        """Send what this turn has answered: the transport closes itself when the client sends no more."""
        self._outgoing.flush()

    def connection_lost(self, error: Exception | None) -> None:
        """Carry out what the client sent before it left, and then end the connection."""
        if self._alarm is not None:
            self._alarm.cancel()
        failed = isinstance(error, OSError) and not self._arrivals.dropped
        self._arrivals.left(unread(self._transport) if failed else ())

    def over(self) -> None:
        """Cancel the calls of the client, which has left, and close its sessions."""
        self._turns.closed(self.share)
        for task, (to_the_end, _) in self._calls.items():
            if not to_the_end:
                task.cancel()
        self._to_close = iter(self.state.close())
        if self._close_some():
            self._turns.wait(self.share, self._close_some, left_over=True)

    def _close_some(self) -> bool:
        """Close sessions for one slice of time, and return whether some are left. A connection may have thousands."""
        clock = self._turns.clock
        began = clock()
        more = False
        for session in self._to_close:
            try:
                session.close()
            except Exception:  # a bug; the others must not stay connected for it
                log.exception("a session could not be closed")
            if clock() >= began + SLICE_SECONDS:
                more = True
                break
        now = clock()
        self._turns.spend(self.share, now - began, now)
        if not more:
            self._limits.connections_of_address.give_back(self._host)
            self._limits.connections_of_role.give_back(self._counted_as)
            self._on_over(self)
        return more

    def _end(self) -> None:
        self.fail("an operator closed the connection")

    def close(self) -> None:
        """Close the connection, because the client broke the protocol or the worker stops.

        Commands of the client that were not carried out yet are dropped. None of them was answered.
        """
        self._arrivals.drop()
        self._outgoing.flush()
        if not self._transport.is_closing():
            self._transport.close()
            if self._alarm is not None:
                self._alarm.cancel()
            # Closing waits until everything is sent, which may be for ever.
            self._alarm = self._loop.call_later(CLOSE_SECONDS_MAX, self._transport.abort)

    def _tick(self) -> None:
        if self._outgoing.flooded and self._outgoing.takes_some():  # nothing of it is heard, but it is there
            self.state.note_alive()
        try:
            self.write(self.state.tick(self._loop.time()))
        except ProtocolError as error:
            self.fail(str(error))
        else:
            self._set_alarm()

    def _set_alarm(self) -> None:
        if self._transport.is_closing():
            return
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm_at = self.state.due
        self._alarm = self._loop.call_at(self._alarm_at, self._tick)

    # What sessions and handlers need.

    @property
    def host(self) -> str:
        """Return the address from which the client came."""
        return self._host

    @property
    def writable(self) -> bool:
        """Return whether the socket takes more bytes."""
        return self._outgoing.writable

    @property
    def role(self) -> str:
        """Return the client's role; empty without authentication."""
        return self.state.name

    @property
    def client(self) -> ClientInfo:
        """Return address and software of the client, for figures."""
        host, port = (self._transport.get_extra_info("peername") or ("", 0))[:2]
        return ClientInfo(f"/{plain_host(str(host))}:{port}", self.state.peer.software, self._connected_at_ms)

    def send(self, command: BaseCommand) -> None:
        self.write(encode(command))

    def fail(self, reason: str) -> None:
        if not self._transport.is_closing():
            peer = self._transport.get_extra_info("peername")
            LIMITED.say(log.info, "client disconnected", self._host, peer=peer, reason=reason)
            self.close()

    def wants_broker_metadata(self) -> bool:
        return self._broker_metadata and self.state.peer.features.supports_broker_entry_metadata

    def understands(self, since: int) -> bool:
        return self.state.peer.understands(since)

    def knows_end_of_topic(self) -> bool:
        return self.state.peer.knows_end_of_topic

    def work(
        self, call: Coroutine[Any, Any, None], name: str, *, to_the_end: bool = False, waits: bool = False
    ) -> asyncio.Task[None]:
        task = awaited(MeteredCoroutine(call, self._turns, self.share), name)
        counts = not (to_the_end or waits)
        self._calls[task] = to_the_end, counts
        self._counting_calls += counts
        task.add_done_callback(self._has_ended)
        self._update_reading()
        return task

    def later(self, call: Callable[[], None]) -> None:
        if not self._later:
            self._loop.call_soon(self._call_later)
        self._later.append(call)

    def after(self, seconds: float, call: Callable[[], None]) -> asyncio.TimerHandle:
        return self._loop.call_later(seconds, call)

    def _call_later(self) -> None:
        calls, self._later = self._later, []
        began = self._turns.clock()
        for call in calls:
            try:
                call()
            except Exception:  # a bug of one session, which the others must not suffer from
                log.exception("a session failed")
                self.fail("a session failed")
        now = self._turns.clock()
        self._turns.spend(self.share, now - began, now)

    def held(self, size_bytes: int) -> None:
        self._held_bytes += size_bytes
        if self._reading and self._held_bytes < HELD_BYTES_MAX:
            return  # as before
        self._update_reading()
        if size_bytes > 0 and self._held_bytes >= HELD_BYTES_MAX:
            for session in self.state.producers.open():
                session.relieve()

    def producer_gone(self, producer_id: int, session: object) -> bool:
        return self.state.producers.forget(producer_id, session)

    def consumer_put_at(self, consumer_id: int, mark_delete: Position) -> None:
        self.put_at.put(consumer_id, mark_delete)

    def consumer_gone(self, consumer_id: int, session: object) -> bool:
        return self.state.consumers.forget(consumer_id, session)

    def request(self, request_id: int, call: Coroutine[Any, Any, None], name: str, *, waits: bool = False) -> None:
        """Run a call that answers by itself, and answer a refusal as an error. A call that ``waits`` for others may
        take any time: the limit of sessions bounds their number.
        """

        async def answered() -> None:
            try:
                await call
            except (EngineError, Refused) as error:
                self.refuse(request_id, error)

        # Where the client is gone before the call begins, nothing of it runs: it is closed, not left lying.
        self.work(answered(), name, waits=waits).add_done_callback(lambda _: call.close())

    def succeeded(self, request_id: int) -> None:
        self.send(BaseCommand(type=T.SUCCESS, success=CommandSuccess(request_id=request_id)))

    def refuse(self, request_id: int, error: EngineError | Refused, code: ServerError | None = None) -> None:
        """Answer a request with the code that clients know for ``error``, unless another is given."""
        if code is None:
            code = error.code if isinstance(error, Refused) else server_error(error)
        refusal = CommandError(request_id=request_id, error=code, message=str(error))
        if isinstance(error, EngineError):
            refusal.engine_error = error.code
        self.send(BaseCommand(type=T.ERROR, error=refusal))

    def _has_ended(self, task: asyncio.Task[None]) -> None:
        _, counts = self._calls.pop(task)
        self._counting_calls -= counts
        if not task.cancelled() and (error := task.exception()) is not None:
            # A bug of ours: the client would wait for an answer for ever.
            log.error("a client's call failed", call=task.get_name(), exc_info=error)
            self.fail(f"{task.get_name()} failed")
        self._update_reading()

    def _update_reading(self) -> None:
        reading = (
            self._held_bytes < HELD_BYTES_MAX
            and self._counting_calls < CALLS_MAX
            and not self._arrivals.behind
            and not self._outgoing.flooded
        )
        if reading is not self._reading and not self._transport.is_closing():
            self._reading = reading
            (self._transport.resume_reading if reading else self._transport.pause_reading)()
