"""The WebSocket API of a worker, with aiohttp's client: in the shape of Pulsar's own."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from asynchronous import asynchronous
from gateway_support import BareClient
from served_worker import ServedWorker, served_worker

from replicator.api.websocket.sockets import FRAME_ROOM_BYTES
from replicator.engine.log.entry import encode_entry
from replicator.metadata.metadata_pb2 import MessageMetadata
from replicator.protocol.commands_pb2 import BaseCommand, CommandProducer, CommandSend, MessageIdData
from replicator.protocol.frames import encode_head
from replicator.running.limited_log import LINES_MAX

WAIT_SECONDS = 20.0
QUIET_SECONDS = 0.2
"""Time that a test waits for messages that must not come."""
CUT_OFF = aiohttp.WSCloseCode.ABNORMAL_CLOSURE


@pytest.fixture(scope="module")
def worker() -> Iterator[ServedWorker]:
    with served_worker() as served:
        yield served


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    return f"persistent/public/default/{re.sub(r'[^a-z0-9_]+', '-', request.node.name.lower())[:100]}"


class Socket:
    """One socket of the API, in values."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket

    async def say(self, **fields: Any) -> None:
        await self._socket.send_str(json.dumps(fields))

    async def say_text(self, text: str) -> None:
        await self._socket.send_str(text)

    async def hear(self) -> dict[str, Any]:
        message = await self._socket.receive(WAIT_SECONDS)
        assert message.type is aiohttp.WSMsgType.TEXT, message
        heard: dict[str, Any] = json.loads(message.data)
        return heard

    async def hear_nothing(self) -> None:
        with pytest.raises(TimeoutError):
            await self._socket.receive(QUIET_SECONDS)

    async def send(self, payload: str, **fields: Any) -> dict[str, Any]:
        """Send a message; return the answer."""
        await self.say(payload=text64(payload), **fields)
        return await self.hear()

    async def receive(self, count: int) -> list[dict[str, Any]]:
        return [await self.hear() for _ in range(count)]

    async def acknowledge(self, message: dict[str, Any]) -> None:
        await self.say(messageId=message["messageId"])

    async def closing(self) -> tuple[int | None, str]:
        """Return the code and the reason with which the worker closes it, whatever comes before."""
        while True:
            message = await self._socket.receive(WAIT_SECONDS)
            if message.type is not aiohttp.WSMsgType.TEXT:
                return self._socket.close_code, str(message.extra or "")

    async def close(self) -> None:
        await self._socket.close()


class Api:
    def __init__(self, session: aiohttp.ClientSession, worker: ServedWorker) -> None:
        self.session = session
        self.url = worker.url

    async def open(self, kind: str, path: str, **parameters: Any) -> Socket:
        return Socket(
            await self.session.ws_connect(f"{self.url}/ws/v2/{kind}/{path}", params=parameters, max_msg_size=0)
        )

    async def refused(self, kind: str, path: str, **parameters: Any) -> tuple[int, str]:
        """Return status and reason of a refused socket."""
        upgrade = {
            "Connection": "Upgrade",
            "Upgrade": "websocket",
            "Sec-WebSocket-Version": "13",
            "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
        }
        async with self.session.get(f"{self.url}/ws/v2/{kind}/{path}", params=parameters, headers=upgrade) as response:
            return response.status, (await response.json())["message"]

    async def admin(self, method: str, path: str, body: Any = None) -> Any:
        async with self.session.request(method, f"{self.url}/admin/v2/{path}", json=body) as response:
            assert response.status < 300, await response.text()
            text = await response.text()
            return json.loads(text) if text else None


@asynccontextmanager
async def opened(worker: ServedWorker) -> AsyncIterator[Api]:
    async with aiohttp.ClientSession() as session:
        yield Api(session, worker)


def text64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def text_of(message: dict[str, Any]) -> str:
    return base64.b64decode(message["payload"]).decode()


def id_of(message: dict[str, Any]) -> MessageIdData:
    return MessageIdData.FromString(base64.b64decode(message["messageId"]))


