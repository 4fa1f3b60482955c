"""Large HTTP requests take their share of each turn of the event loop, and an operator ends a client that takes much.

Work in a turn is counted, not timed: the clock of the turns goes on by a fixed step each time that it is read.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
from admin_support import Admin, NoStatus, administered
from aiohttp import web
from api_support import opened_stream, whole_app
from asynchronous import asynchronous
from engine_support import TOPIC, Inbox, entries_of, eventually, make_block, message, opened
from frame_support import framed, next_answer
from turns_support import IN_A_TURN_MAX, STEP_SECONDS, Counted, Ticking

from replicator.api import block_lists, link_streams, reading, rest_produce, topic_figures, verifying
from replicator.api.admin import figures
from replicator.api.app import make_app
from replicator.api.backup import add_backup
from replicator.api.frame_receiver import FRAMES_AT_ONCE
from replicator.api.link_streams import BLOCKS_AT_ONCE, RESULTS_AT_ONCE
from replicator.api.linked_sources import LinkedSources
from replicator.api.store_of import add_store_of, store_known
from replicator.api.websocket import consuming, producing
from replicator.engine.engine import Engine
from replicator.engine.layered_policies import LayeredPolicies
from replicator.engine.log import arrow, frame_parsing, frame_rows
from replicator.engine.log.arrow import ROWS_AT_ONCE, Outgoing, encode_append
from replicator.engine.log.block import BlockHeader, read_header
from replicator.engine.log.entry import encode_entry
from replicator.engine.log.frame_rows import encode_rows
from replicator.engine.log.link_frame import FrameHeader
from replicator.engine.log.link_frame import read_header as read_frame_header
from replicator.engine.log.origins import Origins
from replicator.engine.log.requests import CopiedBlock
from replicator.engine.policies import TopicPolicies
from replicator.engine.producing.producers import EngineProducer
from replicator.engine.producing.topic_writing import TopicWriting
from replicator.engine.subscriptions.position_moves import PositionMoves
from replicator.engine.topic import Topic
from replicator.engine.topics.namespace_policies import NamespacePolicies
from replicator.engine.types import SubscribeOptions
from replicator.gateway.connection import Addresses, Connection
from replicator.gateway.server import Gateway
from replicator.protocol.commands_pb2 import BaseCommand, CommandConnect, CommandPing
from replicator.protocol.frames import encode
from replicator.running.pacing import LINK_SLICE_SECONDS
from snapshots.position import BEFORE_ALL, Position


@asynchronous
async def test_messages_of_large_requests_are_read_made_and_published_in_slices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with administered(tmp_path / "data") as admin:
        admin.engine.turns.clock = Ticking(STEP_SECONDS)
        made, published = (Counted(asyncio.get_running_loop()) for _ in range(2))
        publish = EngineProducer.publish

        def counted(*arguments: Any) -> bytes:
            made.add()
            return encode_entry(*arguments)

        async def counted_publish(producer: EngineProducer, entries: Any, *others: Any) -> Any:
            published.add(len(entries))
            return await publish(producer, entries, *others)

        monkeypatch.setattr(rest_produce, "encode_entry", counted)
        monkeypatch.setattr(EngineProducer, "publish", counted_publish)
        body = json.dumps({"messages": [{"payload": f"m{number}"} for number in range(2_000)]}).encode()

        async def post(topic: int) -> list[dict[str, Any]]:
            url = f"{admin.url}/topics/persistent/public/default/large-{topic}"
            async with admin.session.post(url, data=body) as response:
                assert response.status == 200, await response.text()
                results: list[dict[str, Any]] = (await response.json())["messagePublishResults"]
                return results

        answers = await asyncio.gather(*(post(topic) for topic in range(3)))
        assert made.total == published.total == 6_000
        assert made.most <= IN_A_TURN_MAX
        assert published.most <= 3 * rest_produce.PUBLISHED_AT_ONCE
        for results in answers:
            ids = [tuple(map(int, each["messageId"].split(":")[:2])) for each in results]
            assert ids == sorted(set(ids))
            assert {each["errorCode"] for each in results} == {0}


@asynchronous
async def test_requests_that_look_at_many_topics_share_a_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with administered(tmp_path / "data") as admin:
        for number in range(100):
            await admin.engine.topic(f"persistent://public/default/t{number}")
        admin.engine.turns.clock = Ticking(STEP_SECONDS)
        looked = Counted(asyncio.get_running_loop())
        status = Topic.status

        def counted(topic: Topic) -> Any:
            looked.add()
            return status(topic)

        monkeypatch.setattr(Topic, "status", counted)

        async def ask() -> int:
            async with admin.session.get(f"{admin.url}/replication/v1/status") as response:
                return len((await response.json())["topics"])

        assert await asyncio.gather(*(ask() for _ in range(10))) == [100] * 10
        assert looked.most <= IN_A_TURN_MAX


class Shared:
    """A worker's port, which serves HTTP and the binary protocol."""

    def __init__(self, engine: Engine, port: int, audited: list[tuple[str, str, str, Any]]) -> None:
        self.engine = engine
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self.audited = audited


