"""A link's pauses, rate, compression, lag, and what it may hold back, between real engines over real HTTP."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web as aiohttp_web
from engine_support import TOPIC, eventually, message
from link_support import link_of, web

from replicator.engine.engine import EngineSettings
from replicator.engine.errors import BacklogQuotaExceeded
from replicator.engine.log import link_frame
from replicator.engine.log.entry import encode_entry
from replicator.engine.policies import Retention, TopicPolicies
from replicator.metadata.metadata_pb2 import MessageMetadata
from replicator.topology import Link as LinkSpec
from snapshots.position import BEFORE_ALL

pytestmark = pytest.mark.usefixtures("shortest_link_pauses")

NOTHING_KEPT = EngineSettings(policies=TopicPolicies(retention=Retention(age_seconds_max=0, bytes_max=0)))

SPOKEN = f"{link_frame.PROTOCOL_OLDEST} to {link_frame.PROTOCOL_VERSION}"


def test_a_paused_link_copies_nothing_and_holds_the_log_until_it_is_resumed_also_over_a_restart(tmp_path: Path) -> None:
    async def main() -> None:
        async with web(tmp_path, [LinkSpec("a", "b")], settings=NOTHING_KEPT) as made:
            copied = await made.publish("a", 0, 6)
            await eventually(lambda: made.entries("b", "a") == copied)
            link = made.links["a>b"]
            await eventually(lambda: link.state == "idle")
            await link.pause()
            await eventually(lambda: link.state == "paused")
            assert link.figures.reconnects == 0
            waiting = await made.publish("a", 6, 6)
            await made.engines["a"].maintenance.run_once()
            assert made.entries("a", "a")[-6:] == waiting
            assert link.status()["backlog_entries"] == 6
            assert link.status()["paused"]
            await link.stop()
            link.detach()
            link = made.links["a>b"] = link_of(made, link.spec)
            link.start()
            await eventually(lambda: link.state == "paused")
            assert link.status()["backlog_entries"] == 6, "how far it was is known before the destination has said so"
            assert made.entries("b", "a") == copied
            await link.resume()
            await eventually(lambda: made.entries("b", "a") == copied + waiting)
            await eventually(lambda: link.status()["backlog_entries"] == 0)
            assert link.status()["lag_ms"] == 0
            await link.stop()

    asyncio.run(main())


def test_lag_is_the_age_of_what_the_destination_does_not_have(tmp_path: Path) -> None:
    async def main() -> None:
        now_ms = [1_700_000_000_000]
        settings = EngineSettings(wall_clock_ms=lambda: now_ms[0])
        async with web(tmp_path, [LinkSpec("a", "b")], settings=settings, started=False) as made:
            link = made.links["a>b"]
            assert link.status()["lag_ms"] == 0
            await made.publish("a", 0, 1)
            now_ms[0] += 5_000
            await made.publish("a", 1, 1)
            now_ms[0] += 1_000
            assert link.status()["lag_ms"] == 6_000
            assert await link.backlog_by_topic() == {TOPIC: 2}
            link.start()
            await eventually(lambda: link.status()["lag_ms"] == 0)
            assert await link.backlog_by_topic() == {}

    asyncio.run(main())


def test_a_link_sends_no_faster_than_its_rate(tmp_path: Path) -> None:
    async def main() -> None:
        rate = 200_000
        async with web(tmp_path, [LinkSpec("a", "b", rate_bytes=rate)], started=False) as made:
            topic = await made.engines["a"].topic(TOPIC)
            entries = [message(b"%d" % number + bytes(4_000)) for number in range(30)]
            for entry in entries:
                await topic.publish([entry])
            loop = asyncio.get_running_loop()
            link = made.links["a>b"]
            started = loop.time()
            link.start()
            await eventually(lambda: made.entries("b", "a") == entries)
            first_frame = link.figures.wire_bytes
            late = [message(b"late %d" % number + bytes(20_000)) for number in range(6)]
            for entry in late:
                await topic.publish([entry])
                await eventually(lambda entry=entry: made.entries("b", "a")[-1] == entry)
            took = loop.time() - started
            sent = link.figures.wire_bytes
            last = len(late[-1])
            assert sent > first_frame > 100_000
            assert took >= (sent - last - 2_000) / rate - 0.1, "all but the burst and the last frame waited"

    asyncio.run(main())


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_frames_are_compressed_and_arrive_as_they_were(tmp_path: Path, compression: str) -> None:
    async def main() -> None:
        async with web(tmp_path, [LinkSpec("a", "b", compression=compression)], started=False) as made:
            topic = await made.engines["a"].topic(TOPIC)
            entries = [message(b"%d" % number + b"abc" * 1_000) for number in range(100)]
            await topic.publish(entries)
            made.links["a>b"].start()
            await eventually(lambda: made.entries("b", "a") == entries)
            figures = made.links["a>b"].figures
            assert figures.wire_bytes < figures.bytes / 5
            assert made.links["a>b"].status()["compression"] == compression

    asyncio.run(main())


def test_two_versions_of_the_protocol_refuse_each_other_clearly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with web(tmp_path, [LinkSpec("a", "b")], started=False) as made:
            async with (
                aiohttp.ClientSession() as session,
                session.post(
                    f"{made.servers['b'].url}/append", params={"from": "a", "protocol": "1"}, data=b"\0\0\0\0"
                ) as response,
            ):
                answer = await response.json()
            assert response.status == 400
            refused = f"a speaks version 1 of the links' protocol, b {SPOKEN}"
            assert f"{refused}: upgrade the worker of a" in answer["message"]

            async def old(request: aiohttp_web.Request) -> aiohttp_web.Response:
                return aiohttp_web.json_response({"cluster": "b", "topics": {}})

            app = aiohttp_web.Application()
            app.router.add_get("/replication/v1/high-water", old)
            runner = aiohttp_web.AppRunner(app)
            await runner.setup()
            await aiohttp_web.TCPSite(runner, "127.0.0.1", 0).start()
            link = made.links["a>b"]
            link.address = f"127.0.0.1:{runner.addresses[0][1]}"
            link.start()
            await eventually(lambda: link.state == "failed")
            refused = f"b speaks version 1 of the links' protocol, a {SPOKEN}"
            assert f"{refused}: upgrade the worker of b" in link.detail
            await link.stop()
            await runner.cleanup()

    asyncio.run(main())


@pytest.mark.parametrize("newer", ["source", "destination"])
def test_a_later_version_and_this_one_speak_what_both_know(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, newer: str
) -> None:
    """One end speaks version 4 to 5, as the next release will, and the other what this one does."""
    module = "replicator.links.transport" if newer == "source" else "replicator.api.data_plane"
    later = link_frame.PROTOCOL_VERSION + 1

    def of_later(theirs: int) -> int | None:
        version = min(theirs, later)
        return version if version >= link_frame.PROTOCOL_OLDEST else None

    monkeypatch.setattr(f"{module}.PROTOCOL_VERSION", later)
    monkeypatch.setattr(f"{module}.agreed_version", of_later)

    async def main() -> None:
        async with web(tmp_path, [LinkSpec("a", "b")]) as made:
            entries = await made.publish("a", 0, 20)
            await eventually(lambda: made.entries("b", "a") == entries)

    asyncio.run(main())


@pytest.mark.parametrize("older", ["source", "destination"])
def test_an_end_of_the_version_before_goes_on_with_its_frames_in_the_body_of_a_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, older: str
) -> None:
    """One end is of the version before, as while the workers are upgraded one by one, or taken back."""
    before = link_frame.UPGRADED_FROM - 1
    module = "replicator.links.transport" if older == "source" else "replicator.api.data_plane"
    monkeypatch.setattr(f"{module}.PROTOCOL_VERSION", before)
    monkeypatch.setattr(f"{module}.agreed_version", lambda theirs: min(theirs, before))

    def never(*arguments: object) -> None:
        raise AssertionError("the connection was upgraded")

    monkeypatch.setattr("replicator.links.transport.UpgradedStream", never)
    monkeypatch.setattr("replicator.api.link_streams.switch_protocols", never)

    async def main() -> None:
        async with web(tmp_path, [LinkSpec("a", "b")]) as made:
            entries = await made.publish("a", 0, 20)
            await eventually(lambda: made.entries("b", "a") == entries)
            large = await made.engines["a"].topic(TOPIC)
            blocks = [message(bytes([number]) * 300_000) for number in range(6)]
            await large.publish(blocks)
            await eventually(lambda: made.entries("b", "a") == entries + blocks)
            assert made.links["a>b"].figures.reconnects == 0

    asyncio.run(main())


def test_a_version_that_nobody_speaks_any_more_is_not_agreed_on() -> None:
    assert link_frame.agreed_version(link_frame.PROTOCOL_VERSION) == link_frame.PROTOCOL_VERSION
    assert link_frame.agreed_version(link_frame.PROTOCOL_VERSION + 3) == link_frame.PROTOCOL_VERSION
    assert link_frame.agreed_version(link_frame.PROTOCOL_OLDEST - 1) is None


def test_a_marker_of_a_later_version_waits_at_its_source(tmp_path: Path) -> None:
    async def main() -> None:
        async with web(tmp_path, [LinkSpec("a", "b")]) as made:
            entries = await made.publish("a", 0, 3)
            await eventually(lambda: made.entries("b", "a") == entries)
            topic = await made.engines["a"].topic(TOPIC)
            metadata = MessageMetadata(producer_name="w", sequence_id=1, publish_time=1, marker_type=13)
            metadata.marker_version = 2
            await topic.writing.marker(encode_entry(metadata, b""))
            link = made.links["a>b"]
            await eventually(lambda: any("version 2" in str(each) for each in link.status().values()))
            assert "upgrade the worker of b" in str(link.status())
            assert made.entries("b", "a") == entries

    asyncio.run(main())


async def paused_with_backlog(made: Any, entries: int) -> None:
    await made.links["a>b"].pause()
    for number in range(entries):
        await made.publish("a", number, 1)
    await made.engines["a"].maintenance.run_once()


def test_past_its_hold_a_link_goes_on_holding_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def main() -> None:
        async with web(tmp_path, [LinkSpec("a", "b", hold_bytes=500)], settings=NOTHING_KEPT) as made:
            await paused_with_backlog(made, 2)
            assert made.links["a>b"].status()["hold_exceeded"] == []
            await paused_with_backlog(made, 20)
            assert made.links["a>b"].status()["hold_exceeded"] == [TOPIC]
            assert len(made.entries("a", "a")) == 22
            await made.links["a>b"].resume()
            await eventually(lambda: len(made.entries("b", "a")) == 22)
            await eventually(lambda: made.links["a>b"].status()["hold_exceeded"] == [])

    asyncio.run(main())
    assert capsys.readouterr().out.count("a link holds back more than it may") == 1


def test_past_its_hold_a_log_is_released_and_the_link_finds_a_gap(tmp_path: Path) -> None:
    async def main() -> None:
        spec = LinkSpec("a", "b", hold_bytes=500, on_hold_exceeded="release")
        async with web(tmp_path, [spec], settings=NOTHING_KEPT) as made:
            copied = await made.publish("a", 0, 1)
            await eventually(lambda: made.entries("b", "a") == copied)
            await paused_with_backlog(made, 20)
            assert len(made.entries("a", "a")) < 20
            await made.links["a>b"].resume()
            await eventually(lambda: made.links["a>b"].status()["gap_count"] == 1)
            assert made.entries("b", "a") == copied

    asyncio.run(main())


def test_past_its_hold_publishes_are_refused_until_the_link_has_caught_up(tmp_path: Path) -> None:
    async def main() -> None:
        spec = LinkSpec("a", "b", hold_bytes=500, on_hold_exceeded="refuse-producers")
        async with web(tmp_path, [spec], settings=NOTHING_KEPT) as made:
            await paused_with_backlog(made, 20)
            with pytest.raises(BacklogQuotaExceeded, match="link to b"):
                await made.publish("a", 0, 1)
            assert len(made.entries("a", "a")) == 20
            other = await made.publish("a", 0, 1, "other")
            await made.links["a>b"].resume()
            await eventually(lambda: made.entries("b", "a", "other") == other)
            await eventually(lambda: not made.engines["a"].find(TOPIC).holds.exceeded)  # type: ignore[union-attr]
            await made.publish("a", 20, 1)

    asyncio.run(main())


def test_what_a_subscription_needs_too_does_not_count_against_a_hold(tmp_path: Path) -> None:
    async def main() -> None:
        async with web(tmp_path, [LinkSpec("a", "b", hold_bytes=500)], settings=NOTHING_KEPT) as made:
            topic = await made.engines["a"].topic(TOPIC)
            await topic.subscriptions.create("slow", BEFORE_ALL)
            await paused_with_backlog(made, 20)
            assert made.links["a>b"].status()["hold_exceeded"] == []

    asyncio.run(main())
