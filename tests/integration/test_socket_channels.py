"""What only a network does to channels: producers that wait on a live socket, clients that vanish or do not read."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from channel_support import Sent, served
from engine_support import TOPIC, eventually, message, opened

from replicator.api import client_sockets
from replicator.client.errors import ConnectError
from replicator.client.settings import ProducerSettings
from replicator.client.wire import socket_channel
from replicator.client.wire.frame_codec import decode_reply, encode_request
from replicator.client.wire.frames import (
    FRAME_BYTES_MAX,
    Acknowledge,
    Deliver,
    Done,
    Flow,
    Produce,
    Publish,
    Ready,
    Receipt,
    Refusal,
    Reply,
    Request,
    Restarted,
    RestartSeen,
    Seek,
    Subscribe,
)
from replicator.client.wire.socket_channel import SocketConnector
from replicator.engine.engine import Engine
from replicator.engine.producing.topic_writing import TopicWriting
from replicator.engine.types import (
    AccessMode,
    Ack,
    InitialPosition,
    ProducerOptions,
    SubscribeOptions,
    SubscriptionType,
)
from snapshots.position import BEFORE_ALL

DEADLINE_SECONDS = 20
WAITING = Produce(TOPIC, ProducerOptions("waits", AccessMode.WAIT_FOR_EXCLUSIVE))
SUBSCRIBE = Subscribe(TOPIC, "s", SubscribeOptions(SubscriptionType.SHARED, "c", initial=InitialPosition.EARLIEST))


class RawClient:
    """Frames by hand."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.socket = socket

    async def send(self, *requests: Request) -> None:
        for request in requests:
            frame = encode_request(request)
            await (self.socket.send_str(frame) if isinstance(frame, str) else self.socket.send_bytes(frame))

    async def receive(self) -> Reply | None:
        """The next reply; None at the end of the connection."""
        frame = await self.socket.receive(timeout=10)
        return decode_reply(frame.data) if frame.type in (aiohttp.WSMsgType.TEXT, aiohttp.WSMsgType.BINARY) else None

    async def receive_all(self) -> list[Reply]:
        replies = []
        while (reply := await self.receive()) is not None:
            replies.append(reply)
        return replies


def with_engine(path: Path, scenario: Callable[[Engine, str, aiohttp.ClientSession], Awaitable[None]]) -> None:
    async def main() -> None:
        async with (
            asyncio.timeout(DEADLINE_SECONDS),
            opened(path) as engine,
            served(engine) as url,
            aiohttp.ClientSession() as session,
        ):
            await scenario(engine, url, session)

    asyncio.run(main())


def connected(session: aiohttp.ClientSession, url: str, kind: str) -> Any:
    return session.ws_connect(f"{url}/client/v1/{kind}", max_msg_size=FRAME_BYTES_MAX)


def test_a_producer_that_waits_is_kept_alive_by_the_heartbeat_of_both_sides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_sockets, "HEARTBEAT_SECONDS", 0.1)
    monkeypatch.setattr(socket_channel, "HEARTBEAT_SECONDS", 0.1)

    async def scenario(engine: Engine, url: str, session: aiohttp.ClientSession) -> None:
        topic = await engine.topic(TOPIC)
        owner = await topic.producers.create(ProducerOptions("owner", AccessMode.EXCLUSIVE))
        connector = SocketConnector(url, connection_timeout_seconds=1, operation_timeout_seconds=1)
        settings = ProducerSettings(TOPIC, "waits", access_mode=AccessMode.WAIT_FOR_EXCLUSIVE)
        waiting = asyncio.create_task(connector.open_producer(settings))
        await eventually(lambda: topic.producers.registry.waiting == 1, "a producer that waits")
        await asyncio.wait([waiting], timeout=1.5)  # fifteen heartbeats
        assert not waiting.done()
        owner.close()
        channel = await waiting
        assert channel.ready.topic_epoch == 1
        await channel.close()
        await connector.close()

    with_engine(tmp_path, scenario)


def test_a_waiting_producer_whose_client_vanishes_leaves_the_queue(tmp_path: Path) -> None:
    async def scenario(engine: Engine, url: str, session: aiohttp.ClientSession) -> None:
        topic = await engine.topic(TOPIC)
        await topic.producers.create(ProducerOptions("owner", AccessMode.EXCLUSIVE))
        async with connected(session, url, "producer") as socket:
            await RawClient(socket).send(WAITING)
            await eventually(lambda: topic.producers.registry.waiting == 1, "a producer that waits")
            transport = socket._response.connection.transport
            transport.abort()
            await eventually(lambda: topic.producers.registry.waiting == 0, "nobody waits any more")

    with_engine(tmp_path, scenario)


