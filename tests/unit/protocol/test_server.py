"""The server's side of a connection: its order, its clock, and that nothing but a protocol error comes of garbage."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicator.protocol.authentication import REFRESH, REFRESH_SECONDS_MAX, Admitted, Challenge
from replicator.protocol.client import ClientConnection, Response
from replicator.protocol.commands_pb2 import (
    AuthData,
    BaseCommand,
    CommandAuthResponse,
    CommandConnect,
    CommandFlow,
    CommandPing,
    CommandPong,
    CommandProducerSuccess,
    CommandSuccess,
    FeatureFlags,
    ServerError,
)
from replicator.protocol.errors import NotAuthenticated, NotAuthorized, OutOfOrder, ProtocolError, Refused, Unresponsive
from replicator.protocol.frames import Frame, FrameDecoder, encode
from replicator.protocol.server import (
    COMMANDS,
    HANDSHAKE_SECONDS_MAX,
    KEEP_ALIVE_SECONDS,
    NO_REQUEST,
    ServerConnection,
)
from replicator.protocol.versions import NEWEST

T = BaseCommand.Type


def connect(
    version: int = NEWEST, *, method: str = "", credentials: bytes = b"", refreshes: bool = False, **more: str
) -> bytes:
    command = CommandConnect(
        client_version="test",
        protocol_version=version,
        auth_method_name=method,
        auth_data=credentials,
        feature_flags=FeatureFlags(supports_auth_refresh=refreshes),
        **more,
    )
    return encode(BaseCommand(type=T.CONNECT, connect=command))


def flow(permits: int = 1) -> bytes:
    return encode(BaseCommand(type=T.FLOW, flow=CommandFlow(consumer_id=1, messagePermits=permits)))


PING = encode(BaseCommand(type=T.PING, ping=CommandPing()))
PONG = encode(BaseCommand(type=T.PONG, pong=CommandPong()))


def server(now: float = 0.0) -> ServerConnection:
    return ServerConnection(now, software="server", features=FeatureFlags(supports_topic_watchers=True))


def sent(steps: list[Frame | bytes]) -> list[BaseCommand]:
    """Return the commands among ``steps`` that must be sent."""
    stream = b"".join(step for step in steps if isinstance(step, bytes))
    return [frame.command for frame in FrameDecoder().receive(stream)]


def opened(version: int = NEWEST) -> ServerConnection:
    connection = server()
    list(connection.receive(connect(version), 0.0))
    return connection


def test_connect_is_answered_with_what_this_side_can_do_and_the_lower_version() -> None:
    connection = server()
    (answer,) = sent(list(connection.receive(connect(15), 1.0)))
    assert (answer.type, answer.connected.protocol_version, answer.connected.server_version) == (
        T.CONNECTED,
        15,
        "server",
    )
    assert answer.connected.feature_flags.supports_topic_watchers
    assert answer.connected.max_message_size == 5 * 1024 * 1024
    assert connection.open
    assert connection.peer.understands(15)
    assert not connection.peer.understands(16)
    (newer,) = sent(list(server().receive(connect(99), 1.0)))
    assert newer.connected.protocol_version == NEWEST


def test_what_comes_before_connect_ends_the_connection() -> None:
    connection = server()
    with pytest.raises(OutOfOrder, match="FLOW is not for a server whose connection is: CONNECT awaited"):
        list(connection.receive(flow(), 0.0))
    assert connection.over
    assert list(connection.receive(connect(), 0.0)) == []


def test_connect_comes_once() -> None:
    connection = opened()
    with pytest.raises(OutOfOrder, match="CONNECT"):
        list(connection.receive(connect(), 0.0))


def test_commands_for_clients_are_out_of_order_at_a_server() -> None:
    success = encode(BaseCommand(type=T.SUCCESS, success=CommandSuccess(request_id=1)))
    with pytest.raises(OutOfOrder, match="SUCCESS"):
        list(opened().receive(success, 0.0))


def test_answers_stand_between_the_commands_as_they_came() -> None:
    steps = list(opened().receive(flow(1) + PING + flow(2), 0.0))
    assert [step.command.flow.messagePermits if isinstance(step, Frame) else step for step in steps] == [1, PONG, 2]


def test_after_the_caller_closed_it_nothing_more_is_taken() -> None:
    connection = opened()
    steps = connection.receive(flow(1) + flow(2), 0.0)
    next(steps)
    connection.close()
    assert list(steps) == []


def test_a_client_that_does_not_introduce_itself_is_gone_after_ten_seconds() -> None:
    connection = server(now=5.0)
    assert connection.due == 5.0 + HANDSHAKE_SECONDS_MAX
    list(connection.receive(connect()[:7], 6.0))  # and bytes alone do not help
    assert connection.tick(connection.due - 0.1) == b""
    with pytest.raises(Unresponsive):
        connection.tick(connection.due)


def test_a_silent_client_is_asked_and_then_gone_and_one_that_answers_stays() -> None:
    connection = opened()
    assert connection.due == KEEP_ALIVE_SECONDS
    assert connection.tick(KEEP_ALIVE_SECONDS) == PING
    list(connection.receive(PONG, KEEP_ALIVE_SECONDS + 1))
    assert connection.tick(2 * KEEP_ALIVE_SECONDS) == PING
    with pytest.raises(Unresponsive, match="nothing heard from the client for 60 s"):
        connection.tick(3 * KEEP_ALIVE_SECONDS)


def test_a_client_that_knows_no_keep_alive_is_not_asked() -> None:
    connection = opened(version=0)
    for round_number in range(1, 5):
        assert connection.tick(round_number * KEEP_ALIVE_SECONDS) == b""


class TwoRounds:
    """Asks back once; then the answer counts, for a time."""

    def __init__(self, seconds: float = 1_000_000.0) -> None:
        self.seconds = seconds

    def authenticate(self, method: str, credentials: bytes, now: float) -> Admitted | Challenge:
        if method != "quiz":
            raise NotAuthenticated("only the quiz lets you in")
        if credentials == b"hello":
            return Challenge(b"2 + 2?")
        if credentials != b"4":
            raise NotAuthenticated("that is wrong")
        return Admitted("pupil", now + self.seconds)


def answer(text: bytes) -> bytes:
    shown = AuthData(auth_method_name="quiz", auth_data=text)
    return encode(BaseCommand(type=T.AUTH_RESPONSE, authResponse=CommandAuthResponse(response=shown)))


def test_an_authenticator_may_ask_back_before_it_lets_in() -> None:
    connection = ServerConnection(0.0, software="server", authenticator=TwoRounds())
    (challenge,) = sent(list(connection.receive(connect(method="quiz", credentials=b"hello"), 0.0)))
    assert challenge.authChallenge.challenge == AuthData(auth_method_name="quiz", auth_data=b"2 + 2?")
    assert not connection.open
    (connected,) = sent(list(connection.receive(answer(b"4"), 0.0)))
    assert connected.type == T.CONNECTED
    assert connection.open


@pytest.mark.parametrize(
    ("stream", "reason"),
    [
        (connect(), "only the quiz"),
        (connect(method="quiz", credentials=b"hello") + answer(b"5"), "that is wrong"),
        (connect(method="quiz", credentials=b"hello") + answer(b"4") + answer(b"5"), "that is wrong"),
    ],
)
def test_who_does_not_show_who_it_is_hears_why_and_is_out(stream: bytes, reason: str) -> None:
    connection, steps = ServerConnection(0.0, software="server", authenticator=TwoRounds()), list[Frame | bytes]()
    with pytest.raises(NotAuthenticated, match=reason):
        steps.extend(connection.receive(stream, 0.0))
    assert connection.over


def test_the_refusal_of_a_client_names_the_official_error() -> None:
    connection = ServerConnection(0.0, software="server", authenticator=TwoRounds())
    steps = connection.receive(connect(), 0.0)
    (refusal,) = sent([next(steps)])
    assert (refusal.error.error, refusal.error.request_id) == (ServerError.AuthenticationError, NO_REQUEST)


def test_in_the_middle_of_authentication_only_the_answer_may_come() -> None:
    connection = ServerConnection(0.0, software="server", authenticator=TwoRounds())
    with pytest.raises(OutOfOrder, match="authenticating"):
        list(connection.receive(connect(method="quiz", credentials=b"hello") + flow(), 0.0))


@pytest.mark.parametrize(
    ("claimed", "reason"),
    [
        ({"original_principal": "another"}, "Invalid roles."),
        ({"original_principal": "pupil"}, "Invalid roles."),
        (
            {"original_principal": "another", "original_auth_data": "x", "original_auth_method": "quiz"},
            "Invalid roles.",
        ),
        ({"proxy_version": "4.0.0"}, "Must not set proxyVersion without connecting as a ProxyRole."),
    ],
)
def test_who_says_that_it_speaks_for_others_is_refused_as_by_a_broker_that_knows_no_such_proxy(
    claimed: dict[str, str], reason: str
) -> None:
    connection, steps = ServerConnection(0.0, software="server", authenticator=TwoRounds()), list[Frame | bytes]()
    with pytest.raises(NotAuthorized):
        steps.extend(connection.receive(connect(method="quiz", credentials=b"4", **claimed), 0.0))
    (refusal,) = sent(steps)
    assert (refusal.error.error, refusal.error.message) == (ServerError.AuthorizationError, reason)
    assert connection.over
    assert not connection.name


@pytest.mark.parametrize(
    "claimed", [{"original_principal": " "}, {"original_auth_data": "x"}, {"proxy_to_broker_url": "h:1"}]
)
def test_what_says_nothing_of_another_client_is_passed_over(claimed: dict[str, str]) -> None:
    connection = ServerConnection(0.0, software="server", authenticator=TwoRounds())
    list(connection.receive(connect(method="quiz", credentials=b"4", **claimed), 0.0))
    assert connection.open


def test_where_nobody_is_told_apart_a_proxy_may_say_what_it_likes() -> None:
    connection = server()
    list(connection.receive(connect(original_principal="another", proxy_version="4.0.0"), 0.0))
    assert connection.open


def let_in(*, refreshes: bool) -> ServerConnection:
    """Return a connection at 0 s whose credentials count for 10 s."""
    connection = ServerConnection(0.0, software="server", authenticator=TwoRounds(10.0))
    hello = connect(method="quiz", credentials=b"hello", refreshes=refreshes)
    list(connection.receive(hello + answer(b"4"), 0.0))
    assert (connection.name, connection.due) == ("pupil", 10.0)
    return connection


def test_a_client_whose_credentials_expire_is_asked_for_newer_ones_and_goes_on_meanwhile() -> None:
    connection = let_in(refreshes=True)
    (asked,) = sent([connection.tick(10.0)])
    assert asked.authChallenge.challenge == AuthData(auth_method_name="quiz", auth_data=REFRESH)
    (step,) = connection.receive(flow(), 11.0)
    assert isinstance(step, Frame)
    assert list(connection.receive(answer(b"4"), 12.0)) == []  # no second CONNECTED
    assert connection.due == 22.0
    assert len(sent([connection.tick(22.0)])) == 1
    assert connection.due == KEEP_ALIVE_SECONDS


def test_who_shows_no_newer_credentials_is_out() -> None:
    connection = let_in(refreshes=True)
    connection.tick(10.0)
    list(connection.receive(PONG, 39.0))
    assert connection.tick(30.0) == PING
    assert connection.due == 10.0 + REFRESH_SECONDS_MAX
    with pytest.raises(NotAuthenticated, match="no newer credentials within 30 s"):
        connection.tick(40.0)
    assert connection.over


def test_who_cannot_be_asked_for_newer_credentials_is_out_when_they_expire() -> None:
    connection = let_in(refreshes=False)
    with pytest.raises(NotAuthenticated, match="cannot be asked"):
        connection.tick(10.0)
    assert connection.over


def test_a_wrong_answer_to_a_refresh_is_the_end() -> None:
    connection = let_in(refreshes=True)
    connection.tick(10.0)
    with pytest.raises(NotAuthenticated, match="wrong"):
        list(connection.receive(answer(b"5"), 11.0))
    assert connection.over


commands = st.sampled_from([connect(), connect(3), PING, PONG, flow(), answer(b"4"), b"", b"\0\0\0\x02\x01"])
bytes_of_any_kind = st.lists(
    st.one_of(
        st.binary(max_size=40),
        commands,
        st.builds(lambda body: struct.pack(">II", len(body) + 4, len(body)) + body, st.binary(max_size=40)),
    ),
    max_size=10,
)


@given(before=st.sampled_from([b"", connect(), connect(0)]), pieces=bytes_of_any_kind, seconds=st.floats(0, 100))
def test_whatever_comes_is_a_command_or_a_protocol_error(before: bytes, pieces: list[bytes], seconds: float) -> None:
    connection, now = server(), 0.0
    try:
        for piece in [before, *pieces]:
            for step in connection.receive(piece, now):
                if isinstance(step, Frame):
                    assert connection.open
                    assert step.command.type in COMMANDS
                else:
                    list(FrameDecoder().receive(step))
            now += seconds / 10
            connection.tick(now)
    except ProtocolError:
        assert connection.over
        assert list(connection.receive(connect() + flow(), now)) == []
        assert connection.tick(now + 1000) == b""
    else:
        assert not connection.over


@given(pieces=bytes_of_any_kind)
def test_one_connections_garbage_is_nothing_to_another(pieces: list[bytes]) -> None:
    other, bad = opened(), opened()
    try:
        for piece in pieces:
            list(bad.receive(piece, 0.0))
    except ProtocolError:
        pass
    (step,) = other.receive(flow(7), 0.0)
    assert isinstance(step, Frame)
    assert step.command.flow.messagePermits == 7


# The client's side, against the server's.


def both() -> tuple[ClientConnection, ServerConnection]:
    client, connection = ClientConnection(0.0, software="client"), server()
    for step in connection.receive(client.connect(), 0.0):
        assert isinstance(step, bytes)
        assert list(client.receive(step, 0.0)) == []
    return client, connection


def test_both_sides_know_each_other_after_the_handshake() -> None:
    client, connection = both()
    assert client.peer is not None
    assert (client.peer.software, connection.peer.software) == ("server", "client")
    assert client.message_bytes_max == 5 * 1024 * 1024


def test_a_client_asks_nothing_before_it_is_connected() -> None:
    with pytest.raises(OutOfOrder, match="before the server answered CONNECTED"):
        ClientConnection(0.0, software="client").request_id()


def test_answers_find_their_requests_and_late_ones_are_dropped() -> None:
    client, _ = both()
    first, second, third = client.request_id(), client.request_id(), client.request_id()
    client.given_up(second)
    answers = b"".join(
        encode(BaseCommand(type=T.SUCCESS, success=CommandSuccess(request_id=number)))
        for number in (second, first, first, 77)
    )
    (only,) = client.receive(answers, 0.0)
    assert isinstance(only, Response)
    assert only.request_id == first
    refusal = BaseCommand(type=T.ERROR)
    refusal.error.request_id, refusal.error.error, refusal.error.message = third, ServerError.ConsumerBusy, "busy"
    (refused,) = client.receive(encode(refusal), 0.0)
    assert isinstance(refused, Response)
    assert isinstance(refused.answer, Refused)
    assert refused.answer.code == ServerError.ConsumerBusy


def test_a_producer_that_waits_has_not_been_answered() -> None:
    client, _ = both()
    number = client.request_id()
    waits = CommandProducerSuccess(request_id=number, producer_name="p", producer_ready=False)
    (news,) = client.receive(encode(BaseCommand(type=T.PRODUCER_SUCCESS, producer_success=waits)), 0.0)
    assert isinstance(news, Frame)
    ready = CommandProducerSuccess(request_id=number, producer_name="p")
    (final,) = client.receive(encode(BaseCommand(type=T.PRODUCER_SUCCESS, producer_success=ready)), 0.0)
    assert isinstance(final, Response)


def test_a_refused_client_is_told_why() -> None:
    connection = ServerConnection(0.0, software="server", authenticator=TwoRounds())
    client = ClientConnection(0.0, software="client", method="quiz", credentials=lambda: b"?")
    refusal = next(connection.receive(client.connect(), 0.0))
    assert isinstance(refusal, bytes)
    with pytest.raises(NotAuthenticated, match="that is wrong"):
        list(client.receive(refusal, 0.0))


def test_both_sides_keep_each_other_alive() -> None:
    client, connection = both()
    for seconds in (30.0, 60.0, 90.0):
        for step in client.receive(connection.tick(seconds), seconds):
            assert isinstance(step, bytes)
            list(connection.receive(step, seconds))
        for answered in connection.receive(client.tick(seconds), seconds):
            assert isinstance(answered, bytes)
            list(client.receive(answered, seconds))
    assert not connection.over
    client.tick(120.0)
    with pytest.raises(Unresponsive):
        client.tick(150.0)


@given(pieces=bytes_of_any_kind)
def test_whatever_a_server_sends_a_client_gets_something_named_or_a_protocol_error(pieces: list[bytes]) -> None:
    client, _ = both()
    client.request_id()
    try:
        for piece in pieces:
            for step in client.receive(piece, 0.0):
                assert isinstance(step, Frame | Response | bytes)
    except ProtocolError:
        assert list(client.receive(PING, 0.0)) == []