@asynccontextmanager
async def shared(path: Path) -> AsyncIterator[Shared]:
    audited: list[tuple[str, str, str, Any]] = []

    def audit(actor: str, action: str, subject: str, detail: Mapping[str, Any] | None) -> None:
        audited.append((actor, action, subject, detail))

    async with opened(path) as engine:
        runner = web.AppRunner(make_app(engine, NoStatus(), LinkedSources(), audit=audit), shutdown_timeout=0.2)
        await runner.setup()
        assert runner.server is not None
        bound = socket.create_server(("127.0.0.1", 0))
        gateway = Gateway(engine, Addresses("pulsar://127.0.0.1:1"))
        port = int(bound.getsockname()[1])
        await gateway.share(bound, runner.server)
        try:
            yield Shared(engine, port, audited)
        finally:
            await gateway.stop()
            await runner.cleanup()


@asynchronous
async def test_an_operator_closes_the_connections_of_a_client_by_its_address(tmp_path: Path) -> None:
    """Host and port name one connection, of any protocol; the host names all except the caller's. The log notes it."""
    async with shared(tmp_path / "data") as worker, aiohttp.ClientSession() as session:
        connections = [await asyncio.open_connection("127.0.0.1", worker.port) for _ in range(3)]
        hello = encode(BaseCommand(type=BaseCommand.CONNECT, connect=CommandConnect(client_version="x")))
        for reader, writer in connections[:2]:
            writer.write(hello)
            assert await reader.read(4)
        connections[2][1].write(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert await connections[2][0].read(4)
        addresses = ["{}:{}".format(*writer.get_extra_info("sockname")) for _, writer in connections]

        async def close(address: str) -> tuple[int, Any]:
            asked = {"address": address} if address else {}
            async with session.post(f"{worker.url}/replication/v1/clients/close", params=asked) as response:
                return response.status, await response.json()

        status, answer = await close(addresses[0])
        assert (status, answer) == (200, {"cluster": worker.engine.cluster, "address": addresses[0], "closed": 1})
        await ended(connections[0][0])
        status, answer = await close("127.0.0.1")
        assert (status, answer["closed"]) == (200, 2)
        await ended(connections[1][0])
        await ended(connections[2][0])
        assert [entry[1:3] for entry in worker.audited] == [
            ("close client", addresses[0]),
            ("close client", "127.0.0.1"),
        ]
        assert (await close(addresses[0]))[1]["error"] == "ClientNotFound"
        assert (await close(""))[0] == (await close("x" * 300))[0] == 400
        assert len(worker.audited) == 2


async def ended(reader: asyncio.StreamReader) -> None:
    try:
        while await reader.read(65_536):
            pass
    except ConnectionError:
        pass


@asynchronous
async def test_pipelined_requests_are_served_in_slices_and_beside_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with shared(tmp_path / "data") as worker, aiohttp.ClientSession() as session:
        worker.engine.turns.clock = Ticking(STEP_SECONDS)
        answered = Counted(asyncio.get_running_loop())
        json_response = web.json_response

        def counted(*arguments: Any, **named: Any) -> web.Response:
            answered.add()
            return json_response(*arguments, **named)

        monkeypatch.setattr(web, "json_response", counted)
        reader, writer = await asyncio.open_connection("127.0.0.1", worker.port)
        count = 2_000
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * count)
        async with session.get(f"{worker.url}/healthz") as response:
            assert response.status == 200
        left = count
        while left:
            left -= (await reader.readuntil(b'"alive"}')).count(b"alive")
        assert answered.most <= IN_A_TURN_MAX
        busiest = worker.engine.turns.busiest(1)
        assert busiest[0][0].address == "{}:{}".format(*writer.get_extra_info("sockname"))
        writer.close()