def test_a_waiting_producer_that_sends_before_it_is_ready_is_refused_and_leaves_the_queue(tmp_path: Path) -> None:
    async def scenario(engine: Engine, url: str, session: aiohttp.ClientSession) -> None:
        topic = await engine.topic(TOPIC)
        await topic.producers.create(ProducerOptions("owner", AccessMode.EXCLUSIVE))
        async with connected(session, url, "producer") as socket:
            client = RawClient(socket)
            await client.send(WAITING, Publish(1, (message(),)))
            (refusal,) = await client.receive_all()
            assert isinstance(refusal, Refusal)
            assert (refusal.request_id, refusal.code) == (None, "InvalidFrame")
            assert "has not heard ready" in refusal.message
        assert topic.producers.registry.waiting == 0
        assert topic.log.messages == 0

    with_engine(tmp_path, scenario)


def test_a_fenced_producer_has_the_receipt_of_everything_that_was_stored_before_it_hears_of_it(
    tmp_path: Path,
) -> None:
    async def scenario(engine: Engine, url: str, session: aiohttp.ClientSession) -> None:
        topic = await engine.topic(TOPIC)
        async with connected(session, url, "producer") as socket:
            client = RawClient(socket)
            await client.send(Produce(TOPIC, ProducerOptions("p")))
            assert isinstance(await client.receive(), Ready)
            await client.send(*(Publish(index, (message(b"%d" % index),)) for index in range(200)))
            await eventually(lambda: topic.log.messages > 0, "the first message")
            await topic.producers.create(ProducerOptions("owner", AccessMode.EXCLUSIVE_WITH_FENCING))
            replies = await client.receive_all()
            assert isinstance(replies[-1], Refusal)
            assert (replies[-1].request_id, replies[-1].code) == (None, "ProducerFenced")
            receipts = [reply.request_id for reply in replies if isinstance(reply, Receipt)]
            assert receipts == list(range(topic.log.messages))
            assert {reply.code for reply in replies if isinstance(reply, Refusal)} == {"ProducerFenced"}

    with_engine(tmp_path, scenario)


