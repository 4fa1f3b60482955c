"""WebSockets: producers, consumers and readers in a browser's way, with what they are refused."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
from differential.harness import COMES_MS, QUIET_MS, At, Differs, program, texts, until

Socket = aiohttp.ClientWebSocketResponse


class Sockets:
    """The WebSockets of one program."""

    def __init__(self, at: At, session: aiohttp.ClientSession) -> None:
        self._base = at.side.admin_url.replace("http://", "ws://") + "/ws/v2"
        self._topic = at.topic.replace("://", "/")
        self._session = session

    async def open(self, kind: str, subscription: str = "", *, topic: str | None = None, **parameters: Any) -> Socket:
        path = f"{self._base}/{kind}/{topic or self._topic}" + (f"/{subscription}" if subscription else "")
        return await self._session.ws_connect(path, params={key: str(value) for key, value in parameters.items()})

    async def refused(self, kind: str, subscription: str = "", **parameters: Any) -> Any:
        """Return the HTTP status that refuses it."""
        try:
            socket = await self.open(kind, subscription, **parameters)
        except aiohttp.WSServerHandshakeError as error:
            return error.status
        await socket.close()
        return "open"

    async def consumer(self, **parameters: Any) -> Socket:
        parameters = {"subscriptionInitialPosition": "Earliest", **parameters}
        return await self.open("consumer", "s", **parameters)


def sockets(at: At, use: Callable[[Sockets], Awaitable[Any]]) -> Any:
    async def main() -> Any:
        async with aiohttp.ClientSession() as session:
            return await use(Sockets(at, session))

    return asyncio.run(main())


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


async def sent(socket: Socket, *texts: str, **fields: Any) -> list[Any]:
    """Send these payloads, and return the answers."""
    for text in texts:
        await socket.send_json({"payload": encoded(text), **fields})
    return [await socket.receive_json(timeout=COMES_MS / 1000) for _ in texts]


async def received(socket: Socket, count: int = 1) -> list[Any]:
    return [await socket.receive_json(timeout=COMES_MS / 1000) for _ in range(count)]


def payload(message: Any) -> str:
    return base64.b64decode(message["payload"]).decode()


async def quiet(socket: Socket) -> Any:
    """``quiet`` if nothing comes; else what came."""
    try:
        return payload(await socket.receive_json(timeout=QUIET_MS / 1000))
    except TimeoutError:
        return "quiet"


async def ask(socket: Socket, **command: Any) -> Any:
    await socket.send_json(command)
    return await socket.receive_json(timeout=COMES_MS / 1000)


def shape(answer: Any) -> Any:
    """Without what differs from run to run."""
    return {key: value for key, value in answer.items() if key not in ("messageId", "publishTime", "errorMsg")}


def subscriptions(at: At) -> Any:
    return at.admin("GET", f"persistent/public/default/{at.name}/subscriptions")


def unacknowledged(at: At) -> int:
    """Return the number of unacknowledged messages of the consumers' subscription."""
    return int(
        at.admin("GET", f"persistent/public/default/{at.name}/stats")[1]["subscriptions"]["s"]["unackedMessages"]
    )


@program()
def websocket_messages(at: At) -> Any:
    async def use(of: Sockets) -> Any:
        producer, consumer = await of.open("producer"), await of.consumer()
        answers = await sent(producer, "a", context="1")
        answers += await sent(producer, "b", properties={"x": "y"}, key="k")
        messages = await received(consumer, 2)
        return [
            [shape(each) for each in answers],
            [(sorted(each), shape(each)) for each in messages],
            [isinstance(each["messageId"], str) for each in (*answers, *messages)],
        ]

    return sockets(at, use)


@program()
def websocket_messages_and_others(at: At) -> Any:
    """Send messages from each kind of client to the other; return what each receives."""

    async def use(of: Sockets) -> Any:
        consumer = await of.consumer()
        await sent(await of.open("producer"), "by socket")
        await asyncio.to_thread(at.producer().send, b"by client", {"p": "q"}, "k")
        return [(payload(each), each["properties"], each.get("key")) for each in await received(consumer, 2)]

    return sockets(at, use), texts(at.consumer("other"), 2)


@program()
def websocket_acknowledgements(at: At) -> Any:
    async def use(of: Sockets) -> Any:
        await sent(await of.open("producer"), "1", "2", "3")
        consumer = await of.consumer(subscriptionType="Shared")
        first, second, third = await received(consumer, 3)
        await consumer.send_json({"messageId": second["messageId"]})
        await consumer.send_json({"messageId": third["messageId"]})
        await asyncio.to_thread(until, lambda: unacknowledged(at) == 1)
        await consumer.close()
        again = await of.consumer(subscriptionType="Shared")
        return payload(first), [payload(each) for each in await received(again)], await quiet(again)

    return sockets(at, use)


@program()
def websocket_rejections(at: At) -> Any:
    async def use(of: Sockets) -> Any:
        await sent(await of.open("producer"), "1")
        consumer = await of.consumer(subscriptionType="Shared", negativeAckRedeliveryDelay=200)
        counts = []
        for _ in range(3):
            (message,) = await received(consumer)
            counts.append(message["redeliveryCount"])
            await consumer.send_json({"type": "negativeAcknowledge", "messageId": message["messageId"]})
        return counts

    return sockets(at, use)


