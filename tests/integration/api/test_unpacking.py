"""Few stored bytes that become many: decompressed on threads, within one budget, and always served in the end."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from admin_support import administered
from asynchronous import asynchronous
from engine_support import eventually
from gateway_support import BareClient
from served_worker import ServedWorker, served_worker

from replicator.api.websocket.frames import delivered
from replicator.client import Client, CompressionType
from replicator.engine.log.compression import compress, decompress
from replicator.engine.log.entry import encode_entry
from replicator.engine.unpacking import ASIDE_BYTES_MIN
from replicator.metadata.metadata_pb2 import ZSTD, MessageMetadata
from replicator.protocol.commands_pb2 import BaseCommand, CommandProducer, CommandSend
from replicator.protocol.frames import encode_head
from replicator.running import byte_budget

T = BaseCommand.Type
LARGE = 10 * 1024 * 1024
"""Bytes of a message over the whole budget: it is served alone."""
SMALL = 512 * 1024
WAIT_SECONDS = 30.0
NAMESPACE = "persistent/public/default"
EARLIEST = '{"ledgerId": -1, "entryId": -1}'


@pytest.fixture(scope="module")
def worker() -> Iterator[ServedWorker]:
    with served_worker(sections={"store": {"unpacked_max": "8MiB"}}) as served:
        yield served


async def publish(worker: ServedWorker, topic: str, *payloads: bytes, batched: bool = False) -> None:
    client = Client(worker.pulsar_url)
    try:
        producer = await client.create_producer(
            topic, compression_type=CompressionType.ZSTD, batching_enabled=batched, batching_max_publish_delay_ms=50
        )
        await asyncio.gather(*(producer.send(payload) for payload in payloads))
    finally:
        await client.close()


def used(worker: ServedWorker) -> dict[str, int]:
    found: dict[str, int] = worker.ask("GET", "/replication/v1/status?topics=false").json["unpacking"]
    return found


@pytest.mark.parametrize(("more", "status"), [("", 200), ("]", 400)], ids=["JSON", "no JSON"])
@asynchronous
async def test_a_large_body_is_parsed_only_once_it_fits_into_the_budget(tmp_path: Path, more: str, status: int) -> None:
    """Parsed, it takes several times as much memory. So a body that is not JSON waits, too."""
    async with administered(tmp_path / "data") as admin:
        budget = admin.engine.unpacking.clients
        held = await budget.take("another client", budget.bytes_max, lambda: None)
        body = json.dumps({"messages": [{"payload": "x" * 1000} for _ in range(1000)]}) + more
        posting = asyncio.ensure_future(admin.session.post(f"{admin.url}/topics/{NAMESPACE}/by-rest", data=body))
        await eventually(lambda: budget.waiting or posting.done())
        assert budget.waiting == 1
        budget.give_back(held)
        async with await posting as response:
            assert response.status == status
        await eventually(lambda: not budget.used_bytes)


def until_given_back(worker: ServedWorker) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while used(worker)["bytes"] or used(worker)["waiting"]:
        assert time.monotonic() < deadline, used(worker)
        time.sleep(0.01)


def reading(worker: ServedWorker, topic: str, **parameters: Any) -> socket.socket:
    """Open a WebSocket that reads a topic from its beginning, without reading what comes."""
    query = "&".join(f"{name}={value}" for name, value in {"messageId": "earliest", **parameters}.items())
    opened = socket.create_connection(("127.0.0.1", worker.port), timeout=WAIT_SECONDS)
    opened.sendall(
        f"GET /ws/v2/reader/{NAMESPACE}/{topic}?{query} HTTP/1.1\r\nHost: localhost\r\n".encode()
        + b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        + b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
    )
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += opened.recv(1)
    assert head.startswith(b"HTTP/1.1 101 "), head
    return opened


def drained(opened: socket.socket, size_bytes: int) -> int:
    """Read until that many bytes came; return how many did."""
    came = 0
    while came < size_bytes and (piece := opened.recv(1024 * 1024)):
        came += len(piece)
    return came


@pytest.fixture
def threads_of(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Return a set that gets the names of the threads that decompress large entries and make large frames."""
    names: set[str] = set()

    def noted(work: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any) -> Any:
            made = work(*arguments)
            if len(made) >= ASIDE_BYTES_MIN:
                names.add(threading.current_thread().name.partition("_")[0])
            return made

        return wrapped

    monkeypatch.setattr("replicator.engine.unpacking.decompress", noted(decompress))
    monkeypatch.setattr("replicator.api.websocket.consuming.delivered", noted(delivered))
    return names