ALL_TOPICS = 300


def without_http(work: Callable[[Engine], Awaitable[None]]) -> Callable[[Admin], Awaitable[None]]:
    return lambda admin: work(admin.engine)


def requested(method: str, path: str, body: str = "") -> Callable[[Admin], Awaitable[None]]:
    async def ask(admin: Admin) -> None:
        async with admin.session.request(method, admin.url + path, data=body.encode()) as response:
            assert response.status in (200, 204), await response.text()
            await response.read()

    return ask


FIGURES = "/replication/v1/topic-figures"
BLOCKS = json.dumps({"topics": [["public/default/whole-partition-0", [[1, 0]] * ALL_TOPICS]]})
NAMESPACE = "/admin/v2/namespaces/public/default"


@pytest.mark.parametrize(
    ("owner", "looked_at", "ask"),
    [
        (topic_figures, "_matches", requested("GET", f"{FIGURES}?search=whole&limit=1")),
        (topic_figures, "_figures", requested("GET", f"{FIGURES}?limit={ALL_TOPICS}")),
        (Origins, "vector", requested("POST", "/replication/v1/backup")),
        (Origins, "high_water", requested("GET", "/replication/v1/store-of?cluster=us-west&messages=true")),
        (reading, "_row", requested("GET", "/replication/v1/positions")),
        (block_lists, "_number", requested("POST", "/replication/v1/blocks", BLOCKS)),
        (verifying, "_cut", requested("GET", "/replication/v1/cuts")),
        (figures, "topic_stats", requested("GET", "/admin/v2/persistent/public/default/whole/partitioned-stats")),
        (PositionMoves, "clear_backlog", requested("POST", f"{NAMESPACE}/clearBacklog")),
        (Engine, "find", requested("POST", f"{NAMESPACE}/unsubscribe/absent")),
        (
            LayeredPolicies,
            "apply",
            without_http(lambda engine: engine.catalog.set_namespace("public/default", NamespacePolicies())),
        ),
        (
            LayeredPolicies,
            "apply",
            without_http(lambda engine: engine.loaded.set_default_policies(TopicPolicies(max_consumers=3))),
        ),
    ],
    ids=[
        "figures",
        "page of figures",
        "backup",
        "store-of",
        "positions",
        "block list",
        "cuts",
        "partitioned-stats",
        "clearBacklog",
        "unsubscribe",
        "namespace policies",
        "default policies",
    ],
)
@asynchronous
async def test_requests_about_all_topics_let_others_have_their_turn(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    owner: Any,
    looked_at: str,
    ask: Callable[[Admin], Awaitable[None]],
) -> None:
    def routes(app: web.Application, engine: Engine) -> None:
        add_backup(app, engine, lambda *entry: None)
        add_store_of(app, partial(store_known, engine), engine)

    async with administered(tmp_path / "data", routes=routes) as admin:
        engine = admin.engine
        await engine.partitioned.create("public/default/whole", ALL_TOPICS)
        for number in range(ALL_TOPICS):
            topic = await engine.topic(f"public/default/whole-partition-{number}")
            await topic.subscribe("there", SubscribeOptions(), Inbox())
        engine.turns.clock = Ticking(STEP_SECONDS)
        looked = Counted(asyncio.get_running_loop())
        original = getattr(owner, looked_at)

        def counted(*arguments: Any, **named: Any) -> Any:
            looked.add()
            return original(*arguments, **named)

        monkeypatch.setattr(owner, looked_at, counted)
        await ask(admin)
        assert looked.total >= ALL_TOPICS
        assert looked.most <= IN_A_TURN_MAX


