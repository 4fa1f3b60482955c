"""Client's side of a connection: handshake, keep-alive, and the matching of answers to requests. Sans-IO.

1. CONNECT goes first; nothing else is sent before CONNECTED has come.
2. Every request has an id of its own. An answer with an id that nothing waits for, such as a late one, is dropped.
   :data:`REQUESTS_MAX` bounds the waiting requests.
3. Other commands (messages, receipts, closings) are given to the caller as they come.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from replicator.engine.log.entry import MESSAGE_BYTES_LIMIT, MESSAGE_BYTES_MAX
from replicator.protocol.commands_pb2 import (
    AuthData,
    BaseCommand,
    CommandAuthResponse,
    CommandConnect,
    CommandPing,
    CommandPong,
    FeatureFlags,
)
from replicator.protocol.errors import NotAuthenticated, OutOfOrder, ProtocolError, Refused, Unresponsive
from replicator.protocol.frames import Frame, FrameDecoder, encode, frame_bytes_max
from replicator.protocol.runs import AnswerReader, Run
from replicator.protocol.server import HANDSHAKE_SECONDS_MAX, KEEP_ALIVE_SECONDS
from replicator.protocol.versions import NEWEST, Peer, server_of

REQUESTS_MAX: Final = 50_000
"""Limit of requests that wait for an answer; the official clients' value."""

T = BaseCommand.Type
_PING, _PONG, _CONNECTED, _AUTH_CHALLENGE = int(T.PING), int(T.PONG), int(T.CONNECTED), int(T.AUTH_CHALLENGE)
_ANSWERS: Final = {
    T.SUCCESS: "success",
    T.ERROR: "error",
    T.PRODUCER_SUCCESS: "producer_success",
    T.PARTITIONED_METADATA_RESPONSE: "partitionMetadataResponse",
    T.LOOKUP_RESPONSE: "lookupTopicResponse",
    T.CONSUMER_STATS_RESPONSE: "consumerStatsResponse",
    T.GET_LAST_MESSAGE_ID_RESPONSE: "getLastMessageIdResponse",
    T.GET_TOPICS_OF_NAMESPACE_RESPONSE: "getTopicsOfNamespaceResponse",
    T.GET_SCHEMA_RESPONSE: "getSchemaResponse",
    T.GET_OR_CREATE_SCHEMA_RESPONSE: "getOrCreateSchemaResponse",
    T.ACK_RESPONSE: "ackResponse",
    T.WATCH_TOPIC_LIST_SUCCESS: "watchTopicListSuccess",
    T.NEW_TXN_RESPONSE: "newTxnResponse",
    T.ADD_PARTITION_TO_TXN_RESPONSE: "addPartitionToTxnResponse",
    T.ADD_SUBSCRIPTION_TO_TXN_RESPONSE: "addSubscriptionToTxnResponse",
    T.END_TXN_RESPONSE: "endTxnResponse",
    T.TC_CLIENT_CONNECT_RESPONSE: "tcClientConnectResponse",
}
"""Commands that answer a request, with the name of the field that holds the answer."""


class Response(NamedTuple):
    """Answer to a request: the command inside, or the server's refusal."""

    request_id: int
    answer: Any