@asynchronous
async def test_many_readers_of_large_messages_are_served_on_threads_and_one_after_another(
    worker: ServedWorker, threads_of: set[str]
) -> None:
    await publish(worker, "zeros", *(bytes(LARGE) for _ in range(3)))
    most = 0
    ended = threading.Event()

    def watch() -> None:
        nonlocal most
        while not ended.is_set():
            most = max(most, used(worker)["bytes"])

    def read() -> int:
        with reading(worker, "zeros") as opened:
            return drained(opened, 3 * (LARGE * 4 // 3))

    with ThreadPoolExecutor(9) as pool:
        watching = pool.submit(watch)
        running = [pool.submit(read) for _ in range(8)]
        came = [await asyncio.wrap_future(each) for each in running]
        ended.set()
        watching.result()
    assert min(came) >= 3 * (LARGE * 4 // 3)
    assert 0 < most <= LARGE
    assert threads_of == {"unpacking"}
    until_given_back(worker)


@asynchronous
async def test_what_a_websocket_gets_of_compressed_messages_and_batches_is_what_was_sent(worker: ServedWorker) -> None:
    single = [bytes([number]) * SMALL for number in range(3)]
    batch = [bytes([number]) * 100_000 for number in range(10, 15)]
    await publish(worker, "mixed", *single)
    await publish(worker, "mixed", *batch, batched=True)
    url = f"{worker.url}/ws/v2/reader/{NAMESPACE}/mixed"
    async with (
        aiohttp.ClientSession() as session,
        session.ws_connect(url, params={"messageId": "earliest"}, max_msg_size=0) as opened,
    ):
        got = [base64.b64decode((await opened.receive_json(timeout=WAIT_SECONDS))["payload"]) for _ in range(8)]
    assert got == single + batch
    until_given_back(worker)


@asynchronous
async def test_who_stops_to_read_is_cut_off_when_others_wait(
    worker: ServedWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(byte_budget, "PATIENCE_SECONDS", 0.2)
    monkeypatch.setattr(byte_budget, "HELD_SECONDS_MAX", 0.4)
    await publish(worker, "stalled", bytes(LARGE))
    with reading(worker, "stalled") as stalled:
        deadline = time.monotonic() + WAIT_SECONDS
        while not used(worker)["bytes"]:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.01)
        with reading(worker, "stalled") as other:
            assert await asyncio.to_thread(drained, other, LARGE) >= LARGE
        with contextlib.suppress(ConnectionError):
            while stalled.recv(1024 * 1024):
                pass
    until_given_back(worker)


def publish_as_said(worker: ServedWorker, topic: str, content: bytes, sizes: Sequence[int]) -> None:
    """Publish entries whose metadata say that ``content`` has another size than it has."""
    name = f"persistent://public/default/{topic}"
    with BareClient(worker.port) as client:
        client.request(
            lambda number: BaseCommand(
                type=T.PRODUCER, producer=CommandProducer(topic=name, producer_id=1, request_id=number)
            )
        )
        for number, size in enumerate(sizes):
            metadata = MessageMetadata(producer_name="liar", sequence_id=number, publish_time=1)
            metadata.compression, metadata.uncompressed_size = ZSTD, size
            entry = encode_entry(metadata, compress(content, ZSTD))
            command = BaseCommand(type=T.SEND, send=CommandSend(producer_id=1, sequence_id=number))
            client.socket.sendall(encode_head(command, len(entry)) + entry)
            assert client.next(T.SEND_RECEIPT, T.SEND_ERROR).command.type == T.SEND_RECEIPT


@asynchronous
async def test_a_size_that_is_not_true_ends_the_decompression_of_its_message_alone(worker: ServedWorker) -> None:
    await publish(worker, "claims", b"before")
    sizes = (1, SMALL, 3 * SMALL, 60 * 1024 * 1024, 2**32 - 1)
    await asyncio.to_thread(publish_as_said, worker, "claims", bytes(2 * SMALL), sizes)
    await publish(worker, "claims", b"after")
    url = f"{worker.url}/ws/v2/reader/{NAMESPACE}/claims"
    async with (
        aiohttp.ClientSession() as session,
        session.ws_connect(url, params={"messageId": "earliest"}, max_msg_size=0) as opened,
    ):
        got = [base64.b64decode((await opened.receive_json(timeout=WAIT_SECONDS))["payload"]) for _ in range(2)]
    assert got == [b"before", b"after"]
    for number in range(2, 2 + len(sizes)):
        path = f"{NAMESPACE}/claims/examinemessage?initialPosition=earliest&messagePosition={number}"
        answer = await asyncio.to_thread(worker.ask, "GET", path)
        assert (answer.status, answer.json["error"]) == (500, "InternalCorruption")
    until_given_back(worker)


@pytest.mark.parametrize(
    "place", ["examinemessage?initialPosition=earliest&messagePosition=1", "subscription/s/position/1"]
)
@asynchronous
async def test_messages_that_are_looked_at_are_decompressed_on_threads(
    worker: ServedWorker, threads_of: set[str], place: str
) -> None:
    topic = f"looked-at-{place.partition('?')[0].replace('/', '-')}"
    await publish(worker, topic, bytes(LARGE))
    made = await asyncio.to_thread(worker.ask, "PUT", f"{NAMESPACE}/{topic}/subscription/s", EARLIEST)
    assert made.status == 204, made
    path = f"{NAMESPACE}/{topic}/{place}"
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(worker.ask, "GET", path) for _ in range(8)]
        answers = [await asyncio.wrap_future(each) for each in asked]
    assert [(answer.status, len(answer.content)) for answer in answers] == [(200, LARGE)] * 8
    assert threads_of == {"unpacking"}
    until_given_back(worker)


@asynchronous
async def test_a_large_body_that_produces_waits_for_the_budget_and_gives_it_back(worker: ServedWorker) -> None:
    body = json.dumps({"messages": [{"payload": "x" * 1000} for _ in range(1000)]})
    answer = await asyncio.to_thread(worker.ask, "POST", f"/topics/{NAMESPACE}/by-rest", body)
    assert answer.status == 200
    assert len(answer.json["messagePublishResults"]) == 1000
    until_given_back(worker)


@asynchronous
async def test_an_entry_that_is_given_up_is_decompressed_on_threads(worker: ServedWorker, threads_of: set[str]) -> None:
    await publish(worker, "dead-DLQ", b"made")
    url = f"{worker.url}/ws/v2/consumer/{NAMESPACE}/dead/s"
    parameters = {"subscriptionType": "Shared", "maxRedeliverCount": "1", "negativeAckRedeliveryDelay": "10",
                  "deadLetterTopic": "persistent://public/default/dead-DLQ"}  # fmt: skip
    letters_url = f"{worker.url}/ws/v2/reader/{NAMESPACE}/dead-DLQ"
    async with (
        aiohttp.ClientSession() as session,
        session.ws_connect(url, params=parameters, max_msg_size=0) as opened,
        session.ws_connect(letters_url, params={"messageId": "earliest"}, max_msg_size=0) as letters,
    ):
        await publish(worker, "dead", bytes(SMALL))
        for _ in range(2):
            message = await opened.receive_json(timeout=WAIT_SECONDS)
            await opened.send_json({"type": "negativeAcknowledge", "messageId": message["messageId"]})
        await letters.receive_json(timeout=WAIT_SECONDS)
        letter = await letters.receive_json(timeout=WAIT_SECONDS)
    assert base64.b64decode(letter["payload"]) == bytes(SMALL)
    assert threads_of == {"unpacking"}
    until_given_back(worker)