def test_who_moves_hears_first_of_what_was_stored_and_sends_nothing_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a producer that follows a failover would send again elsewhere what is stored here."""

    async def scenario(engine: Engine, url: str, session: aiohttp.ClientSession) -> None:
        topic = await engine.topic(TOPIC)
        release, publish = asyncio.Event(), TopicWriting.publish

        async def slow(*arguments: Any) -> Any:
            await release.wait()
            return await publish(*arguments)

        monkeypatch.setattr(TopicWriting, "publish", slow)
        connector = SocketConnector(url, connection_timeout_seconds=5, operation_timeout_seconds=5)
        channel = await connector.open_producer(ProducerSettings(TOPIC, "p"))
        channel.start(sent := Sent())
        channel.publish(0, message(b"in flight"))
        await asyncio.sleep(0.05)  # it is on its way; no event of this side says so
        moving = asyncio.ensure_future(connector.lose_all(ConnectError("served elsewhere")))
        await asyncio.sleep(0)
        channel.publish(1, message(b"for the next cluster"))
        release.set()
        await moving
        assert (list(sent.receipts), len(sent.lost)) == ([0], 1)
        assert topic.log.messages == 1
        await connector.close()

    with_engine(tmp_path, scenario)


def test_a_restart_takes_back_what_waits_for_a_slow_reader_and_its_permits(tmp_path: Path) -> None:
    """The rest of 60 MB would otherwise stand between the reader and the new place, and cost it its permits."""

    async def scenario(engine: Engine, url: str, session: aiohttp.ClientSession) -> None:
        topic = await engine.topic(TOPIC)
        for _ in range(10):
            await topic.publish([message(bytes(1024 * 1024))] * 6)
        async with connected(session, url, "consumer") as socket:
            client = RawClient(socket)
            await client.send(SUBSCRIBE)
            assert isinstance(await client.receive(), Ready)
            await client.send(Flow(60))
            (subscription,) = topic.subscriptions.values()
            await eventually(lambda: subscription.status()["consumers"][0]["unacked_entries"] >= 16, "a full queue")
            await subscription.moves.seek(BEFORE_ALL)
            before = 0
            while not isinstance(reply := await client.receive(), Restarted):
                assert isinstance(reply, Deliver)
                before += len(reply.deliveries)
            assert before < 16
            await client.send(RestartSeen())
            again = []
            while len(again) < 60 - before:
                reply = await client.receive()
                assert isinstance(reply, Deliver)
                again += [delivery.position.entry for delivery in reply.deliveries]
            assert again == list(range(60 - before))
            # Those that it got before the restart are to be paid for, and nothing else.
            await client.send(Flow(before))
            while len(again) < 60:
                reply = await client.receive()
                assert isinstance(reply, Deliver)
                again += [delivery.position.entry for delivery in reply.deliveries]
            assert again == list(range(60))

    with_engine(tmp_path, scenario)


def test_a_seek_is_done_for_a_slow_reader_only_after_it_heard_of_the_restart(tmp_path: Path) -> None:
    """So that a client that has waited for its seek gets nothing more of the former place."""

    async def scenario(engine: Engine, url: str, session: aiohttp.ClientSession) -> None:
        topic = await engine.topic(TOPIC)
        for _ in range(10):
            await topic.publish([message(bytes(1024 * 1024))] * 6)
        async with connected(session, url, "consumer") as socket:
            client = RawClient(socket)
            await client.send(SUBSCRIBE)
            assert isinstance(await client.receive(), Ready)
            await client.send(Flow(60))
            (subscription,) = topic.subscriptions.values()
            await eventually(lambda: subscription.status()["consumers"][0]["unacked_entries"] >= 16, "a full queue")
            generation = subscription.cursor.generation
            await client.send(Seek(5, BEFORE_ALL))
            await eventually(lambda: subscription.cursor.generation > generation, "the seek")
            await topic.publish([message()])  # a turn of the store: the seek is durable as well
            replies: list[Reply | None] = []
            while Done(5) not in replies:
                replies.append(await client.receive())
            assert Restarted() in replies

    with_engine(tmp_path, scenario)


def test_acknowledgements_count_again_once_the_restart_is_seen(tmp_path: Path) -> None:
    async def scenario(engine: Engine, url: str, session: aiohttp.ClientSession) -> None:
        topic = await engine.topic(TOPIC)
        (position,) = await topic.publish([message()])
        async with connected(session, url, "consumer") as socket:
            client = RawClient(socket)
            await client.send(SUBSCRIBE)
            assert isinstance(await client.receive(), Ready)
            (subscription,) = topic.subscriptions.values()
            await subscription.moves.seek(BEFORE_ALL)
            await client.send(Acknowledge(1, (Ack(position),)))
            assert [await client.receive(), await client.receive()] == [Restarted(), Done(1)]
            assert not subscription.cursor.is_consumed(position)
            await client.send(RestartSeen(), Acknowledge(2, (Ack(position),)))
            assert await client.receive() == Done(2)
            assert subscription.cursor.is_consumed(position)

    with_engine(tmp_path, scenario)


def test_the_partitions_of_a_topic_without_a_name_are_a_bad_request(tmp_path: Path) -> None:
    async def scenario(engine: Engine, url: str, session: aiohttp.ClientSession) -> None:
        await engine.partitioned.create("parted", 3)
        async with session.get(f"{url}/client/v1/partitions") as response:
            assert response.status == 400
            assert (await response.json())["error"] == "BadRequest"
        async with session.get(f"{url}/client/v1/partitions", params={"topic": "parted"}) as response:
            assert await response.json() == {"topic": "persistent://public/default/parted", "partitions": 3}

    with_engine(tmp_path, scenario)


@pytest.mark.parametrize(
    "body", ["not JSON", "[1]", json.dumps({"partitions": "3"}), json.dumps({"partitions": -1}), "{}"]
)
def test_an_answer_that_no_worker_gives_is_a_connect_error(body: str) -> None:
    async def main() -> None:
        async def answer(request: web.Request) -> web.Response:
            return web.Response(text=body, content_type="application/json")

        app = web.Application()
        app.router.add_get("/client/v1/partitions", answer)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        connector = SocketConnector(
            f"http://127.0.0.1:{runner.addresses[0][1]}", connection_timeout_seconds=5, operation_timeout_seconds=5
        )
        try:
            with pytest.raises(ConnectError):
                await connector.partitions("t")
        finally:
            await connector.close()
            await runner.cleanup()

    asyncio.run(main())
