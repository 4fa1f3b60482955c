"""Server's side of a connection: bytes and time in, commands and bytes out. Sans-IO; nothing here waits.

States, in this order and none skipped::

    CONNECT awaited ──> (authentication) ──> open ──> over

1. The first command is CONNECT, within :data:`HANDSHAKE_SECONDS_MAX`; it comes once. An authenticator
   (:mod:`replicator.protocol.authentication`) may ask back any number of times, within the same time. On an open
   connection it asks anew when the credentials expire.
2. Then come commands of clients, in any order. Those that only keep the connection alive are answered here. The others
   are given to the caller, one by one, with the bytes to send between them.
3. A client that sent nothing for :data:`KEEP_ALIVE_SECONDS` is asked, and counts as gone after the same time again.
4. Anything else is a :class:`ProtocolError`, after which this connection, and no other, is over and ignores all input.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Any, Final, NamedTuple

from replicator.engine.log.entry import MESSAGE_BYTES_MAX
from replicator.protocol.authentication import (
    REFRESH,
    REFRESH_SECONDS_MAX,
    Admitted,
    AllowAll,
    Authenticator,
    Challenge,
    Pending,
)
from replicator.protocol.commands_pb2 import (
    AuthData,
    BaseCommand,
    CommandAuthChallenge,
    CommandConnected,
    CommandError,
    CommandPing,
    CommandPong,
    FeatureFlags,
    ServerError,
)
from replicator.protocol.data_commands import Acks, Sends
from replicator.protocol.errors import (
    NotAuthenticated,
    NotAuthorized,
    OutOfOrder,
    ProtocolError,
    TooManyParts,
    Unresponsive,
)
from replicator.protocol.frames import Frame, FrameDecoder, encode, frame_bytes_max
from replicator.protocol.runs import SendReader
from replicator.protocol.sessions import Sessions
from replicator.protocol.versions import NEWEST, PING_SINCE, Peer, client_of

HANDSHAKE_SECONDS_MAX: Final = 10.0
KEEP_ALIVE_SECONDS: Final = 30.0
"""Time of silence after which a client is asked whether it is there; upstream's value."""
SESSIONS_MAX: Final = 10_000
"""Limit of producers of one connection; the same limit holds for its consumers."""
WATCHERS_MAX: Final = 1_000
NO_REQUEST: Final = 2**64 - 1
"""Request id of an error that answers no request, in upstream's form."""

T = BaseCommand.Type
_PONG: Final = encode(BaseCommand(type=T.PONG, pong=CommandPong()))
_PING: Final = encode(BaseCommand(type=T.PING, ping=CommandPing()))

COMMANDS: Final = frozenset(
    {
        T.SUBSCRIBE,
        T.PRODUCER,
        T.FLOW,
        T.UNSUBSCRIBE,
        T.CLOSE_PRODUCER,
        T.CLOSE_CONSUMER,
        T.REDELIVER_UNACKNOWLEDGED_MESSAGES,
        T.PARTITIONED_METADATA,
        T.LOOKUP,
        T.CONSUMER_STATS,
        T.SEEK,
        T.GET_LAST_MESSAGE_ID,
        T.GET_TOPICS_OF_NAMESPACE,
        T.GET_SCHEMA,
        T.GET_OR_CREATE_SCHEMA,
        T.NEW_TXN,
        T.ADD_PARTITION_TO_TXN,
        T.ADD_SUBSCRIPTION_TO_TXN,
        T.END_TXN,
        T.END_TXN_ON_PARTITION,
        T.END_TXN_ON_SUBSCRIPTION,
        T.TC_CLIENT_CONNECT_REQUEST,
        T.WATCH_TOPIC_LIST,
        T.WATCH_TOPIC_LIST_CLOSE,
        T.RESTARTED,
    }
)
"""Commands that an open connection hands to its caller, beside SENDs and ACKs.

The others are answered here, or are for clients only."""
_RUNS: Final[dict[type, str]] = {Sends: "SEND", Acks: "ACK"}


class Claimed(NamedTuple):
    """Claim of a proxy in front of brokers about the client that it speaks for."""

    original_principal: str
    proxy_version: str


class _State(Enum):
    CONNECT_AWAITED = "CONNECT awaited"
    AUTHENTICATING = "authenticating"
    OPEN = "open"
    OVER = "over"