class ClientConnection:
    """Client's side of one connection to a server. :meth:`connect` returns the first bytes to send.

    With ``gathers``, messages and receipts come in runs (:mod:`replicator.protocol.runs`), not as frames."""

    def __init__(
        self,
        now: float,
        *,
        software: str,
        features: FeatureFlags | None = None,
        keep_alive_seconds: float = KEEP_ALIVE_SECONDS,
        gathers: bool = False,
        method: str = "",
        credentials: Callable[[], bytes] = bytes,
    ) -> None:
        """Keep the arguments. ``method`` names the authentication method; ``credentials`` returns them, now and when
        asked."""
        self.peer: Peer | None = None
        """The server, once it has answered."""
        self.cluster = ""
        """Name of the server's cluster if it is one of ours; empty for others. Only ours is sent our additions."""
        self.message_bytes_max = 0
        """Largest message that the server takes."""
        self.due = now + HANDSHAKE_SECONDS_MAX
        self._software = software
        self._features = features or FeatureFlags()
        self._keep_alive_seconds = keep_alive_seconds
        self._decoder = FrameDecoder(runs=AnswerReader() if gathers else None)
        self._method = method
        self._credentials = credentials
        self._waiting: set[int] = set()
        self._last_request_id = -1
        self._heard = True
        self._over = False

    def connect(self, *, proxy_to: str = "") -> bytes:
        """Return the first bytes to send. Raises the errors of ``credentials``.

        ``proxy_to`` is the ``host:port`` of the broker that a proxy is to connect to."""
        command = CommandConnect(client_version=self._software, protocol_version=NEWEST, feature_flags=self._features)
        if proxy_to:
            command.proxy_to_broker_url = proxy_to
        if self._method:
            command.auth_method_name, command.auth_data = self._method, self._credentials()
        return encode(BaseCommand(type=T.CONNECT, connect=command))

    def request_id(self) -> int:
        """Return the id for a request that is about to be sent. Raises :class:`OutOfOrder` before CONNECTED and past
        the limit."""
        if self.peer is None:
            raise OutOfOrder("a request was made before the server answered CONNECTED: this is a bug of the client")
        if len(self._waiting) >= REQUESTS_MAX:
            raise OutOfOrder(
                f"{REQUESTS_MAX} requests of one connection wait for answers, the limit: wait for some of them before "
                "you ask more"
            )
        self._last_request_id += 1
        self._waiting.add(self._last_request_id)
        return self._last_request_id

    def given_up(self, request_id: int) -> None:
        """Record that nobody waits for the answer to a request any more: it is dropped when it comes."""
        self._waiting.discard(request_id)

    def receive(self, data: bytes, now: float) -> Iterator[Frame | Run | Response | bytes]:
        """Take bytes from the server. Yield, in order: answers, other commands, messages and receipts in runs, and
        bytes to send.

        Raises :class:`ProtocolError`: then the connection must be closed."""
        if self._over:
            return
        self._heard = True
        try:
            for frame in self._decoder.receive(data):
                if isinstance(frame, Run):
                    if self.peer is None:
                        raise OutOfOrder(
                            f"{type(frame).__name__} came instead of CONNECTED: is the address that of a broker or "
                            "worker?"
                        )
                    yield frame
                    continue
                command = frame.command
                if command.type == _AUTH_CHALLENGE:
                    yield self._shown_again()
                elif self.peer is None:
                    self._connected(command, now)
                elif command.type == _PING:
                    yield encode(BaseCommand(type=T.PONG, pong=CommandPong()))
                elif command.type == _CONNECTED:
                    raise OutOfOrder("CONNECTED a second time")
                elif (field := _ANSWERS.get(command.type)) is not None:
                    yield from self._answered(getattr(command, field), frame)
                elif command.type != _PONG:
                    yield frame
        except ProtocolError:
            self._over = True
            raise

    def tick(self, now: float) -> bytes:
        """Do what is :attr:`due`, and return the bytes to send. Raises :class:`Unresponsive` if the server is
        silent."""
        if self._over or now < self.due:
            return b""
        if self.peer is None or not self._heard:
            self._over = True
            raise Unresponsive("the server does not answer: see that it runs and can be reached")
        self._heard = False
        self.due = now + self._keep_alive_seconds
        return encode(BaseCommand(type=T.PING, ping=CommandPing()))

    def _shown_again(self) -> bytes:
        shown = AuthData(auth_method_name=self._method, auth_data=self._credentials())
        response = CommandAuthResponse(client_version=self._software, protocol_version=NEWEST, response=shown)
        return encode(BaseCommand(type=T.AUTH_RESPONSE, authResponse=response))

    def _connected(self, command: BaseCommand, now: float) -> None:
        if command.type == T.ERROR:
            raise NotAuthenticated(command.error.message)
        if command.type != T.CONNECTED:
            raise OutOfOrder(
                f"{T.Name(command.type)} came instead of CONNECTED: is the address that of a broker or worker?"
            )
        self.peer = server_of(command.connected)
        self.cluster = command.connected.cluster
        self.message_bytes_max = min(command.connected.max_message_size or MESSAGE_BYTES_MAX, MESSAGE_BYTES_LIMIT)
        # A server of ours may hold larger ones: those that it took before its setting, and those of other clusters.
        self._decoder.bytes_max = frame_bytes_max(MESSAGE_BYTES_LIMIT if self.cluster else self.message_bytes_max)
        self.due = now + self._keep_alive_seconds

    def _answered(self, answer: Any, frame: Frame) -> Iterator[Frame | Response]:
        request_id = answer.request_id
        if request_id not in self._waiting:
            return
        if frame.command.type == T.PRODUCER_SUCCESS and not answer.producer_ready:
            yield frame  # it waits for the topic; the answer itself is still to come
            return
        self._waiting.discard(request_id)
        refused = frame.command.type == T.ERROR
        yield Response(request_id, Refused(answer.error, answer.message, answer.engine_error) if refused else answer)
