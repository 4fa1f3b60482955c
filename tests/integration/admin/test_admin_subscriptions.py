"""Subscriptions over the admin paths: made, put elsewhere, skipped, expired, looked into and deleted."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from admin_support import Admin, administered
from engine_support import PUBLISH_TIME_MS, batch, eventually, marker, subscribed

from replicator.api.admin.peeking import HEADER_CHARS_MAX
from replicator.engine.engine import EngineSettings
from replicator.engine.log.compression import compress
from replicator.engine.log.entry import encode_entry
from replicator.engine.types import Ack
from replicator.metadata.metadata_pb2 import ZLIB, EncryptionKeys, KeyValue, MessageMetadata
from snapshots.position import Position

EU = "persistent/acme/orders/eu"
FULL = "persistent://acme/orders/eu"
JOBS = f"{EU}/subscription/jobs"
EARLIEST = {"ledgerId": -1, "entryId": -1, "partitionIndex": -1}
LATEST = {"ledgerId": 2**63 - 1, "entryId": 2**63 - 1, "partitionIndex": -1}


def at(position: Position, **more: object) -> dict[str, object]:
    return {"ledgerId": position.ledger, "entryId": position.entry, **more}


class Clock:
    """A wall clock that is set by hand."""

    def __init__(self) -> None:
        self.now_ms = PUBLISH_TIME_MS

    def __call__(self) -> int:
        return self.now_ms


async def published(admin: Admin, messages: int, name: str = FULL, *, at_ms: int = PUBLISH_TIME_MS) -> list[Position]:
    topic = await admin.engine.topic(name)
    metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=at_ms)
    return await topic.publish([encode_entry(metadata, b"message %d" % number) for number in range(messages)])


async def backlog(admin: Admin, name: str = EU, subscription: str = "jobs") -> int:
    return int((await admin.get(f"{name}/stats"))["subscriptions"][subscription]["msgBacklog"])


def test_a_subscription_is_made_at_a_place_listed_and_deleted(tmp_path: Path) -> None:
    async def main() -> None:
        async with administered(tmp_path) as admin:
            positions = await published(admin, 10)
            await admin.done("PUT", f"{EU}/subscription/none")
            await admin.done("PUT", f"{EU}/subscription/latest", LATEST)
            await admin.done("PUT", f"{EU}/subscription/earliest", EARLIEST)
            await admin.done("PUT", f"{EU}/subscription/at", at(positions[4]))
            await admin.done("PUT", f"{EU}/subscription/after", at(positions[4], excluded=True))
            stats = (await admin.get(f"{EU}/stats"))["subscriptions"]
            assert {name: each["msgBacklog"] for name, each in stats.items()} == {
                "none": 0, "latest": 0, "earliest": 10, "at": 6, "after": 5,
            }  # fmt: skip
            assert "already" in await admin.refused(409, "PUT", f"{EU}/subscription/at", EARLIEST)
            for name in ("none", "latest", "at", "after"):
                await admin.done("DELETE", f"{EU}/subscription/{name}")
            assert await admin.get(f"{EU}/subscriptions") == ["earliest"]
            await admin.refused(404, "DELETE", f"{EU}/subscription/at")

    asyncio.run(main())


def test_a_subscription_keeps_its_properties_and_that_it_is_replicated(tmp_path: Path) -> None:
    async def main() -> None:
        async with administered(tmp_path) as admin:
            await published(admin, 1)
            await admin.done("PUT", JOBS, {**EARLIEST, "properties": {"team": "shop"}}, replicated=True)
            jobs = (await admin.get(f"{EU}/stats"))["subscriptions"]["jobs"]
            assert jobs["isReplicated"]
            assert jobs["subscriptionProperties"] == {"team": "shop"}

    asyncio.run(main())


def test_nothing_but_a_subscription_makes_a_topic_that_there_is_not(tmp_path: Path) -> None:
    async def main() -> None:
        async with administered(tmp_path) as admin:
            await admin.refused(404, "GET", f"{EU}/subscriptions")
            await admin.refused(404, "POST", f"{JOBS}/skip_all")
            assert await admin.get("tenants") == []
            await published(admin, 1)
            await admin.refused(404, "POST", f"{JOBS}/skip_all")
            assert await admin.get(f"{EU}/subscriptions") == []
            await admin.done("POST", "namespaces/acme/orders/autoTopicCreation", {"allowAutoTopicCreation": False})
            await admin.refused(404, "PUT", f"{EU}2/subscription/jobs")
            await admin.done("DELETE", "namespaces/acme/orders/autoTopicCreation")
            await admin.done("PUT", f"{EU}2/subscription/jobs")
            assert await admin.get(f"{EU}2/subscriptions") == ["jobs"]

    asyncio.run(main())


@pytest.mark.parametrize(
    ("body", "status", "named"),
    [
        ([], 400, "message id"),
        ({"ledgerId": 1}, 400, "entryId"),
        ({"ledgerId": "one", "entryId": 0}, 400, "ledgerId"),
        ({"ledgerId": 1, "entryId": -2}, 412, "entryId"),
        ({"ledgerId": 1, "entryId": 2**63}, 412, "entryId"),
        ({"ledgerId": 1, "entryId": 0, "partitionIndex": "x"}, 400, "partitionIndex"),
        ({"ledgerId": 1, "entryId": 0, "excluded": 1}, 400, "excluded"),
        ({"ledgerId": 1, "entryId": 0, "batchIndex": 2}, 400, "batchIndex"),
    ],
)
def test_a_message_id_that_is_none_is_refused_and_named(tmp_path: Path, body: object, status: int, named: str) -> None:
    async def main() -> None:
        async with administered(tmp_path) as admin:
            await published(admin, 3)
            assert named in await admin.refused(status, "PUT", JOBS, body)
            assert await admin.get(f"{EU}/subscriptions") == []
            await admin.done("PUT", JOBS, EARLIEST)
            assert named in await admin.refused(status, "POST", f"{JOBS}/resetcursor", body)
            assert await backlog(admin) == 3

    asyncio.run(main())


def test_a_subscription_is_put_at_a_message_and_consumers_get_it_again(tmp_path: Path) -> None:
    async def main() -> None:
        async with administered(tmp_path) as admin:
            positions = await published(admin, 10)
            topic = await admin.engine.topic(FULL)
            consumer, inbox = await subscribed(topic, "jobs")
            await inbox.holds(10)
            await consumer.acknowledge([Ack(position) for position in positions])
            await admin.done("POST", f"{JOBS}/resetcursor", at(positions[7]))
            await inbox.holds(13)
            assert inbox.positions[10:] == positions[7:]
            await admin.done("POST", f"{JOBS}/resetcursor", at(positions[8], excluded=True))
            assert await backlog(admin) == 1
            await admin.done("POST", f"{JOBS}/resetcursor", EARLIEST)
            assert await backlog(admin) == 10
            await admin.done("POST", f"{JOBS}/resetcursor", LATEST)
            assert await backlog(admin) == 0
            beyond = Position(positions[-1].ledger, 1000)
            assert "ends at" in await admin.refused(412, "POST", f"{JOBS}/resetcursor", at(beyond))
            assert await backlog(admin) == 0

    asyncio.run(main())


def test_a_subscription_is_put_at_a_time(tmp_path: Path) -> None:
    async def main() -> None:
        clock = Clock()
        async with administered(tmp_path, EngineSettings(wall_clock_ms=clock)) as admin:
            await published(admin, 2, at_ms=clock.now_ms)
            clock.now_ms += 1000
            await published(admin, 3, at_ms=clock.now_ms)
            await admin.done("PUT", JOBS)
            await admin.done("POST", f"{JOBS}/resetcursor/{clock.now_ms}")
            assert await backlog(admin) == 3
            await admin.done("POST", f"{JOBS}/resetcursor/0")
            assert await backlog(admin) == 5
            assert "timestamp" in await admin.refused(400, "POST", f"{JOBS}/resetcursor/yesterday")
            assert "timestamp" in await admin.refused(400, "POST", f"{JOBS}/resetcursor/-5")

    asyncio.run(main())


def test_messages_are_skipped_and_cleared(tmp_path: Path) -> None:
    async def main() -> None:
        async with administered(tmp_path) as admin:
            await published(admin, 10)
            await admin.done("PUT", JOBS, EARLIEST)
            await admin.done("PUT", f"{EU}/subscription/others", EARLIEST)
            await admin.done("POST", f"{JOBS}/skip/4")
            assert await backlog(admin) == 6
            for wrong in ("x", "-1", "1.5", "99999999999"):
                assert "messages" in await admin.refused(400, "POST", f"{JOBS}/skip/{wrong}")
            assert await backlog(admin) == 6
            await admin.done("POST", f"{JOBS}/skip_all")
            assert await backlog(admin) == 0
            assert await backlog(admin, subscription="others") == 10

    asyncio.run(main())


def test_old_messages_expire_of_one_subscription_or_of_all(tmp_path: Path) -> None:
    async def main() -> None:
        clock = Clock()
        async with administered(tmp_path, EngineSettings(wall_clock_ms=clock)) as admin:
            for name in ("jobs", "others"):
                await admin.engine.topic(FULL)
                await admin.done("PUT", f"{EU}/subscription/{name}")
            await published(admin, 4, at_ms=clock.now_ms)
            clock.now_ms += 60_000
            await published(admin, 2, at_ms=clock.now_ms)
            await admin.done("POST", f"{JOBS}/expireMessages/60")
            assert await backlog(admin) == 6
            await admin.done("POST", f"{JOBS}/expireMessages/59")
            assert await backlog(admin) == 2
            assert await backlog(admin, subscription="others") == 6
            await admin.done("POST", f"{EU}/all_subscription/expireMessages/59")
            assert await backlog(admin, subscription="others") == 2
            assert "seconds" in await admin.refused(400, "POST", f"{JOBS}/expireMessages/1h")
            await admin.done("POST", f"{JOBS}/expireMessages/9999999999999999")
            assert await backlog(admin) == 2

    asyncio.run(main())


def test_a_subscription_with_consumers_is_deleted_only_with_force(tmp_path: Path) -> None:
    async def main() -> None:
        async with administered(tmp_path) as admin:
            await published(admin, 1)
            consumer, _ = await subscribed(await admin.engine.topic(FULL), "jobs")
            closed: list[object] = []
            consumer.on_closed = lambda *reason: closed.append(reason)
            assert "force" in await admin.refused(412, "DELETE", JOBS)
            assert await admin.get(f"{EU}/subscriptions") == ["jobs"]
            await admin.done("DELETE", JOBS, force=True)
            assert await admin.get(f"{EU}/subscriptions") == []
            await eventually(lambda: closed, "the news")

    asyncio.run(main())


def test_on_a_partitioned_topic_a_request_is_for_every_partition(tmp_path: Path) -> None:
    async def main() -> None:
        async with administered(tmp_path) as admin:
            await admin.done("PUT", f"{EU}/partitions", 3)
            positions = [await published(admin, 2, f"{FULL}-partition-{index}") for index in range(3)]

            async def backlogs() -> list[int]:
                return [await backlog(admin, f"{EU}-partition-{index}") for index in range(3)]

            await admin.done("PUT", JOBS, EARLIEST)
            assert await backlogs() == [2, 2, 2]
            assert await admin.get(f"{EU}/subscriptions") == ["jobs"]
            await admin.done("POST", f"{JOBS}/skip_all")
            assert await backlogs() == [0, 0, 0]
            await admin.done("POST", f"{JOBS}/resetcursor", at(positions[1][1], partitionIndex=1))
            assert await backlogs() == [0, 1, 0]
            assert "partitionIndex" in await admin.refused(405, "POST", f"{JOBS}/resetcursor", at(positions[1][0]))
            await admin.refused(404, "POST", f"{JOBS}/resetcursor", at(positions[1][0], partitionIndex=7))
            await admin.refused(405, "POST", f"{JOBS}/skip/1")
            await admin.refused(405, "GET", f"{JOBS}/position/1")
            await admin.done("POST", f"{JOBS}/resetcursor/0")
            assert await backlogs() == [2, 2, 2]
            await subscribed(await admin.engine.topic(f"{FULL}-partition-2"), "jobs")
            await admin.refused(412, "DELETE", JOBS)
            assert await admin.get(f"{EU}-partition-0/subscriptions") == ["jobs"], "half deleted"
            await admin.done("DELETE", JOBS, force=True)
            assert await admin.get(f"{EU}/subscriptions") == []

    asyncio.run(main())


def test_a_subscription_that_one_partition_has_already_is_made_on_none(tmp_path: Path) -> None:
    async def main() -> None:
        async with administered(tmp_path) as admin:
            await admin.done("PUT", f"{EU}/partitions", 2)
            await admin.done("PUT", f"{EU}-partition-1/subscription/jobs")
            await admin.refused(409, "PUT", JOBS)
            assert await admin.get(f"{EU}-partition-0/subscriptions") == []

    asyncio.run(main())


async def peeked(admin: Admin, number: int = 1, path: str = JOBS) -> tuple[dict[str, str], bytes]:
    async with admin.session.get(f"{admin.url}/admin/v2/{path}/position/{number}") as response:
        assert response.status == 200, await response.text()
        return dict(response.headers), await response.read()


def test_peeking_shows_the_nth_message_of_the_backlog_and_consumes_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with administered(tmp_path) as admin:
            topic = await admin.engine.topic(FULL)
            positions = await published(admin, 3)
            await topic.writing.marker(marker())
            positions += await published(admin, 1)
            consumer, inbox = await subscribed(topic, "jobs")
            await inbox.holds(4)
            await consumer.acknowledge([Ack(positions[0]), Ack(positions[2])])
            headers, payload = await peeked(admin)
            assert payload == b"message 1"
            assert headers["X-Pulsar-Message-ID"] == str(positions[1])
            assert headers["X-Pulsar-publish-time"] == "2023-11-14T22:13:20.000Z"
            assert headers["X-Replicator-Origin"] == f"us-east {positions[1]}"
            assert (await peeked(admin, 2))[0]["X-Pulsar-Message-ID"] == str(positions[3])
            assert "fewer than 3" in await admin.refused(404, "GET", f"{JOBS}/position/3")
            assert await backlog(admin) == 2
            for wrong in ("0", "x", "100001"):
                await admin.refused(400, "GET", f"{JOBS}/position/{wrong}")

    asyncio.run(main())


def test_peeking_shows_metadata_uncompressed_and_whole_batches(tmp_path: Path) -> None:
    async def main() -> None:
        async with administered(tmp_path) as admin:
            topic = await admin.engine.topic(FULL)
            metadata = MessageMetadata(
                producer_name="shöp\r\nX: y",
                sequence_id=7,
                publish_time=2**63,
                event_time=1_700_000_000_500,
                partition_key="de",
                compression=ZLIB,
                uncompressed_size=500,
                properties=[KeyValue(key="a\r\nb", value="ü")],
            )
            secret = MessageMetadata(
                producer_name="p", sequence_id=0, publish_time=1, encryption_keys=[EncryptionKeys(key="k", value=b"v")]
            )
            large = MessageMetadata(
                producer_name="p",
                sequence_id=0,
                publish_time=1,
                properties=[KeyValue(key="a", value="x" * HEADER_CHARS_MAX)],
            )
            await admin.done("PUT", JOBS)
            await topic.publish(
                [
                    encode_entry(metadata, compress(b"x" * 500, ZLIB)),
                    batch([b"one", b"two"]),
                    encode_entry(secret, b"\x01\x02"),
                    encode_entry(large, b"large"),
                ]
            )
            headers, payload = await peeked(admin, 1)
            assert payload == b"x" * 500
            assert headers["X-Pulsar-producer-name"] == "sh%C3%B6p%0D%0AX%3A%20y"
            assert headers["X-Pulsar-publish-time"] == str(2**63)
            assert headers["X-Pulsar-event-time"] == "2023-11-14T22:13:20.500Z"
            assert headers["X-Pulsar-partition-key"] == "de"
            assert json.loads(headers["X-Pulsar-PROPERTY"]) == {"a\r\nb": "ü"}
            assert "X" not in headers
            headers, payload = await peeked(admin, 2)
            assert headers["X-Pulsar-num-batch-message"] == "2"
            assert b"one" in payload
            headers, payload = await peeked(admin, 3)
            assert headers["X-Pulsar-Is-Encrypted"] == "true"
            assert payload == b"\x01\x02"
            headers, payload = await peeked(admin, 4)
            assert payload == b"large"
            assert "X-Pulsar-PROPERTY" not in headers

    asyncio.run(main())


def test_a_subscription_is_replicated_by_request_by_policy_and_switched_at_run_time(tmp_path: Path) -> None:
    async def main() -> None:
        async with administered(tmp_path) as admin:
            topic = await admin.engine.topic(FULL)
            await admin.done("POST", "namespaces/acme/orders/replicateSubscriptionState", True)
            await admin.done("PUT", JOBS)
            await admin.done("PUT", f"{EU}/subscription/here", replicated=False)
            assert (topic.subscriptions["jobs"].replicated, topic.subscriptions["here"].replicated) == (True, False)
            status = f"{JOBS}/replicatedSubscriptionStatus"
            assert await admin.get(status) == {FULL: True}
            await admin.done("POST", status, False)
            assert await admin.get(status) == {FULL: False}
            assert not topic.subscriptions["jobs"].replicated
            await admin.done("POST", status, True)
            assert (await admin.get(f"{EU}/stats"))["subscriptions"]["jobs"]["isReplicated"]
            assert "true or false" in await admin.refused(400, "POST", status, "yes")
            await admin.refused(404, "GET", f"{EU}/subscription/none/replicatedSubscriptionStatus")

    asyncio.run(main())


def test_every_partition_is_switched_and_shown(tmp_path: Path) -> None:
    async def main() -> None:
        async with administered(tmp_path) as admin:
            await admin.done("PUT", "persistent/acme/orders/us/partitions", 2)
            jobs = "persistent/acme/orders/us/subscription/jobs"
            await admin.done("PUT", jobs)
            await admin.done("POST", f"{jobs}/replicatedSubscriptionStatus", True)
            assert await admin.get(f"{jobs}/replicatedSubscriptionStatus") == {
                f"persistent://acme/orders/us-partition-{number}": True for number in range(2)
            }

    asyncio.run(main())


def test_a_message_is_shown_by_its_id(tmp_path: Path) -> None:
    async def main() -> None:
        async with administered(tmp_path) as admin:
            topic = await admin.engine.topic(FULL)
            (position, *_) = await published(admin, 2)
            at_marker = await topic.writing.marker(marker())
            path = f"{admin.url}/admin/v2/{EU}/ledger/{position.ledger}/entry"
            async with admin.session.get(f"{path}/1") as response:
                assert await response.read() == b"message 1"
            for entry in (at_marker.entry, 3):
                async with admin.session.get(f"{path}/{entry}") as response:
                    assert response.status == 404
            await admin.refused(400, "GET", f"{EU}/ledger/x/entry/0")

    asyncio.run(main())


@pytest.mark.parametrize("name", ["%20", "a%01b", "..", "x" * 401])
def test_a_subscription_name_that_cannot_be_is_412(tmp_path: Path, name: str) -> None:
    async def main() -> None:
        async with administered(tmp_path) as admin:
            await published(admin, 1)
            status, _ = await admin.call("PUT", f"{EU}/subscription/{name}")
            assert status in (404, 412)
            assert await admin.get(f"{EU}/subscriptions") == []

    asyncio.run(main())