@asynchronous
async def test_messages_go_out_and_come_back_with_all_that_they_carry(worker: ServedWorker, topic: str) -> None:
    async with opened(worker) as api:
        consumer = await api.open("consumer", f"{topic}/sub", subscriptionType="Shared")
        producer = await api.open("producer", topic, producerName="tab")
        answer = await producer.send(
            "hello", properties={"a": "b", "n": 5}, key="k", context="7", eventTime="2020-01-02T03:04:05.67Z"
        )
        assert answer["result"] == "ok"
        assert answer["context"] == "7"
        (message,) = await consumer.receive(1)
        assert message.pop("publishTime").endswith("Z")
        assert message == {
            "messageId": answer["messageId"],
            "payload": text64("hello"),
            "properties": {"a": "b", "n": "5"},
            "redeliveryCount": 0,
            "eventTime": "2020-01-02T03:04:05.67Z",
            "key": "k",
        }
        assert id_of(message).partition == -1
        assert id_of(message).batch_index == -1
        await producer.send("no more")
        (plain,) = await consumer.receive(1)
        assert "key" not in plain
        assert "eventTime" not in plain


@asynchronous
async def test_answers_come_in_order_and_a_wrong_message_costs_nothing_but_itself(
    worker: ServedWorker, topic: str
) -> None:
    async with opened(worker) as api:
        producer = await api.open("producer", topic)
        await producer.say(payload=text64("one"), context="1")
        await producer.say_text("no JSON")
        await producer.say_text("[1]")
        await producer.say(payload="***", context="4")
        await producer.say(context="5")
        await producer.say(payload=text64("x"), eventTime="yesterday", context="6")
        await producer.say(payload=text64("x"), properties=[], context="7")
        await producer.say(payload=text64("x"), replicationClusters="eu", context="8")
        await producer.say(payload=text64("two"), context="9", nobody="knows")
        answers = [(answer["result"], answer.get("context")) for answer in await producer.receive(9)]
        assert answers == [
            ("ok", "1"),
            ("send-error:3", None),
            ("send-error:3", None),
            ("send-error:7", "4"),
            ("send-error:7", "5"),
            ("send-error:7", "6"),
            ("send-error:3", "7"),
            ("send-error:3", "8"),
            ("ok", "9"),
        ]
        reader = await api.open("reader", topic, messageId="earliest")
        assert [text_of(each) for each in await reader.receive(2)] == ["one", "two"]


@asynchronous
async def test_a_message_for_some_clusters_is_taken_between_others(worker: ServedWorker, topic: str) -> None:
    async with opened(worker) as api:
        producer = await api.open("producer", topic, batchingEnabled="true")
        await producer.say(payload=text64("one"), context="1")
        await producer.say(payload=text64("two"), replicationClusters=["eu"], context="2")
        await producer.say(payload=text64("three"), disableReplication=True, context="3")
        await producer.say(payload=text64("four"), context="4")
        answers = [(answer["result"], answer.get("context")) for answer in await producer.receive(4)]
        assert answers == [("ok", "1"), ("ok", "2"), ("ok", "3"), ("ok", "4")]
        reader = await api.open("reader", topic, messageId="earliest")
        assert [text_of(each) for each in await reader.receive(4)] == ["one", "two", "three", "four"]


@asynchronous
async def test_delayed_messages_come_when_they_are_due(worker: ServedWorker, topic: str) -> None:
    async with opened(worker) as api:
        consumer = await api.open("consumer", f"{topic}/sub", subscriptionType="Shared")
        producer = await api.open("producer", topic)
        assert (await producer.send("late", deliverAfterMs=400))["result"] == "ok"
        assert (await producer.send("at once"))["result"] == "ok"
        assert [text_of(each) for each in await consumer.receive(2)] == ["at once", "late"]


