"""The data plane over real HTTP: reading pages, appending frames, and what bad requests get."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pyarrow as pa
import pytest
from aiohttp import web
from engine_support import (
    TOPIC,
    DataPlaneServer,
    batch,
    entries_of,
    eventually,
    logged,
    make_block,
    marker,
    message,
    opened,
    serving,
    subscribed,
)
from examples import examples
from frame_support import asked, frame_of, framed, header, next_answer, streamed
from hypothesis import given, settings
from hypothesis import strategies as st

from replicator.api import data_plane, frame_receiver, link_streams
from replicator.api.frame_receiver import switch_protocols
from replicator.engine.engine import Engine
from replicator.engine.log.arrow import BLOCK_SCHEMA, Outgoing
from replicator.engine.log.block import BlockKind, BlockView
from replicator.engine.log.link_frame import FRAME_BYTES_MAX, PROTOCOL_VERSION
from replicator.engine.types import Ack
from replicator.engine.unpacking import Unpacking
from replicator.running.short_tasks import awaited
from snapshots.position import BEFORE_ALL, Position

ONE, TWO, THREE = message(b"1"), message(b"2"), message(b"3")
FIRST = Outgoing(TOPIC, BEFORE_ALL, make_block(Position(9, 0), [ONE, TWO]))
SECOND = Outgoing(TOPIC, Position(9, 1), make_block(Position(9, 2), [THREE]))

Body = Callable[[Engine, DataPlaneServer, aiohttp.ClientSession], Awaitable[None]]


def with_server(path: Path, body: Body) -> None:
    """Run ``body`` against the data plane of eu-west, which has a link from us-east."""

    async def main() -> None:
        async with (
            opened(path, "eu-west") as engine,
            serving(engine, {"us-east"}) as server,
            aiohttp.ClientSession() as session,
        ):
            async with asyncio.timeout(60):
                await body(engine, server, session)

    asyncio.run(main())


ZEROS = pa.compress(bytes(1024**2), codec="zstd", asbytes=True)
LZ4_ZEROS = pa.compress(bytes(1024**2), codec="lz4_raw", asbytes=True)


BY_UPGRADE, POSTED = str(PROTOCOL_VERSION), "5"


async def answers(response: aiohttp.ClientResponse) -> list[dict[str, Any]]:
    found = []
    while head := await response.content.read(4):
        head += await response.content.readexactly(4 - len(head)) if len(head) < 4 else b""
        found.append(json.loads(await response.content.readexactly(int.from_bytes(head, "big"))))
    return found


async def post(
    server: DataPlaneServer, session: aiohttp.ClientSession, body: Any, **params: str
) -> tuple[int, list[dict[str, Any]]]:
    """Status and answers; an error's answer is its JSON."""
    if params.get("protocol") not in (POSTED, "4"):
        return await streamed(f"{server.url}/append", body, **params)
    async with session.post(f"{server.url}/append", params={"from": "us-east"} | params, data=body) as response:
        if response.status != 200:
            return response.status, [await response.json()]
        return response.status, await answers(response)


# Reading.


async def page(session: aiohttp.ClientSession, server: DataPlaneServer, **params: str) -> tuple[pa.Table, str, bool]:
    async with session.get(f"{server.url}/blocks", params={"topic": TOPIC, **params}) as response:
        assert response.status == 200, await response.text()
        table = pa.ipc.open_stream(await response.read()).read_all()
        assert table.schema == BLOCK_SCHEMA
        return table, response.headers["X-Replicator-Next"], response.headers["X-Replicator-End"] == "true"


@pytest.mark.parametrize("max_bytes", ["1", "500", "8388608"])
def test_a_topic_is_read_page_by_page(tmp_path: Path, max_bytes: str) -> None:
    async def body(engine: Engine, server: DataPlaneServer, session: aiohttp.ClientSession) -> None:
        topic = await engine.topic(TOPIC)
        entries = []
        for number in range(10):
            entries += [message(b"%d.%d" % (number, index)) for index in range(number + 1)]
            await topic.publish(entries[-number - 1 :])
        found, after, ended = [], str(BEFORE_ALL), False
        while not ended:
            table, following, ended = await page(session, server, after=after, max_bytes=max_bytes)
            for row in table.to_pylist():
                found += [bytes(entry) for entry in BlockView(row["block"]).entries()]
                assert Position(row["ledger"], row["first"]) > Position.parse(after)
            after = following
        assert found == entries
        assert after == str(topic.log.last)

    with_server(tmp_path, body)