class ServerConnection:
    """Server's side of one client's connection. ``now`` is a clock in seconds that does not go backwards.

    ``cluster`` is sent to the client, which then knows that this is a server of ours."""

    def __init__(
        self,
        now: float,
        *,
        software: str,
        features: FeatureFlags | None = None,
        authenticator: Authenticator | None = None,
        message_bytes_max: int = MESSAGE_BYTES_MAX,
        sessions_max: int = SESSIONS_MAX,
        cluster: str = "",
    ) -> None:
        self.peer: Peer
        """The client; set once it has introduced itself."""
        self.producers: Sessions[Any] = Sessions("producer", sessions_max)
        self.consumers: Sessions[Any] = Sessions("consumer", sessions_max)
        self.watchers: Sessions[Any] = Sessions("watcher", WATCHERS_MAX)
        self.due = now + HANDSHAKE_SECONDS_MAX
        """Latest time of the next :meth:`tick`. It may become sooner whenever data arrive."""
        self.name = ""
        """Role of the client, if authentication is on."""
        self._software = software
        self._features = features or FeatureFlags()
        self._authenticator = authenticator or AllowAll()
        self._message_bytes_max = message_bytes_max
        self._cluster = cluster
        self._decoder = FrameDecoder(bytes_max=frame_bytes_max(message_bytes_max), runs=SendReader(), refuses=True)
        self._state = _State.CONNECT_AWAITED
        self._heard = True
        self._ask_at = self.due
        """Time by which the client must have been heard again."""
        self._method = ""
        self._claimed: Claimed
        """Values of CONNECT that only a proxy may give."""
        self._expires_at: float | None = None
        self._pending: Pending | None = None
        """Running check of the client's credentials."""
        self._answer_by: float | None = None
        """Time by which a client that was asked for newer credentials must show them; None if it was not asked."""

    @property
    def over(self) -> bool:
        return self._state is _State.OVER

    @property
    def open(self) -> bool:
        """Whether the client has introduced itself and is connected."""
        return self._state is _State.OPEN

    def receive(self, data: bytes, now: float) -> Iterator[Frame | Sends | Acks | Pending | bytes]:
        """Yield, in order, the commands in ``data`` to carry out and the bytes to send.

        Consecutive SENDs and ACKs come together. Pass the outcome of a :class:`Pending` to :meth:`on_identified`. Raise
        :class:`ProtocolError` if the connection must be closed; commands yielded before stay valid.
        """
        if self.over:
            return
        self._heard = True
        try:
            for frame in self._decoder.receive(data):
                if isinstance(frame, TooManyParts):
                    yield self._refused(frame)
                    continue
                kind = _RUNS.get(type(frame))
                if self.open and (kind is not None or frame.command.type in COMMANDS):
                    yield frame
                    if self.over:  # the caller could not go on
                        return
                elif kind is not None:
                    raise OutOfOrder(
                        f"{kind} is not for a server whose connection is: {self._state.value}. The client must finish "
                        "CONNECT first"
                    )
                else:
                    yield from self._introduced(frame.command, now)
        except ProtocolError:
            self._state = _State.OVER
            raise

    def _refused(self, error: TooManyParts) -> bytes:
        """Return the bytes that refuse a request with too many parts; raise ``error`` if the connection is not open."""
        if not self.open:
            raise error
        refusal = CommandError(request_id=error.request_id, error=ServerError.NotAllowedError, message=str(error))
        return encode(BaseCommand(type=T.ERROR, error=refusal))

    def on_identified(self, pending: Pending, outcome: Admitted | NotAuthenticated, now: float) -> Iterator[bytes]:
        """Take the outcome of a pending check of credentials, and yield the bytes to send to the client.

        Raise the outcome if it is a :class:`NotAuthenticated`. A check that no longer counts changes nothing.
        """
        if self._pending is not pending or self._state is _State.OVER:
            return
        self._pending = None
        try:
            if isinstance(outcome, NotAuthenticated):
                yield from self._reject_client(outcome)
            else:
                yield from self._accept_client(outcome, now)
        except ProtocolError:
            self._state = _State.OVER
            raise

    def note_alive(self) -> None:
        """Count the client as alive, although no command of it could be read."""
        self._heard = True

    def tick(self, now: float) -> bytes:
        """Do what is :attr:`due` by ``now``: return the bytes to send.

        Raises :class:`Unresponsive`, and :class:`NotAuthenticated` for credentials that expired.
        """
        if self._state is _State.OVER or now < self.due:
            return b""
        if self._state is not _State.OPEN:
            self._state = _State.OVER
            raise Unresponsive(
                f"no whole handshake within {HANDSHAKE_SECONDS_MAX:g} s: the client is too slow, or does not speak "
                "the Pulsar protocol"
            )
        try:
            question = self._expired(now)
            ping = self._silent(now)
        except ProtocolError:
            self._state = _State.OVER
            raise
        self._set_due()
        return question + ping

    def _silent(self, now: float) -> bytes:
        if now < self._ask_at:
            return b""
        self._ask_at = now + KEEP_ALIVE_SECONDS
        if not self.peer.understands(PING_SINCE):
            return b""
        if not self._heard:
            raise Unresponsive(
                f"nothing heard from the client for {2 * KEEP_ALIVE_SECONDS:g} s: it has gone, or cannot be reached"
            )
        self._heard = False
        return _PING

    def _expired(self, now: float) -> bytes:
        if self._answer_by is not None and now >= self._answer_by:
            raise NotAuthenticated(
                "the credentials have expired, and the client gave no newer credentials within "
                f"{REFRESH_SECONDS_MAX:g} s: give it newer ones"
            )
        if self._expires_at is None or now < self._expires_at:
            return b""
        if not self.peer.features.supports_auth_refresh:
            raise NotAuthenticated(
                "the credentials have expired, and the client says that it cannot be asked for newer: connect again "
                "with newer ones"
            )
        self._expires_at = None
        self._answer_by = now + REFRESH_SECONDS_MAX
        return self._challenge(self._method, REFRESH)

    def _set_due(self) -> None:
        times = (self._ask_at, self._expires_at, self._answer_by)
        self.due = min(each for each in times if each is not None)

    def close(self) -> list[Any]:
        """End the connection; return the sessions that were open."""
        self._state = _State.OVER
        return [*self.producers.clear(), *self.consumers.clear(), *self.watchers.clear()]

    def _introduced(self, command: BaseCommand, now: float) -> Iterator[Pending | bytes]:
        """Handle a command of the handshake, or one that keeps an open connection alive; yield the bytes to send.

        Yield a :class:`Pending` if the check of credentials takes a while. Raise :class:`OutOfOrder` for others.
        """
        match self._state, command.type:
            case _State.OPEN, T.PING:
                yield _PONG
            case _State.OPEN, T.PONG:
                pass  # that something came was noted
            case ((_State.OPEN | _State.AUTHENTICATING), T.AUTH_RESPONSE) if self._pending is None:
                yield from self._authenticated(command.authResponse.response, now)
            case _State.CONNECT_AWAITED, T.CONNECT:
                self.peer = client_of(command.connect)
                self._state = _State.AUTHENTICATING
                self._method = method = command.connect.auth_method_name
                self._claimed = Claimed(command.connect.original_principal, command.connect.proxy_version)
                credentials = AuthData(auth_method_name=method, auth_data=command.connect.auth_data)
                yield from self._authenticated(credentials, now)
            case state, kind:
                raise OutOfOrder(
                    f"{T.Name(kind)} is not for a server whose connection is: {state.value}. The client must send it "
                    "at another time, or not at all"
                )

    def _authenticated(self, shown: AuthData, now: float) -> Iterator[Pending | bytes]:
        """Check credentials; yield the bytes that ask for more, or that admit the client, or the check that takes a
        while. An admitted client may show newer credentials."""
        try:
            answer = self._authenticator.authenticate(shown.auth_method_name, shown.auth_data, now)
        except NotAuthenticated as error:
            yield from self._reject_client(error)
            return
        if isinstance(answer, Challenge):
            yield self._challenge(shown.auth_method_name, answer.question)
        elif isinstance(answer, Pending):
            self._pending = answer
            yield answer
        else:
            yield from self._accept_client(answer, now)

    def _reject_client(self, error: NotAuthenticated) -> Iterator[bytes]:
        refusal = CommandError(request_id=NO_REQUEST, error=ServerError.AuthenticationError, message=str(error))
        yield encode(BaseCommand(type=T.ERROR, error=refusal))
        raise error

    def _check_claimed(self) -> Iterator[bytes]:
        """Refuse a client that claims to be a proxy, because this server accepts no proxies.

        A broker refuses a role in the same way if it is not one of its proxies. Without authentication the claim is
        ignored, by brokers too."""
        if self._claimed.original_principal.strip():
            reason = "Invalid roles."
        elif self._claimed.proxy_version:
            reason = "Must not set proxyVersion without connecting as a ProxyRole."
        else:
            return
        refusal = CommandError(request_id=NO_REQUEST, error=ServerError.AuthorizationError, message=reason)
        yield encode(BaseCommand(type=T.ERROR, error=refusal))
        raise NotAuthorized(
            f"{reason} The client says that it is a proxy, and this cluster takes none: connect to it without a proxy"
        )

    def _accept_client(self, answer: Admitted, now: float) -> Iterator[bytes]:
        connecting = self._state is _State.AUTHENTICATING
        if connecting and answer.name:
            yield from self._check_claimed()
        self.name, self._expires_at, self._answer_by = answer.name, answer.until, None
        if connecting:
            self._state = _State.OPEN
            self._ask_at = now + KEEP_ALIVE_SECONDS
        self._set_due()
        if connecting:
            connected = CommandConnected(
                server_version=self._software,
                protocol_version=min(NEWEST, self.peer.version),
                max_message_size=self._message_bytes_max,
                feature_flags=self._features,
            )
            if self._cluster:
                connected.cluster = self._cluster
            yield encode(BaseCommand(type=T.CONNECTED, connected=connected))

    def _challenge(self, method: str, question: bytes) -> bytes:
        challenge = CommandAuthChallenge(
            server_version=self._software,
            protocol_version=self.peer.version,
            challenge=AuthData(auth_method_name=method, auth_data=question),
        )
        return encode(BaseCommand(type=T.AUTH_CHALLENGE, authChallenge=challenge))
