"""Connection to one broker: its transport, its clock, and its unanswered requests.

It is the shell around :class:`replicator.protocol.client.ClientConnection`. All producers, consumers and watchers that
a client has at one address share it, each under an id that the connection gives out.

1. Messages of a consumer in one read of the socket are handed to it together, after the last one of that read or before
   anything else: so a loss, an answer and a restart keep their place among the messages. Receipts come in runs.
2. A request is answered by a callback, or awaited. A caller that waits when the connection ends gets
   :class:`ConnectError`.
3. While the socket takes no more, :attr:`Connection.writable` is false, and producers keep their entries until then.
   Other commands are small, and bounded by the answers that they wait for.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from typing import Any, Final, Protocol, cast

from replicator import __version__
from replicator.client.authentication import Authentication, AuthenticationTLS
from replicator.client.errors import AuthenticationError, ConnectError, PulsarException, Timeout, from_server
from replicator.protocol.client import ClientConnection, Response
from replicator.protocol.commands_pb2 import BaseCommand, FeatureFlags
from replicator.protocol.errors import NotAuthenticated, OutOfOrder, ProtocolError, Refused
from replicator.protocol.frames import Frame, encode
from replicator.protocol.runs import Messages, Receipts, Run
from replicator.running.timeouts import timeout

SOFTWARE: Final = f"replicator-client {__version__}"
KEEP_ALIVE_SECONDS: Final = 7.5
"""Interval of keep-alive pings. A broker that fell silent is noticed within twice this time."""
WRITE_BUFFER_BYTES: Final = 1024 * 1024
CLOSE_SECONDS_MAX: Final = 2.0
"""Longest time to send the last bytes before the connection is cut."""
FEATURES: Final = FeatureFlags(supports_topic_watchers=True, supports_partial_producer=True, supports_auth_refresh=True)

_log = logging.getLogger(__name__)

T = BaseCommand.Type
MakeRequest = Callable[[int], BaseCommand]
"""Function that makes the command of a request from its id."""
OnAnswer = Callable[[Any], None]
"""Function that gets the answer, or the :class:`PulsarException` in its place."""


class Session(Protocol):
    """Producer, consumer or watcher, as its connection sees it."""

    def on_command(self, command: BaseCommand) -> None:
        """Handle a command that was not asked for, and is neither a message nor a receipt."""

    def on_lost(self, error: PulsarException) -> None:
        """Handle the loss of the connection. Nothing comes after it."""


class ProducerSession(Session, Protocol):
    def on_receipts(self, receipts: Receipts) -> None:
        """Handle the answers to sends."""

    def on_writable(self) -> None:
        """Continue sending, because the socket takes more again."""


class ConsumerSession(Session, Protocol):
    def on_messages(self, messages: Messages) -> None:
        """Handle entries that arrived."""

    def on_messages_end(self) -> None:
        """Take note that the present group of messages is complete."""


class Connection(asyncio.Protocol):
    """Connection to a broker. The pool makes it, and it is usable when :meth:`opened` has returned.

    ``address`` is for error messages. With ``proxy_to``, a proxy at the address is asked to connect to that broker."""

    def __init__(
        self,
        address: str,
        on_over: Callable[[Connection], None],
        *,
        proxy_to: str = "",
        authentication: Authentication | None = None,
    ) -> None:
        self.address = address
        self.producers: dict[int, ProducerSession] = {}
        self.consumers: dict[int, ConsumerSession] = {}
        self.watchers: dict[int, Session] = {}
        self.writable = True
        self.error: PulsarException | None = None
        """Error that ended the connection; None while it is open."""
        self._on_over = on_over
        self._proxy_to = proxy_to
        self._shown = (
            "" if authentication is None or not authentication.source else f" (shown: {authentication.source})"
        )
        self._certified = isinstance(authentication, AuthenticationTLS)
        self._loop = asyncio.get_running_loop()
        self._state = ClientConnection(
            self._loop.time(),
            software=SOFTWARE,
            features=FEATURES,
            keep_alive_seconds=KEEP_ALIVE_SECONDS,
            gathers=True,
            method="" if authentication is None else authentication.method,
            credentials=bytes if authentication is None else authentication.credentials,
        )
        self._opened: asyncio.Future[None] = self._loop.create_future()
        self._transport: asyncio.Transport | None = None
        self._alarm: asyncio.TimerHandle | None = None
        self._answers: dict[int, OnAnswer] = {}
        self._last_id = 0
        self._receiving: dict[ConsumerSession, None] = {}
        """Consumers that got messages and were not told yet that the group is complete."""

    async def opened(self) -> None:
        """Wait until the broker has introduced itself. Raises :class:`ConnectError` if it does not."""
        await self._opened

    @property
    def cluster(self) -> str:
        """Name of the cluster if it is one of this project, which understands our additions; else empty."""
        return self._state.cluster

    @property
    def message_bytes_max(self) -> int:
        return self._state.message_bytes_max

    @property
    def features(self) -> FeatureFlags:
        assert self._state.peer is not None
        return self._state.peer.features

    @property
    def sessions(self) -> int:
        return len(self.producers) + len(self.consumers) + len(self.watchers)

    def next_id(self) -> int:
        """Return a new id for a producer, consumer or watcher."""
        self._last_id += 1
        return self._last_id

    # Sending.

    def send(self, command: BaseCommand) -> None:
        """Send a command that has no entry behind it."""
        self.write(encode(command))

    def write(self, frames: bytes) -> None:
        """Send frames that are encoded already, in one piece.

        ``writelines`` is no choice: from Python 3.12 on it raises if the other side has just closed, and up to 3.13.0
        it never says that the buffer is full.
        """
        if self.error is None and self._transport is not None:
            self._transport.write(frames)

    def ask(self, make: MakeRequest, answered: OnAnswer) -> int:
        """Send a request; ``answered`` gets its answer later. Return its id, for :meth:`give_up`."""
        if self.error is not None:
            self._loop.call_soon(answered, self.error)
            return -1
        try:
            request_id = self._state.request_id()
        except OutOfOrder as error:
            self._loop.call_soon(answered, Timeout(f"{self.address}: {error}"))
            return -1
        self._answers[request_id] = answered
        self.send(make(request_id))
        return request_id

    def give_up(self, request_id: int) -> None:
        """Drop the answer to a request when it comes: nothing waits for it any more."""
        self._answers.pop(request_id, None)
        self._state.given_up(request_id)

    async def request(self, make: MakeRequest, request_name: str, seconds_max: float | None) -> Any:
        """Send a request and wait for its answer.

        Raises the error that refuses it, :class:`ConnectError`, and :class:`Timeout`, which names the request."""
        answer: asyncio.Future[Any] = self._loop.create_future()

        def answered(value: Any) -> None:
            if answer.done():
                return
            if isinstance(value, PulsarException):
                answer.set_exception(value)
            else:
                answer.set_result(value)

        request_id = self.ask(make, answered)
        try:
            async with timeout(seconds_max):
                return await answer
        except TimeoutError:
            raise Timeout(
                f"{request_name}: no answer within {seconds_max:g} s; see that the broker or worker runs and is not "
                "overloaded"
            ) from None
        finally:
            self.give_up(request_id)

    def end(self, error: PulsarException) -> None:
        """Close the connection. All its users lose it with ``error``."""
        if self.error is not None:
            return
        self.error = error
        if self._alarm is not None:
            self._alarm.cancel()
        self._on_over(self)
        if self._transport is not None:
            # First: asyncio's transport of TLS cannot report it when it is closed twice.
            unsent = self._transport.get_write_buffer_size()
            self._transport.close()
            if unsent:  # it waits until they are sent, which may be for ever
                self._loop.call_later(CLOSE_SECONDS_MAX, self._transport.abort)
        self._tell(self._messages_end)
        if not self._opened.done():
            self._opened.set_exception(error)
            self._opened.exception()  # whether or not somebody waits for it
        answers, self._answers = list(self._answers.values()), {}
        for answered in answers:
            self._tell(answered, error)
        sessions: list[Session] = [*self.producers.values(), *self.consumers.values(), *self.watchers.values()]
        for kind in (self.producers, self.consumers, self.watchers):
            kind.clear()
        for session in sessions:
            self._tell(session.on_lost, error)

    # The transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self.error is not None:
            self._transport.abort()
            return
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        try:
            self.write(self._state.connect(proxy_to=self._proxy_to))
        except AuthenticationError as error:
            self.end(error)
            return
        self._alarm = self._loop.call_at(self._state.due, self._tick)

    def data_received(self, data: bytes) -> None:
        if self.error is not None:
            return
        try:
            for step in self._state.receive(data, self._loop.time()):
                if isinstance(step, Run):
                    self._run(step)
                elif isinstance(step, Frame):
                    self._messages_end()
                    self._received(step.command)
                elif isinstance(step, Response):
                    self._messages_end()
                    self._answered(step)
                else:
                    self.write(step)
                if self.error is not None:
                    return
        except AuthenticationError as error:
            self.end(error)
            return
        except NotAuthenticated as error:
            self.end(AuthenticationError(f"{self.address}: {error}{self._shown}"))
            return
        except ProtocolError as error:
            self.end(ConnectError(f"{self.address}: {error}; is it the address of a cluster?"))
            return
        self._messages_end()
        if self._state.peer is not None and not self._opened.done():
            self._opened.set_result(None)

    def pause_writing(self) -> None:
        self.writable = False

    def resume_writing(self) -> None:
        self.writable = True
        for producer in list(self.producers.values()):
            self._tell(producer.on_writable)

    def connection_lost(self, error: Exception | None) -> None:
        why = error or "the connection was closed"
        if self._certified and not self._opened.done():
            # With TLS 1.3 a broker judges a certificate only after the connection is made, and answers or closes.
            kind = AuthenticationError if isinstance(error, ssl.SSLError) else ConnectError
            self.end(kind(f"{self.address}: {why}, before the server answered{self._shown}"))
            return
        self.end(ConnectError(f"{self.address}: {why}"))

    def _tell(self, callback: Callable[..., None], *news: Any) -> None:
        """Call a session's callback. Log its failure, so that the other sessions still get their calls."""
        try:
            callback(*news)
        except Exception:  # noqa: BLE001 - a bug of theirs
            _log.exception("%s: %r failed", self.address, callback)

    def _tick(self) -> None:
        try:
            ping = self._state.tick(self._loop.time())
        except ProtocolError as error:
            self.end(ConnectError(f"{self.address}: {error}"))
            return
        if ping:
            self.write(ping)
        self._alarm = self._loop.call_at(self._state.due, self._tick)

    def _run(self, run: Run) -> None:
        if isinstance(run, Messages):
            consumer = self.consumers.get(run.command.consumer_id)
            if consumer is not None:
                self._receiving[consumer] = None
                consumer.on_messages(run)
        elif isinstance(run, Receipts):
            self._messages_end()
            producer = self.producers.get(run.command.producer_id)
            if producer is not None:
                producer.on_receipts(run)

    def _received(self, command: BaseCommand) -> None:
        session: Session | None = None
        match command.type:
            case T.SEND_ERROR:
                session = self.producers.get(command.send_error.producer_id)
            case T.CLOSE_PRODUCER:
                session = self.producers.pop(command.close_producer.producer_id, None)
            case T.CLOSE_CONSUMER:
                session = self.consumers.pop(command.close_consumer.consumer_id, None)
            case T.ACTIVE_CONSUMER_CHANGE:
                session = self.consumers.get(command.active_consumer_change.consumer_id)
            case T.REACHED_END_OF_TOPIC:
                session = self.consumers.get(command.reachedEndOfTopic.consumer_id)
            case T.RESTARTED:
                session = self.consumers.get(command.restarted.consumer_id)
            case T.WATCH_TOPIC_UPDATE:
                session = self.watchers.get(command.watchTopicUpdate.watcher_id)
            case _:
                _log.debug("%s: %s is of no use here", self.address, T.Name(command.type))
        if session is not None:
            session.on_command(command)

    def _answered(self, step: Response) -> None:
        answered = self._answers.pop(step.request_id, None)
        if answered is not None:
            answer = step.answer
            if isinstance(answer, Refused):
                answer = from_server(answer.code, str(answer), answer.engine_error)
            answered(answer)

    def _messages_end(self) -> None:
        while self._receiving:
            receiving, self._receiving = self._receiving, {}
            for consumer in receiving:
                consumer.on_messages_end()