@asynchronous
async def test_what_is_acknowledged_does_not_come_again(worker: ServedWorker, topic: str) -> None:
    async with opened(worker) as api:
        consumer = await api.open("consumer", f"{topic}/sub")
        producer = await api.open("producer", topic)
        for number in range(4):
            await producer.send(str(number))
        messages = await consumer.receive(4)
        for message in messages[:3]:
            await consumer.acknowledge(message)
        await consumer.close()
        again = await api.open("consumer", f"{topic}/sub")
        (left,) = await again.receive(1)
        assert text_of(left) == "3"
        assert left["redeliveryCount"] == 0
        await again.acknowledge(left)
        await again.hear_nothing()


@asynchronous
async def test_a_rejected_message_comes_again_and_then_to_the_dead_letters(worker: ServedWorker, topic: str) -> None:
    async with opened(worker) as api:
        dead = f"{topic}-sub-DLQ"
        letters = await api.open("consumer", f"{dead}/all")
        consumer = await api.open(
            "consumer", f"{topic}/sub", subscriptionType="Shared", negativeAckRedeliveryDelay=50, maxRedeliverCount=1
        )
        producer = await api.open("producer", topic)
        await producer.send("bad")
        for count in (0, 1):
            (message,) = await consumer.receive(1)
            assert message["redeliveryCount"] == count
            await consumer.say(type="negativeAcknowledge", messageId=message["messageId"])
        (letter,) = await letters.receive(1)
        assert text_of(letter) == "bad"


@asynchronous
async def test_what_is_not_acknowledged_in_time_comes_again(worker: ServedWorker, topic: str) -> None:
    async with opened(worker) as api:
        consumer = await api.open("consumer", f"{topic}/sub", subscriptionType="Shared", ackTimeoutMillis=1000)
        producer = await api.open("producer", topic)
        await producer.send("slow")
        first, second = await consumer.receive(2)
        assert (first["redeliveryCount"], second["redeliveryCount"]) == (0, 1)
        assert first["messageId"] == second["messageId"]


@asynchronous
async def test_a_consumer_is_sent_no_more_than_its_queue_until_it_answers(worker: ServedWorker, topic: str) -> None:
    async with opened(worker) as api:
        producer = await api.open("producer", topic)
        consumer = await api.open("consumer", f"{topic}/sub", subscriptionType="Shared", receiverQueueSize=2)
        for number in range(4):
            await producer.send(str(number))
        first, second = await consumer.receive(2)
        await consumer.hear_nothing()
        await consumer.acknowledge(first)
        (third,) = await consumer.receive(1)
        await consumer.acknowledge(first)  # not a second place for the same message
        await consumer.hear_nothing()
        await consumer.say(type="negativeAcknowledge", messageId=second["messageId"])
        (fourth,) = await consumer.receive(1)
        assert [text_of(each) for each in (first, second, third, fourth)] == ["0", "1", "2", "3"]


@asynchronous
async def test_in_pull_mode_messages_come_only_for_permits(worker: ServedWorker, topic: str) -> None:
    async with opened(worker) as api:
        producer = await api.open("producer", topic)
        consumer = await api.open("consumer", f"{topic}/sub", pullMode="true")
        for number in range(4):
            await producer.send(str(number))
        await consumer.hear_nothing()
        await consumer.say(type="permit", permitMessages=3)
        assert [text_of(each) for each in await consumer.receive(3)] == ["0", "1", "2"]
        await consumer.hear_nothing()
        await consumer.say(type="permit", permitMessages=1)
        assert text_of((await consumer.receive(1))[0]) == "3"


@asynchronous
async def test_an_unsubscribed_subscription_is_gone_and_the_socket_still_answers(
    worker: ServedWorker, topic: str
) -> None:
    async with opened(worker) as api:
        consumer = await api.open("consumer", f"{topic}/sub")
        assert await api.admin("GET", f"{topic}/subscriptions") == ["sub"]
        await consumer.say(type="unsubscribe")
        await consumer.say(type="isEndOfTopic")
        assert await consumer.hear() == {"endOfTopic": False}
        assert await api.admin("GET", f"{topic}/subscriptions") == []