def test_an_empty_topic_and_an_empty_range_are_empty_pages(tmp_path: Path) -> None:
    async def body(engine: Engine, server: DataPlaneServer, session: aiohttp.ClientSession) -> None:
        topic = await engine.topic(TOPIC)
        assert (await page(session, server))[0].num_rows == 0
        positions = await topic.publish([ONE, TWO, THREE])
        for after, upto in [(positions[1], positions[1]), (positions[2], positions[0]), (positions[2], positions[2])]:
            table, _, ended = await page(session, server, after=str(after), upto=str(upto))
            assert (table.num_rows, ended) == (0, True)
        far = f"{2**64 - 1}:{2**64 - 1}"
        assert (await page(session, server, after=far))[2]
        assert (await page(session, server, after=f"{positions[0].ledger}:{2**64 - 1}"))[0].num_rows == 0
        table, following, ended = await page(session, server, after=str(positions[0]), upto=far)
        assert (table.num_rows, following, ended) == (1, str(positions[2]), True)

    with_server(tmp_path, body)


def test_topics_subscriptions_and_high_water_are_told_exactly(tmp_path: Path) -> None:
    async def body(engine: Engine, server: DataPlaneServer, session: aiohttp.ClientSession) -> None:
        topic = await engine.topic(TOPIC)
        positions = await topic.publish([ONE, batch([b"a", b"b", b"c"]), TWO, THREE])
        await topic.writing.marker(marker())
        consumer, _ = await subscribed(topic)
        await consumer.acknowledge([Ack(positions[0]), Ack(positions[1], (0, 2)), Ack(positions[2])])
        await post(server, session, framed(frame_of(FIRST)))

        async def get(path: str) -> Any:
            async with session.get(f"{server.url}/{path}") as response:
                assert response.status == 200
                return await response.json()

        assert await get("topics") == {
            "cluster": "eu-west",
            "topics": [
                {
                    "name": TOPIC,
                    "incarnation": topic.incarnation,
                    "first": str(positions[0]),
                    "lac": str(topic.log.last),
                    "entries": 7,
                    "messages": 8,
                    "clusters": None,
                }
            ],
        }
        (state,) = (await get("subscriptions?topic=orders"))["subscriptions"]
        assert state == {
            "name": "sub",
            "type": "Shared",
            "replicated": False,
            "generation": 1,
            "mark_delete": str(positions[0]),
            "individually_deleted": [[str(positions[2]), str(positions[2])]],
            "batch_acks": {str(positions[1]): [0, 2]},
            "starts": {"eu-west": ["0", "0:-1"]},
        }
        row = {"incarnation": 7, "position": "9:1", "messages": "9:1", "held": 8}
        assert (await get("high-water?origin=us-east"))["topics"] == {TOPIC: row}
        both = await get("high-water?origins=us-east,eu-west,nobody")
        assert (both["cluster"], both["protocol"]) == ("eu-west", data_plane.PROTOCOL_UNSAID)
        assert both["topics"][TOPIC]["us-east"] == row
        assert both["topics"][TOPIC]["eu-west"]["position"] == str(topic.origins.high_water("eu-west").position)
        assert (await get("high-water?origin=nobody"))["topics"] == {}

    with_server(tmp_path, body)


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("blocks", 400, "BadRequest"),
        ("blocks?topic=none", 404, "TopicNotFound"),
        ("blocks?topic=..%2F..%2Fetc", 400, "InvalidTopicName"),
        ("blocks?topic=persistent://a/../b", 400, "InvalidTopicName"),
        ("blocks?topic=" + "x" * 500, 400, "InvalidTopicName"),
        ("blocks?topic=a%00b", 400, "UnsupportedTopicName"),
        ("blocks?topic=orders&after=soon", 400, "InvalidPosition"),
        ("blocks?topic=orders&after=1:18446744073709551616", 400, "InvalidPosition"),
        ("blocks?topic=orders&upto=-1:0", 400, "InvalidPosition"),
        ("blocks?topic=orders&max_bytes=0", 400, "BadRequest"),
        ("blocks?topic=orders&max_bytes=99999999999999", 400, "BadRequest"),
        ("blocks?topic=orders&max_bytes=many", 400, "BadRequest"),
        ("blocks?topic=orders&max_bytes=%C2%B2", 400, "BadRequest"),
        ("blocks?topic=orders&max_bytes=" + "9" * 5000, 400, "BadRequest"),
        ("subscriptions?topic=none", 404, "TopicNotFound"),
        ("subscriptions", 400, "BadRequest"),
        ("high-water", 400, "BadRequest"),
        ("nothing", 404, "NotFound"),
        ("append", 405, "MethodNotAllowed"),
    ],
)
def test_a_bad_request_gets_one_clear_error(tmp_path: Path, path: str, status: int, code: str) -> None:
    async def body(engine: Engine, server: DataPlaneServer, session: aiohttp.ClientSession) -> None:
        await (await engine.topic(TOPIC)).publish([ONE])
        async with session.get(f"{server.url}/{path}") as response:
            answer = await response.json()
        assert (response.status, answer["error"]) == (status, code), answer
        assert set(answer) == {"error", "message"}
        assert answer["message"]
        assert len(engine.topics()) == 1

    with_server(tmp_path, body)