PERMIT = '{"type": "permit", "permitMessages": 1}'


@pytest.mark.parametrize(
    ("path", "reader", "said"),
    [
        ("producer/persistent/public/default/t", (producing, "read_message"), '{"payload": 1}'),
        ("consumer/persistent/public/default/t/s", (consuming, "read_command"), PERMIT),
    ],
    ids=["producer", "consumer"],
)
@asynchronous
async def test_floods_by_every_door_share_one_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, reader: tuple[Any, str], said: str
) -> None:
    """Commands of the binary protocol, pipelined requests and frames of a WebSocket are counted together."""
    count = 2_000
    async with shared(tmp_path / "data") as worker, aiohttp.ClientSession() as session:
        worker.engine.turns.clock = Ticking(STEP_SECONDS)
        done = Counted(asyncio.get_running_loop())
        by_door: Counter[str] = Counter()

        def count_calls(owner: Any, name: str) -> None:
            original = getattr(owner, name)

            def counted(*arguments: Any, **named: Any) -> Any:
                done.add()
                by_door[name] += 1
                return original(*arguments, **named)

            monkeypatch.setattr(owner, name, counted)

        count_calls(Connection, "carry_out")
        count_calls(web, "json_response")
        count_calls(*reader)
        async with session.ws_connect(f"{worker.url}/ws/v2/{path}", params={"pullMode": "true"}) as opened:
            binary, requests = [await asyncio.open_connection("127.0.0.1", worker.port) for _ in range(2)]
            ping = encode(BaseCommand(type=BaseCommand.PING, ping=CommandPing()))
            hello = encode(BaseCommand(type=BaseCommand.CONNECT, connect=CommandConnect(client_version="x")))
            binary[1].write(hello + ping * count)
            requests[1].write(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * count)
            draining = [asyncio.ensure_future(drained(each)) for each, _ in (binary, requests)]
            hearing = asyncio.ensure_future(heard(opened))
            for _ in range(count):
                await opened.send_str(said)
            name = reader[1]
            await eventually(lambda: min(by_door[each] for each in ("carry_out", "json_response", name)) >= count)
            assert done.most <= IN_A_TURN_MAX
            for task in (*draining, hearing):
                task.cancel()
            for _, writer in (binary, requests):
                writer.close()


async def drained(stream: asyncio.StreamReader) -> None:
    while await stream.read(65_536):
        pass


async def heard(opened: aiohttp.ClientWebSocketResponse) -> None:
    async for _ in opened:
        pass


# Frames of links.

COPIED = [
    Outgoing(
        TOPIC,
        Position(9, number - 1) if number else BEFORE_ALL,
        make_block(Position(9, number), [message(b"%d" % number)]),
    )
    for number in range(2_000)
]


@asynccontextmanager
async def linked(path: Path) -> AsyncIterator[tuple[Engine, asyncio.StreamReader, asyncio.StreamWriter]]:
    """Yield a worker and an open stream of a link to it. The clock is made up: each reading of it ends a slice."""
    async with opened(path, "eu-west") as engine, whole_app(engine) as (_, base), asyncio.timeout(120):
        reader, writer = await opened_stream(base)
        engine.turns.clock = Ticking(LINK_SLICE_SECONDS)
        try:
            yield engine, reader, writer
        finally:
            writer.transport.abort()