@program()
def websocket_permits(at: At) -> Any:
    async def use(of: Sockets) -> Any:
        await sent(await of.open("producer"), "1", "2", "3")
        consumer = await of.consumer(pullMode="true")
        before = await quiet(consumer)
        consumer = await of.open("consumer", "pulled", subscriptionInitialPosition="Earliest", pullMode="true")
        await consumer.send_json({"type": "permit", "permitMessages": 2})
        got = [payload(each) for each in await received(consumer, 2)]
        between = await quiet(consumer)
        await consumer.send_json({"type": "permit", "permitMessages": 1})
        got.append(payload((await received(consumer))[0]))
        return before, got, between

    return sockets(at, use)


@program()
def websocket_unsubscribing(at: At) -> Any:
    async def use(of: Sockets) -> Any:
        consumer = await of.consumer()
        await consumer.send_json({"type": "unsubscribe"})
        await asyncio.to_thread(until, lambda: subscriptions(at) == (200, []))
        await consumer.close()

    sockets(at, use)
    return subscriptions(at)


@program()
def websocket_readers(at: At) -> Any:
    async def use(of: Sockets) -> Any:
        producer = await of.open("producer")
        ids = [each["messageId"] for each in await sent(producer, "1", "2", "3")]
        seen: list[Any] = []
        for start in ("earliest", ids[0]):
            reader = await of.open("reader", messageId=start)
            got = []
            for _ in range(3 if start == "earliest" else 2):
                (message,) = await received(reader)
                got.append(payload(message))
                await reader.send_json({"messageId": message["messageId"]})
            seen.append((got, await ask(reader, type="isEndOfTopic")))
        latest = await of.open("reader")
        await sent(producer, "4")
        return seen, [payload(each) for each in await received(latest)]

    return sockets(at, use)


@program()
def websocket_sends_that_cannot_be(at: At) -> Any:
    async def use(of: Sockets) -> Any:
        producer = await of.open("producer")
        seen = []
        for text in ("no json", '{"payload": "%%%"}', "{}", '{"payload": "YQ==", "eventTime": "yesterday"}'):
            await producer.send_str(text)
            answer = await producer.receive_json(timeout=COMES_MS / 1000)
            seen.append((answer["result"], sorted(answer)))
        seen.append((await sent(producer, "after"))[0]["result"])
        return seen

    return sockets(at, use)


@program(
    each={
        "type": ("consumer", {"subscriptionType": "Other"}),
        "position": ("consumer", {"subscriptionInitialPosition": "Middle"}),
        "queue": ("consumer", {"receiverQueueSize": "many"}),
        "priority": ("consumer", {"priorityLevel": "-1"}),
        "timeout": ("consumer", {"ackTimeoutMillis": "5"}),
        "routing": ("producer", {"messageRoutingMode": "Other"}),
        "codec": ("producer", {"compressionType": "ZIP"}),
        "id": ("reader", {"messageId": "%%"}),
    },
    differs={"id": Differs("wrong-parameters", 400)},
)
def websockets_of_wrong_parameters(at: At, kind: str, parameters: dict[str, str]) -> Any:
    return sockets(at, lambda of: of.refused(kind, "s" if kind == "consumer" else "", **parameters))


@program()
def websockets_that_are_busy(at: At) -> Any:
    async def use(of: Sockets) -> Any:
        held = await of.consumer(), await of.open("producer", producerName="p")  # one that nobody holds is closed
        refused = await of.refused("consumer", "s"), await of.refused("producer", producerName="p")
        return refused, [each.closed for each in held]

    return sockets(at, use)


@program()
def websocket_commands_that_cannot_be(at: At) -> Any:
    async def use(of: Sockets) -> Any:
        seen = []
        for text in ("no json", '{"type": "other"}', '{"messageId": "%%%"}', '{"type": "permit"}'):
            consumer = await of.consumer(subscriptionType="Shared")
            await consumer.send_str(text)
            seen.append(await ended_soon(consumer))
        return seen

    async def ended_soon(consumer: Socket) -> Any:
        try:
            message = await consumer.receive(timeout=1)
        except TimeoutError:
            return "open"
        return "closed" if consumer.closed else message.type.name

    return sockets(at, use)


@program()
def websockets_of_a_terminated_topic(at: At) -> Any:
    async def use(of: Sockets) -> Any:
        producer = await of.open("producer")
        await sent(producer, "1")
        consumer = await of.consumer()
        before = (await received(consumer))[0]
        terminated = await asyncio.to_thread(at.admin, "POST", f"persistent/public/default/{at.name}/terminate")
        await consumer.send_json({"messageId": before["messageId"]})
        for _ in range(50):
            if (await ask(consumer, type="isEndOfTopic"))["endOfTopic"]:
                break
            await asyncio.sleep(0.1)
        return payload(before), terminated[0], await ask(consumer, type="isEndOfTopic")

    return sockets(at, use)