def test_a_rotten_block_is_an_error_of_the_server_and_is_not_served(tmp_path: Path) -> None:
    async def body(engine: Engine, server: DataPlaneServer, session: aiohttp.ClientSession) -> None:
        topic = await engine.topic(TOPIC)
        await topic.publish([ONE])
        with engine.store.env.begin(write=True, db=engine.store.tables["blocks"]) as txn:
            ((key, value),) = list(txn.cursor())
            txn.put(key, value[:-1] + b"!")
        async with session.get(f"{server.url}/blocks", params={"topic": TOPIC}) as response:
            assert response.status == 500
            answer = await response.json()
        assert answer["error"] == "BlockCorrupt"
        assert "checksum" in answer["message"]

    with_server(tmp_path, body)


# Appending.


@pytest.mark.parametrize(("protocol", "begun"), [(BY_UPGRADE, 101), (POSTED, 200), ("4", 200)])
def test_frames_are_answered_in_order_when_they_are_durable(tmp_path: Path, protocol: str, begun: int) -> None:
    async def body(engine: Engine, server: DataPlaneServer, session: aiohttp.ClientSession) -> None:
        again = frame_of(FIRST, SECOND)
        sent = framed(frame_of(FIRST), frame_of(), frame_of(SECOND), again)
        status, found = await post(server, session, sent, protocol=protocol)
        assert status == begun
        assert found == [{"extents": n, "refused": {}} for n in (1, 0, 1, 0)]
        assert entries_of(await engine.topic(TOPIC), "us-east") == [ONE, TWO, THREE]

    with_server(tmp_path, body)


def test_a_refusal_concerns_its_topic_alone(tmp_path: Path) -> None:
    async def body(engine: Engine, server: DataPlaneServer, session: aiohttp.ClientSession) -> None:
        await post(server, session, framed(frame_of(FIRST)))
        refused: dict[str, tuple[str, Outgoing]] = {
            TOPIC: (
                "IncarnationMismatch",
                Outgoing(TOPIC, BEFORE_ALL, make_block(Position(9, 2), [ONE], incarnation=8)),
            ),
            "gap": ("CopyGap", Outgoing("gap", Position(4, 4), FIRST[2])),
            "own": (
                "NotAllowedError",
                Outgoing("own", BEFORE_ALL, make_block(Position(9, 0), [ONE], origin="eu-west")),
            ),
            "rotten": ("BlockCorrupt", Outgoing("rotten", BEFORE_ALL, FIRST[2][:-1] + b"!")),
            "../up": ("InvalidTopicName", Outgoing("../up", BEFORE_ALL, FIRST[2])),
            "x" * 500: ("InvalidTopicName", Outgoing("x" * 500, BEFORE_ALL, FIRST[2])),
            "local": (
                "NotAllowedError",
                Outgoing("local", BEFORE_ALL, make_block(Position(9, 0), [marker()], kind=BlockKind.LOCAL_MARKERS)),
            ),
        }
        good = Outgoing("good", BEFORE_ALL, FIRST[2])
        status, (answer,) = await post(
            server, session, framed(frame_of(*(block for _, block in refused.values()), good))
        )
        assert (status, answer["extents"]) == (101, 1)
        assert {topic: row["code"] for topic, row in answer["refused"].items()} == {
            topic: code for topic, (code, _) in refused.items()
        }
        assert all(row["message"] for row in answer["refused"].values())
        assert entries_of(await engine.topic(TOPIC), "us-east") == [ONE, TWO]
        assert entries_of(await engine.topic("good"), "us-east") == [ONE, TWO]
        assert {topic.name.rsplit("/", 1)[1] for topic in engine.topics()} == {"orders", "good"}, (
            "a refused block made a topic"
        )

    with_server(tmp_path, body)