@pytest.mark.parametrize("encode", [encode_rows, encode_append])
@asynchronous
async def test_blocks_of_a_large_frame_are_decoded_checked_and_appended_in_slices_and_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encode: Callable[[Sequence[Outgoing]], list[Any]]
) -> None:
    async with linked(tmp_path / "data") as (engine, reader, writer):
        decoded, checked, appended = (Counted(asyncio.get_running_loop()) for _ in range(3))
        begin_copy = TopicWriting.begin_copy

        def copied(*values: Any) -> CopiedBlock:
            decoded.add()
            return CopiedBlock(*values)

        def header_of(block: Any) -> BlockHeader:
            checked.add()
            return read_header(block)

        def counted_copy(writing: TopicWriting, blocks: Sequence[CopiedBlock]) -> Any:
            appended.add(len(blocks))
            return begin_copy(writing, blocks)

        for module in (arrow, frame_rows):
            monkeypatch.setattr(module, "CopiedBlock", copied)
        monkeypatch.setattr(link_streams, "read_header", header_of)
        monkeypatch.setattr(TopicWriting, "begin_copy", counted_copy)
        writer.write(framed(b"".join(encode(COPIED)), b"".join(encode(COPIED[-1:]))))
        assert await next_answer(reader) == {"extents": len(COPIED), "refused": {}}
        assert await next_answer(reader) == {"extents": 0, "refused": {}}, "it was here already"
        for each, most in ((decoded, ROWS_AT_ONCE), (checked, BLOCKS_AT_ONCE), (appended, BLOCKS_AT_ONCE)):
            assert each.total == len(COPIED) + 1
            assert each.most <= most + 1  # of the small frame, whose turn may be the same
        topic = engine.find(TOPIC)
        assert topic is not None
        assert entries_of(topic, "us-east") == [message(b"%d" % number) for number in range(len(COPIED))]


@asynchronous
async def test_nothing_is_appended_of_a_frame_whose_stream_was_ended_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another run of the source's store may have taken its place, and then nothing of the first run may be taken."""
    begin, serve = TopicWriting.begin_copy, link_streams._serve_frames
    ends, appended, is_over = list[Callable[[], None]](), list[int](), asyncio.Event()

    async def served(request: Any, link: Any, frames: Any, first: Any = None) -> None:
        ends.append(frames.abort)
        try:
            await serve(request, link, frames, first)
        finally:
            is_over.set()

    def ended_at_the_first(writing: TopicWriting, blocks: Sequence[CopiedBlock]) -> Any:
        appended.append(len(blocks))
        ends[0]()
        return begin(writing, blocks)

    monkeypatch.setattr(link_streams, "_serve_frames", served)
    monkeypatch.setattr(TopicWriting, "begin_copy", ended_at_the_first)
    async with linked(tmp_path / "data") as (_, _, writer):
        writer.write(framed(b"".join(encode_rows(COPIED))))
        await is_over.wait()
    assert appended == [BLOCKS_AT_ONCE]


@asynchronous
async def test_refusals_of_many_topics_are_told_in_slices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each topic is named once, with its first error."""
    async with linked(tmp_path / "data") as (_, reader, writer):
        told = Counted(asyncio.get_running_loop())

        def counted(value: Any) -> str:
            told.add()
            return json.dumps(value)

        monkeypatch.setattr(link_streams, "json", SimpleNamespace(dumps=counted))
        foreign = make_block(Position(9, 0), [message()], origin="ap-south")
        names = [f"persistent://public/default/t{number}" for number in range(3_000)]
        several = [each._replace(topic=TOPIC) for each in COPIED[: 2 * BLOCKS_AT_ONCE]]
        several[0] = several[0]._replace(block=foreign)
        writer.write(
            framed(b"".join(encode_rows([*several, *(Outgoing(name, BEFORE_ALL, foreign) for name in names)])))
        )
        answer = await next_answer(reader)
        assert answer["extents"] == 0
        assert list(answer["refused"]) == [TOPIC, *names]
        assert {row["code"] for row in answer["refused"].values()} == {"NotAllowedError"}
        assert told.most <= 2 * RESULTS_AT_ONCE  # name and reason


@asynchronous
async def test_thousands_of_tiny_frames_that_come_at_once_are_parsed_and_answered_in_slices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with linked(tmp_path / "data") as (_, reader, writer):
        parsed = Counted(asyncio.get_running_loop())

        def counted(header: Any) -> FrameHeader:
            parsed.add()
            return read_frame_header(header)

        monkeypatch.setattr(frame_parsing, "read_header", counted)
        counts = (4_000, FRAMES_AT_ONCE, 1)
        for count in counts:
            writer.write(framed(*[b"".join(encode_rows(()))] * count))
            for _ in range(count):
                assert await next_answer(reader) == {"extents": 0, "refused": {}}
        assert parsed.total == sum(counts)
        assert parsed.most <= 2 * FRAMES_AT_ONCE  # of two reads