@asynchronous
async def test_the_end_of_a_topic_is_told_to_who_has_consumed_it_all(worker: ServedWorker, topic: str) -> None:
    """Upstream, too, a consumer is at the end when everything is acknowledged, a reader when it has read everything."""

    async def at_end(socket: Socket) -> bool:
        await socket.say(type="isEndOfTopic")
        return bool((await socket.hear())["endOfTopic"])

    async def until_at_end(socket: Socket) -> None:
        for _ in range(1_000):
            if await at_end(socket):
                return
            await asyncio.sleep(0.01)
        pytest.fail("it is never at the end")

    async with opened(worker) as api:
        producer = await api.open("producer", topic)
        for number in range(2):
            await producer.send(str(number))
        consumer = await api.open("consumer", f"{topic}/sub", subscriptionInitialPosition="Earliest")
        reader = await api.open("reader", topic, messageId="earliest")
        messages = await consumer.receive(2)
        for each in messages:
            await consumer.acknowledge(each)
        assert not await at_end(consumer)  # more may come
        late = await api.open("consumer", f"{topic}/late", subscriptionInitialPosition="Earliest")
        await api.admin("POST", f"{topic}/terminate")
        await until_at_end(consumer)
        await reader.receive(2)
        await until_at_end(reader)
        assert len(await late.receive(2)) == 2
        assert not await at_end(late)  # it has not acknowledged them
        await consumer.close()
        again = await api.open("consumer", f"{topic}/sub")
        await until_at_end(again)
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await api.open("producer", topic)
        assert refused.value.status == 503


@asynchronous
async def test_a_reader_begins_where_it_is_told_and_leaves_nothing_behind(worker: ServedWorker, topic: str) -> None:
    async with opened(worker) as api:
        producer = await api.open("producer", topic)
        sent = [await producer.send(str(number)) for number in range(3)]
        latest = await api.open("reader", topic)
        reader = await api.open("reader", topic, messageId="earliest", receiverQueueSize=2, readerName="tab")
        first, second = await reader.receive(2)
        assert [each["messageId"] for each in (first, second)] == [each["messageId"] for each in sent[:2]]
        await reader.hear_nothing()
        await reader.acknowledge(first)
        assert text_of((await reader.receive(1))[0]) == "2"
        after = await api.open("reader", topic, messageId=first["messageId"])
        assert text_of((await after.receive(1))[0]) == "1"
        await producer.send("new")
        assert text_of((await latest.receive(1))[0]) == "new"
        for each in (latest, reader, after):
            await each.close()

        assert await api.admin("GET", f"{topic}/subscriptions") == []


@asynchronous
async def test_partitioned_topics_are_one(worker: ServedWorker, topic: str) -> None:
    async with opened(worker) as api:
        await api.admin("PUT", f"{topic}/partitions", 3)
        producer = await api.open("producer", topic)
        consumer = await api.open("consumer", f"{topic}/sub")
        sent = [await producer.send(str(number)) for number in range(9)]
        assert {id_of(each).partition for each in sent} == {0, 1, 2}
        messages = await consumer.receive(9)
        assert sorted(map(text_of, messages)) == [str(number) for number in range(9)]
        reader = await api.open("reader", topic, messageId="earliest", receiverQueueSize=1)
        read = []
        for _ in range(9):
            (message,) = await reader.receive(1)
            read.append(text_of(message))
            await reader.acknowledge(message)
        assert sorted(read) == [str(number) for number in range(9)]
        for message in messages:
            await consumer.acknowledge(message)
        await consumer.close()
        again = await api.open("consumer", f"{topic}/sub")
        await again.hear_nothing()


@asynchronous
async def test_batches_and_compression_are_of_the_producers_choice(worker: ServedWorker, topic: str) -> None:
    async with opened(worker) as api:
        producer = await api.open(
            "producer", topic, batchingEnabled="true", batchingMaxMessages=3, compressionType="ZLIB"
        )
        for number in range(3):
            await producer.say(payload=text64(str(number) * 100))
        answers = await producer.receive(3)
        assert [id_of(each).batch_index for each in answers] == [0, 1, 2]
        assert len({(id_of(each).ledgerId, id_of(each).entryId) for each in answers}) == 1
        consumer = await api.open("consumer", f"{topic}/sub", subscriptionInitialPosition="Earliest")
        messages = await consumer.receive(3)
        assert [each["messageId"] for each in messages] == [each["messageId"] for each in answers]
        await consumer.acknowledge(messages[1])
        await consumer.close()
        again = await api.open("consumer", f"{topic}/sub")
        assert [text_of(each)[0] for each in await again.receive(2)] == ["0", "2"]