@pytest.mark.parametrize(
    ("sent", "status", "code"),
    [
        (b"", 400, "BadRequest"),
        (b"\0\0", 400, "BlockCorrupt"),
        (framed(frame_of(FIRST))[:-20], 400, "BlockCorrupt"),
        (framed(frame_of(FIRST)[:-200]), 400, "BlockCorrupt"),
        (framed(b"noise"), 400, "BlockCorrupt"),
        (framed(b""), 400, "BlockCorrupt"),
        (header(FRAME_BYTES_MAX + 1) + b"x" * 100, 413, "FrameTooLarge"),
        (header(2**32 - 1), 413, "FrameTooLarge"),
        (header(5, raw_bytes=4) + b"noise", 400, "BlockCorrupt"),
        (header(5, codec=3) + b"noise", 400, "BlockCorrupt"),
        (header(5, codec=2) + b"noise", 400, "BlockCorrupt"),
        # Decompression bombs: what they say they become is over the limit, or less or more than what they become.
        (header(len(ZEROS), 2, FRAME_BYTES_MAX + 1) + ZEROS, 413, "FrameTooLarge"),
        (header(len(ZEROS), 2, 1000) + ZEROS, 400, "BlockCorrupt"),
        (header(len(ZEROS), 2, 1024**2 + 1) + ZEROS, 400, "BlockCorrupt"),
        (header(len(LZ4_ZEROS), 1, 1000) + LZ4_ZEROS, 400, "BlockCorrupt"),
        (header(len(LZ4_ZEROS), 1, 1024**2 + 1) + LZ4_ZEROS, 400, "BlockCorrupt"),
    ],
)
@pytest.mark.parametrize("protocol", [BY_UPGRADE, POSTED])
def test_a_first_frame_that_cannot_be_read_is_refused_and_nothing_appended(
    tmp_path: Path, sent: bytes, status: int, code: str, protocol: str
) -> None:
    async def body(engine: Engine, server: DataPlaneServer, session: aiohttp.ClientSession) -> None:
        got, answers = await post(server, session, sent, protocol=protocol)
        if not sent and protocol == BY_UPGRADE:
            assert (got, answers) == (101, []), "a connection on which nothing is sent has nothing to be answered"
            return
        (answer,) = answers
        assert (got, answer["error"]) == (status if protocol == POSTED else 101, code), answer
        assert set(answer) == {"error", "message"}
        assert engine.topics() == []

    with_server(tmp_path, body)


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (framed(b"noise"), "BlockCorrupt"),
        (b"\0", "BlockCorrupt"),
        (framed(frame_of(SECOND))[:-20], "BlockCorrupt"),
        (header(2**32 - 1), "FrameTooLarge"),
    ],
)
@pytest.mark.parametrize("protocol", [BY_UPGRADE, POSTED])
def test_a_later_frame_that_cannot_be_read_ends_the_stream_with_an_error(
    tmp_path: Path, sent: bytes, code: str, protocol: str
) -> None:
    async def body(engine: Engine, server: DataPlaneServer, session: aiohttp.ClientSession) -> None:
        status, found = await post(server, session, framed(frame_of(FIRST)) + sent, protocol=protocol)
        assert status == (200 if protocol == POSTED else 101)
        assert found[0] == {"extents": 1, "refused": {}}
        assert found[1]["error"] == code
        assert len(found) == 2
        assert entries_of(await engine.topic(TOPIC), "us-east") == [ONE, TWO]

    with_server(tmp_path, body)


@pytest.mark.parametrize(
    ("params", "status", "code"),
    [
        ({"from": "ap-south"}, 409, "NotAllowedError"),
        ({"from": ""}, 400, "BadRequest"),
        ({"protocol": "1"}, 400, "BadRequest"),
        ({"protocol": "x"}, 400, "BadRequest"),
        ({"upgrade": "websocket"}, 426, "UpgradeRequired"),
    ],
)
def test_only_linked_sources_that_speak_the_protocol_may_append(
    tmp_path: Path, params: dict[str, str], status: int, code: str
) -> None:
    async def body(engine: Engine, server: DataPlaneServer, session: aiohttp.ClientSession) -> None:
        got, (answer,) = await post(server, session, framed(frame_of(FIRST)), **params)
        assert (got, answer["error"]) == (status, code)
        assert engine.topics() == []

    with_server(tmp_path, body)


def test_invariant_11_frames_that_are_not_answered_yet_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While commits stand still, the worker stops reading the body after a few frames."""
    monkeypatch.setattr(link_streams, "FRAMES_PENDING_MAX", 3)

    async def body(engine: Engine, server: DataPlaneServer, session: aiohttp.ClientSession) -> None:
        release, submitted = asyncio.Event(), 0
        commit = engine.writer.copy

        async def slow_copy(*arguments: Any, **options: Any) -> Any:
            nonlocal submitted
            submitted += 1
            await release.wait()
            return await commit(*arguments, **options)

        monkeypatch.setattr(engine.writer, "begin_copy", lambda *given, **said: awaited(slow_copy(*given, **said)))
        sent = 0

        async def frames() -> AsyncIterator[bytes]:
            nonlocal sent
            yield framed(frame_of(Outgoing(TOPIC, BEFORE_ALL, make_block(Position(9, 0), [b"x" * 200_000]))))
            for number in range(1, 60):
                block = make_block(Position(9, number), [b"x" * 200_000])
                yield framed(frame_of(Outgoing(TOPIC, Position(9, number - 1), block)))
                sent = number

        posting = asyncio.ensure_future(post(server, session, frames()))
        await eventually(lambda: submitted >= 3)
        for _ in range(50):  # other requests are served; this one is not read on
            async with session.get(f"{server.url}/topics") as response:
                assert response.status == 200
        assert submitted == 3
        assert sent < 59
        release.set()
        status, found = await posting
        assert (status, len(found)) == (101, 60)

    with_server(tmp_path, body)


def test_a_link_that_vanishes_with_frames_unanswered_leaves_no_handler_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_streams, "FRAMES_PENDING_MAX", 2)

    async def body(engine: Engine, server: DataPlaneServer, session: aiohttp.ClientSession) -> None:
        before = len(asyncio.all_tasks())
        release, submitted = asyncio.Event(), 0
        commit = engine.writer.copy

        async def slow_copy(*arguments: Any, **options: Any) -> Any:
            nonlocal submitted
            submitted += 1
            await release.wait()
            return await commit(*arguments, **options)

        _, _, reader, writer = await asked(f"{server.url}/append")
        writer.write(framed(frame_of(FIRST)))
        assert await next_answer(reader) == {"extents": 1, "refused": {}}
        monkeypatch.setattr(engine.writer, "begin_copy", lambda *given, **said: awaited(slow_copy(*given, **said)))
        for number in range(20):
            writer.write(
                framed(frame_of(Outgoing(TOPIC, Position(9, 1 + number), make_block(Position(9, 2 + number), [ONE]))))
            )
        await eventually(lambda: submitted >= 2)
        writer.transport.abort()
        await reader.read()
        release.set()
        await eventually(lambda: len(asyncio.all_tasks()) <= before, "the handler has ended")

    with_server(tmp_path, body)


@pytest.mark.parametrize("noise", [framed(b"noise"), header(2**32 - 1)], ids=["a frame", "a header"])
def test_a_link_that_goes_on_sending_is_told_why_its_stream_has_ended(tmp_path: Path, noise: bytes) -> None:
    """A connection that is closed on bytes that nobody has read loses the answer."""

    async def body(engine: Engine, server: DataPlaneServer, session: aiohttp.ClientSession) -> None:
        _, _, reader, writer = await asked(f"{server.url}/append")
        frame = framed(frame_of(Outgoing(TOPIC, BEFORE_ALL, make_block(Position(9, 0), [b"x" * 200_000]))))

        writer.write(noise)
        for _ in range(80):  # far more than the sockets hold
            writer.write(frame)
            await writer.drain()
        assert set(await next_answer(reader)) == {"error", "message"}
        assert await reader.read() == b""
        writer.transport.abort()
        assert engine.topics() == []

    with_server(tmp_path, body)


def test_a_link_that_is_silent_is_cut_off_also_inside_a_frame(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame_receiver, "SILENCE_SECONDS_MAX", 0.2)
    monkeypatch.setattr(frame_receiver, "LINGER_SECONDS_MAX", 0.2)

    async def body(engine: Engine, server: DataPlaneServer, session: aiohttp.ClientSession) -> None:
        for sent in (b"", framed(frame_of(FIRST))[:-20], framed(b"x" * 1_000_000)[:-1]):
            _, _, reader, writer = await asked(f"{server.url}/append")
            writer.write(sent)
            assert await reader.read() == b""
            writer.transport.abort()

    with_server(tmp_path, body)


def test_a_link_that_reads_nothing_for_a_while_is_told_of_a_topic_that_is_made_when_it_reads_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    receivers: list[frame_receiver.FrameReceiver] = []

    async def switched(request: web.Request, unpacking: Unpacking) -> Any:
        response, frames = await switch_protocols(request, unpacking)
        receivers.append(frames)
        return response, frames

    monkeypatch.setattr(link_streams, "switch_protocols", switched)

    async def body(engine: Engine, server: DataPlaneServer, session: aiohttp.ClientSession) -> None:
        _, _, reader, writer = await asked(f"{server.url}/append", hears="made")
        writer.write(framed(frame_of()))
        assert "extents" in await next_answer(reader)
        receivers[0].pause_writing()
        await engine.topic(TOPIC)
        receivers[0].resume_writing()
        assert await next_answer(reader) == {"made": TOPIC}
        receivers[0].pause_writing()
        other = f"{TOPIC}-other"
        await engine.topic(other)
        writer.write(framed(frame_of()))
        assert await next_answer(reader) == {"made": other}, "before what it may have to do with"
        assert "extents" in await next_answer(reader)
        receivers[0].queue_answer({"made": TOPIC})
        closing = asyncio.ensure_future(receivers[0].close())
        await asyncio.sleep(0)
        receivers[0].resume_writing()  # after the end, which nothing may follow
        writer.transport.abort()
        await closing

    with_server(tmp_path, body)


frames_of_noise = st.one_of(
    st.binary(max_size=300),
    st.builds(
        lambda at, value: (lambda f: f[: at % len(f)] + bytes([value]) + f[at % len(f) + 1 :])(frame_of(FIRST, SECOND)),
        st.integers(0, 10**6),
        st.integers(0, 255),
    ),
    st.builds(lambda cut: frame_of(FIRST, SECOND)[: cut % 600], st.integers(0, 10**6)),
)


@given(st.lists(frames_of_noise, min_size=1, max_size=3), st.booleans())
@settings(max_examples=examples(30))
def test_whatever_a_link_sends_the_worker_answers_and_stores_nothing_but_whole_blocks(
    noise: list[bytes], lie: bool
) -> None:
    async def body(engine: Engine, server: DataPlaneServer, session: aiohttp.ClientSession) -> None:
        sent = framed(*noise)
        status, found = await post(server, session, sent[:-1] if lie else sent)
        assert status == 101
        for answer in found:
            assert set(answer) in ({"extents", "refused"}, {"error", "message"})
            assert "InternalError" not in answer.values()
        for topic in engine.topics():
            entries = [entry for _, _, entry in logged(topic)]
            assert entries in ([], [ONE, TWO], [ONE, TWO, THREE])
        # And the link can go on.
        status, found = await post(server, session, framed(frame_of(Outgoing("after", BEFORE_ALL, FIRST[2]))))
        assert (status, found) == (101, [{"extents": 1, "refused": {}}])

    with tempfile.TemporaryDirectory() as directory:
        with_server(Path(directory), body)