@asynchronous
async def test_the_largest_message_goes_through_and_a_larger_one_is_refused(worker: ServedWorker, topic: str) -> None:
    async with opened(worker) as api:
        producer = await api.open("producer", topic)
        assert (await producer.send("x" * (5 * 1024 * 1024)))["result"] == "ok"
        answer = await producer.send("x" * (5 * 1024 * 1024 + 1), context="large")
        assert (answer["result"], answer["context"]) == ("send-error:8", "large")
        reader = await api.open("reader", topic, messageId="earliest")
        assert len(text_of((await reader.receive(1))[0])) == 5 * 1024 * 1024
        with suppress(ConnectionError):  # it may be cut off before all of it is sent
            await producer.say_text(" " * (5 * 1024 * 1024 * 4 // 3 + FRAME_ROOM_BYTES + 1))
        assert (await producer.closing())[0] in (aiohttp.WSCloseCode.MESSAGE_TOO_BIG, CUT_OFF)
        assert (await (await api.open("producer", topic)).send("small"))["result"] == "ok"


@pytest.mark.parametrize(
    ("kind", "rest", "parameters", "status", "reason"),
    [
        ("producer", "", {"compressionType": "zz"}, 400, "compressionType"),
        ("producer", "", {"sendTimeoutMillis": "x"}, 400, "sendTimeoutMillis"),
        ("producer", "", {"messageRoutingMode": "zz"}, 400, "messageRoutingMode"),
        ("producer", "", {"hashingScheme": "zz"}, 400, "hashingScheme"),
        ("producer", "", {"maxPendingMessages": "0"}, 400, "maxPendingMessages"),
        ("producer", "", {"initialSequenceId": "-2"}, 400, "initialSequenceId"),
        ("producer", "", {"encryptionKeys": "k"}, 400, "encryptionKeys"),
        ("producer", "", {"producerName": "taken"}, 409, "taken"),
        ("consumer", "/sub", {"subscriptionType": "zz"}, 400, "subscriptionType"),
        ("consumer", "/sub", {"subscriptionMode": "NonDurable"}, 400, "reader"),
        ("consumer", "/sub", {"ackTimeoutMillis": "5"}, 400, "1000 ms"),
        ("consumer", "/sub", {"receiverQueueSize": "-1"}, 400, "receiverQueueSize"),
        ("consumer", "/sub", {"maxRedeliverCount": "0"}, 400, "maxRedeliverCount"),
        ("consumer", "/sub", {"cryptoFailureAction": "CONSUME"}, 400, "cryptoFailureAction"),
        ("consumer", "/exclusive", {}, 409, "Exclusive"),
        ("reader", "", {"messageId": "zzz"}, 400, "messageId"),
    ],
)
@asynchronous
async def test_what_cannot_be_opened_is_an_http_status_with_the_reason(
    worker: ServedWorker, kind: str, rest: str, parameters: dict[str, str], status: int, reason: str
) -> None:
    topic = "persistent/public/default/refusals"
    async with opened(worker) as api:
        taken = await api.open("producer", topic, producerName="taken") if status == 409 else None
        busy = await api.open("consumer", f"{topic}/exclusive") if status == 409 else None
        got, text = await api.refused(kind, f"{topic}{rest}", **parameters)
        assert (got, reason in text) == (status, True), text
        for each in (taken, busy):
            if each is not None:
                await each.close()


@asynchronous
async def test_names_that_cannot_be_and_requests_that_do_not_upgrade_are_refused(worker: ServedWorker) -> None:
    async with opened(worker) as api:
        assert (await api.refused("producer", "non-persistent/public/default/t"))[0] == 400
        assert (await api.refused("consumer", "persistent/public/default/t"))[0] == 404
        async with api.session.get(f"{api.url}/ws/v2/producer/persistent/public/default/t") as response:
            assert response.status == 426


@pytest.mark.parametrize(
    "text", ["junk", "[]", '{"messageId":"AAAA"}', '{"messageId":"**"}', '{"type":"permit"}', "{}", '{"messageId":[]}']
)
@asynchronous
async def test_a_consumer_that_says_what_nobody_can_read_is_closed_and_no_other(
    worker: ServedWorker, text: str
) -> None:
    topic = "persistent/public/default/garbage"
    async with opened(worker) as api:
        other = await api.open("consumer", f"{topic}/other", subscriptionType="Shared")
        consumer = await api.open("consumer", f"{topic}/sub", subscriptionType="Shared")
        await consumer.say_text(text)
        code, reason = await consumer.closing()
        assert code == aiohttp.WSCloseCode.INTERNAL_ERROR
        assert reason
        producer = await api.open("producer", topic)
        await producer.send("still here")
        assert text_of((await other.receive(1))[0]) == "still here"
        await other.close()


@asynchronous
async def test_a_topic_that_is_deleted_closes_its_sockets(worker: ServedWorker, topic: str) -> None:
    async with opened(worker) as api:
        producer = await api.open("producer", topic)
        consumer = await api.open("consumer", f"{topic}/sub")
        await api.admin("DELETE", f"{topic}?force=true")
        for socket in (producer, consumer):
            if socket is producer:
                await socket.say(payload=text64("late"))
            code, _ = await socket.closing()
            assert code == aiohttp.WSCloseCode.TRY_AGAIN_LATER


def test_the_docs_example_for_a_shell_runs(worker: ServedWorker, tmp_path: Path) -> None:
    text = (Path(__file__).parents[3] / "docs" / "websocket.md").read_text()
    (example,) = re.findall(r"^```sh\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    script = example.replace("127.0.0.1:7101", f"127.0.0.1:{worker.port}").replace(
        "python listen", f"{sys.executable} listen"
    )
    done = subprocess.run(
        ["bash", "-euc", script], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    answer, *heard = done.stdout.splitlines()
    results, heard = json.loads(answer.removesuffix("hello"))["messagePublishResults"], [*heard]
    assert [each["errorCode"] for each in results] == [0, 0]
    assert (answer.endswith("hello"), heard) == (True, ["world"])


def publish_unfinished(worker: ServedWorker, topic: str, count: int) -> None:
    """Publish ``count`` first halves of messages whose second halves never come, and a whole message."""
    with BareClient(worker.port) as client:
        client.request(
            lambda number: BaseCommand(
                type=BaseCommand.PRODUCER, producer=CommandProducer(topic=topic, producer_id=1, request_id=number)
            )
        )
        for number in range(count + 1):
            metadata = MessageMetadata(producer_name="p", sequence_id=number, publish_time=1)
            if number < count:
                metadata.uuid, metadata.chunk_id, metadata.num_chunks_from_msg = f"u{number}", 0, 2
                metadata.total_chunk_msg_size = 2
            entry = encode_entry(metadata, b"x")
            command = BaseCommand(type=BaseCommand.SEND, send=CommandSend(producer_id=1, sequence_id=number))
            client.socket.sendall(encode_head(command, len(entry)) + entry)
        for _ in range(count + 1):
            assert (
                client.next(BaseCommand.SEND_RECEIPT, BaseCommand.SEND_ERROR).command.type == BaseCommand.SEND_RECEIPT
            )


@asynchronous
async def test_unfinished_chunks_that_one_websocket_reads_write_few_lines(
    worker: ServedWorker, topic: str, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    await asyncio.to_thread(publish_unfinished, worker, topic.replace("persistent/", "persistent://", 1), 2_000)
    capfd.readouterr()
    async with opened(worker) as api:
        reader = await api.open("reader", topic, messageId="earliest")
        assert base64.b64decode((await reader.hear())["payload"]) == b"x"
    said = "".join(capfd.readouterr()) + caplog.text
    assert said.count("\n") <= 4 * LINES_MAX
