"""Topics over the admin paths: made, grown, listed, measured, compacted and deleted, as Pulsar's tools ask for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest
from admin_support import Admin, administered
from engine_support import PUBLISH_TIME_MS, eventually, marker, message, subscribed
from yarl import URL

from replicator.api.admin.requests import BODY_BYTES_MAX
from replicator.engine.compaction import compaction
from replicator.engine.compaction.compactor import Compactor
from replicator.engine.log.entry import encode_entry
from replicator.engine.types import AccessMode, Ack, ProducerOptions, SubscriptionType
from replicator.metadata.metadata_pb2 import MessageMetadata

NS = "persistent/acme/orders"
FULL = "persistent://acme/orders"


def test_a_topic_is_made_listed_and_deleted(tmp_path: Path) -> None:
    async def main() -> None:
        async with administered(tmp_path) as admin:
            await admin.done("PUT", f"{NS}/eu")
            assert await admin.get(NS) == [f"{FULL}/eu"]
            assert await admin.get("namespaces/acme") == ["acme/orders"]
            assert "exists" in await admin.refused(409, "PUT", f"{NS}/eu")
            await admin.done("DELETE", f"{NS}/eu")
            assert await admin.get(NS) == []
            assert "no topic" in await admin.refused(404, "DELETE", f"{NS}/eu")

    asyncio.run(main())


def test_a_partitioned_topic_is_made_grown_and_deleted_with_its_partitions(tmp_path: Path) -> None:
    async def main() -> None:
        async with administered(tmp_path) as admin:
            await admin.done("PUT", f"{NS}/eu/partitions", 2)
            assert await admin.get(f"{NS}/partitioned") == [f"{FULL}/eu"]
            assert await admin.get(NS) == [f"{FULL}/eu-partition-0", f"{FULL}/eu-partition-1"]
            await admin.refused(409, "PUT", f"{NS}/eu/partitions", 2)
            await admin.done("POST", f"{NS}/eu/partitions", 4)
            assert await admin.get(f"{NS}/eu/partitions") == {"partitions": 4, "deleted": False}
            assert "fewer" in await admin.refused(422, "POST", f"{NS}/eu/partitions", 3)
            assert "/partitions" in await admin.refused(409, "DELETE", f"{NS}/eu")
            await admin.done("DELETE", f"{NS}/eu/partitions")
            assert await admin.get(NS) == []
            assert await admin.get(f"{NS}/partitioned") == []
            await admin.refused(404, "DELETE", f"{NS}/eu/partitions")
            await admin.refused(409, "POST", f"{NS}/eu/partitions", 5)

    asyncio.run(main())


def test_topics_whose_names_begin_like_those_of_partitions_outlive_a_partitioned_topic(tmp_path: Path) -> None:
    async def main() -> None:
        async with administered(tmp_path) as admin:
            await admin.done("PUT", f"{NS}/eu/partitions", 2)
            await admin.done("PUT", f"{NS}/eu-partition-archive")
            await admin.done("PUT", f"{NS}/eu-partition-old/partitions", 1)
            await admin.done("DELETE", f"{NS}/eu/partitions")
            assert await admin.get(NS) == [f"{FULL}/eu-partition-archive", f"{FULL}/eu-partition-old-partition-0"]

    asyncio.run(main())


def test_partitions_that_are_added_have_the_subscriptions_and_policies_of_the_first(tmp_path: Path) -> None:
    async def main() -> None:
        async with administered(tmp_path) as admin:
            await admin.done("PUT", f"{NS}/eu/partitions", 2)
            await admin.done("PUT", f"{NS}/eu/subscription/jobs", {"ledgerId": -1, "entryId": -1}, replicated=True)
            await admin.done("POST", f"{NS}/eu/maxConsumers", 5)
            await admin.done("DELETE", f"{NS}/eu-partition-1/subscription/jobs")
            passing, _ = await subscribed(await admin.engine.topic(f"{FULL}/eu-partition-0"), "reader", durable=False)
            await admin.done("POST", f"{NS}/eu/partitions", 3)
            new = await admin.engine.topic(f"{FULL}/eu-partition-2")
            await new.publish([message()] * 3)
            stats = await admin.get(f"{NS}/eu-partition-2/stats")
            assert list(stats["subscriptions"]) == ["jobs"]
            assert stats["subscriptions"]["jobs"]["msgBacklog"] == 3
            assert stats["subscriptions"]["jobs"]["isReplicated"]
            assert new.policies.effective.max_consumers == 5
            assert await admin.get(f"{NS}/eu-partition-1/subscriptions") == [], "what was deleted came back"
            passing.close()

    asyncio.run(main())


def test_newer_tools_send_the_number_of_partitions_in_an_object(tmp_path: Path) -> None:
    async def main() -> None:
        async with administered(tmp_path) as admin:
            await admin.done("PUT", f"{NS}/eu/partitions", {"partitions": 3, "properties": {}})
            assert await admin.get(f"{NS}/eu/partitions") == {"partitions": 3, "deleted": False}

    asyncio.run(main())


def test_a_topic_without_partitions_has_0_of_them_and_one_that_is_not_there_is_404(tmp_path: Path) -> None:
    async def main() -> None:
        async with administered(tmp_path) as admin:
            await admin.done("PUT", f"{NS}/eu")
            assert await admin.get(f"{NS}/eu/partitions") == {"partitions": 0, "deleted": False}
            await admin.refused(404, "GET", f"{NS}/none/partitions")

    asyncio.run(main())


@pytest.mark.parametrize("what", ["consumer", "producer"])
def test_a_topic_that_somebody_is_connected_to_is_deleted_only_with_force(tmp_path: Path, what: str) -> None:
    async def main() -> None:
        async with administered(tmp_path) as admin:
            topic = await admin.engine.topic(f"{FULL}/eu")
            closed: list[str] = []
            if what == "consumer":
                consumer, _ = await subscribed(topic)
                consumer.on_closed = lambda *reason: closed.append(str(reason))
            else:
                producer = await topic.producers.create(ProducerOptions(name="p"))
                producer.on_closed = lambda code, reason: closed.append(reason)
            await admin.refused(412, "DELETE", f"{NS}/eu")
            assert await admin.get(NS) == [f"{FULL}/eu"]
            await admin.done("DELETE", f"{NS}/eu", force=True)
            assert await admin.get(NS) == []
            await eventually(lambda: closed, "the news that the topic was deleted")

    asyncio.run(main())


@pytest.mark.parametrize(
    ("body", "status", "named"),
    [
        (0, 406, "partitions"),
        (-1, 406, "partitions"),
        (10_001, 406, "10000"),
        ("three", 400, "partitions"),
        (True, 400, "partitions"),
        (2.5, 400, "partitions"),
        ({"shards": 1}, 400, "partitions"),
        ({"partitions": 2, "properties": {"a": "b"}}, 501, "properties"),
        (None, 400, "partitions"),
    ],
)
def test_a_number_of_partitions_that_makes_no_sense_is_refused_and_nothing_is_made(
    tmp_path: Path, body: object, status: int, named: str
) -> None:
    async def main() -> None:
        async with administered(tmp_path) as admin:
            assert named in await admin.refused(status, "PUT", f"{NS}/eu/partitions", body)
            assert await admin.get("tenants") == []

    asyncio.run(main())


@pytest.mark.parametrize("path", ["persistent/acme/or~ders/eu", "persistent/acme/orders/a%20b", "persistent/../x/y"])
def test_a_name_that_cannot_be_is_412(tmp_path: Path, path: str) -> None:
    async def main() -> None:
        async with administered(tmp_path) as admin:
            url = f"{admin.url}/admin/v2/{path}"
            async with admin.session.put(URL(url, encoded=True)) as response:
                assert response.status in (404, 412)
                answer = await response.json()
            assert answer["reason"] == answer["message"]
            assert admin.engine.topics() == []

    asyncio.run(main())


def test_what_is_no_json_is_400_and_a_huge_body_413(tmp_path: Path) -> None:
    async def main() -> None:
        async with administered(tmp_path) as admin:
            for raw in (b"{", b"\xff\xfe", b"[" * 50_000, b"1" * 5_000):
                status, answer = await admin.call("PUT", f"{NS}/eu/partitions", raw=raw)
                assert status == 400, raw[:10]
                assert "not JSON" in answer["reason"]
            status, answer = await admin.call("PUT", f"{NS}/eu/partitions", raw=b" " * (BODY_BYTES_MAX + 1))
            assert status == 413

            async def endless() -> AsyncIterator[bytes]:
                for _ in range(1000):
                    yield b" " * 1000

            async with admin.session.put(f"{admin.url}/admin/v2/{NS}/eu/partitions", data=endless()) as response:
                assert response.status == 413
            assert await admin.get("tenants") == []

    asyncio.run(main())


def test_a_path_that_is_not_there_has_a_reason_too(tmp_path: Path) -> None:
    async def main() -> None:
        async with administered(tmp_path) as admin:
            await admin.refused(404, "GET", "brokers/us-east/health")
            await admin.refused(405, "PATCH", "tenants/acme")
            await admin.done("PUT", f"{NS}/eu")

    asyncio.run(main())


def test_a_terminated_topic_answers_its_last_message_and_refuses_more(tmp_path: Path) -> None:
    async def main() -> None:
        async with administered(tmp_path) as admin:
            await admin.done("PUT", f"{NS}/eu")
            topic = await admin.engine.topic(f"{FULL}/eu")
            (last,) = await topic.publish([message(b"1")])
            answered = await admin.get(f"{NS}/eu/lastMessageId")
            assert (answered["ledgerId"], answered["entryId"], answered["partitionIndex"]) == (*last, -1)
            assert await admin.call("POST", f"{NS}/eu/terminate") == (200, answered)
            assert await admin.call("POST", f"{NS}/eu/terminate") == (200, answered)  # as often as one likes
            assert (await admin.get(f"{NS}/eu/internalStats"))["state"] == "Terminated"
            await admin.refused(405, "POST", f"{NS}/eu/terminate/partitions")
            await admin.done("PUT", f"{NS}/us/partitions", 2)
            await admin.refused(405, "POST", f"{NS}/us/terminate")
            _, ends = await admin.call("POST", f"{NS}/us/terminate/partitions")
            assert {number: end["partitionIndex"] for number, end in ends.items()} == {"0": 0, "1": 1}
            await admin.refused(404, "POST", f"{NS}/none/terminate")

    asyncio.run(main())


async def publish(admin: Admin, name: str, messages: int) -> None:
    topic = await admin.engine.topic(name)
    await topic.publish([message(b"x" * 100) for _ in range(messages)])


def test_stats_say_who_is_connected_and_what_is_unconsumed(tmp_path: Path) -> None:
    async def main() -> None:
        async with administered(tmp_path) as admin:
            topic = await admin.engine.topic(f"{FULL}/eu")
            consumer, inbox = await subscribed(topic, "jobs", permits=4, consumer_name="worker-1")
            await topic.producers.create(ProducerOptions(name="shop"))
            await publish(admin, f"{FULL}/eu", 10)
            await inbox.holds(4)
            stats = await admin.get(f"{NS}/eu/stats")
            assert stats["msgInCounter"] == 10
            assert stats["storageSize"] > 1000
            assert [(each["producerName"], each["accessMode"]) for each in stats["publishers"]] == [("shop", "Shared")]
            jobs = stats["subscriptions"]["jobs"]
            assert (jobs["type"], jobs["msgBacklog"], jobs["unackedMessages"]) == ("Shared", 10, 4)
            assert jobs["backlogSize"] == stats["backlogSize"] == stats["storageSize"]
            assert not jobs["isReplicated"]
            assert [
                (each["consumerName"], each["availablePermits"], each["unackedMessages"]) for each in jobs["consumers"]
            ] == [("worker-1", 0, 4)]
            brief = await admin.get(f"{NS}/eu/stats", excludePublishers=True, excludeConsumers=True)
            assert (brief["publishers"], brief["subscriptions"]["jobs"]["consumers"]) == ([], [])
            assert brief["subscriptions"]["jobs"]["unackedMessages"] == 4, "the figures are those of all"
            assert (await admin.get(f"{NS}/eu/stats", excludeConsumers=True))["publishers"] == stats["publishers"]
            for text in ("", "1"):
                shown = await admin.get(f"{NS}/eu/stats", excludePublishers=text, excludeConsumers=text)
                assert shown["publishers"] == stats["publishers"]
                assert shown["subscriptions"]["jobs"]["consumers"]
            consumer.close()
            await topic.subscriptions["jobs"].moves.clear_backlog()
            stats = await admin.get(f"{NS}/eu/stats")
            jobs = stats["subscriptions"]["jobs"]
            assert (jobs["type"], jobs["msgBacklog"], jobs["backlogSize"], jobs["consumers"]) == ("None", 0, 0, [])

    asyncio.run(main())


def test_sizes_of_a_backlog_are_those_of_the_blocks_that_are_not_wholly_consumed(tmp_path: Path) -> None:
    async def main() -> None:
        async with administered(tmp_path) as admin:
            topic = await admin.engine.topic(f"{FULL}/eu")
            await admin.done("PUT", f"{NS}/eu/subscription/jobs", {"ledgerId": -1, "entryId": -1})
            for _ in range(200):
                await publish(admin, f"{FULL}/eu", 2)
            whole = (await admin.get(f"{NS}/eu/stats"))["storageSize"]
            assert whole == sum(
                each.size_bytes
                for each in admin.engine.store.block_spans(topic.topic_id, topic.log.trimmed, blocks_max=1000)
            )
            await admin.done("POST", f"{NS}/eu/subscription/jobs/skip/300")
            stats = await admin.get(f"{NS}/eu/stats")
            assert stats["subscriptions"]["jobs"]["msgBacklog"] == 100
            assert stats["backlogSize"] == whole // 4
            assert stats["storageSize"] == whole

    asyncio.run(main())


def test_partitioned_stats_are_the_sums_and_those_of_each_partition(tmp_path: Path) -> None:
    async def main() -> None:
        async with administered(tmp_path) as admin:
            await admin.done("PUT", f"{NS}/eu/partitions", 2)
            await admin.done("PUT", f"{NS}/eu/subscription/jobs", {"ledgerId": -1, "entryId": -1})
            await publish(admin, f"{FULL}/eu-partition-0", 3)
            await publish(admin, f"{FULL}/eu-partition-1", 4)
            topic = await admin.engine.topic(f"{FULL}/eu-partition-1")
            await subscribed(topic, "jobs", SubscriptionType.FAILOVER, permits=1, consumer_name="c1")
            stats = await admin.get(f"{NS}/eu/partitioned-stats")
            assert stats["metadata"]["partitions"] == 2
            assert (stats["msgInCounter"], stats["subscriptions"]["jobs"]["msgBacklog"]) == (7, 7)
            assert stats["subscriptions"]["jobs"]["type"] == "Failover"
            assert [each["consumerName"] for each in stats["subscriptions"]["jobs"]["consumers"]] == ["c1"]
            each = stats["partitions"]
            assert [each[name]["msgInCounter"] for name in sorted(each)] == [3, 4]
            assert (await admin.get(f"{NS}/eu/partitioned-stats", perPartition=False))["partitions"] == {}
            assert "partition-0" in await admin.refused(404, "GET", f"{NS}/eu/stats")
            await admin.refused(404, "GET", f"{NS}/eu-partition-0/partitioned-stats")
            assert "perPartition" in await admin.refused(400, "GET", f"{NS}/eu/partitioned-stats", perPartition="maybe")

    asyncio.run(main())


def test_internal_stats_show_ledgers_and_cursors(tmp_path: Path) -> None:
    async def main() -> None:
        async with administered(tmp_path) as admin:
            topic = await admin.engine.topic(f"{FULL}/eu")
            consumer, inbox = await subscribed(topic, "jobs")
            await publish(admin, f"{FULL}/eu", 5)
            await inbox.holds(5)
            first = inbox.positions[0]
            await consumer.acknowledge([Ack(inbox.positions[0]), Ack(inbox.positions[2]), Ack(inbox.positions[3])])
            stats = await admin.get(f"{NS}/eu/internalStats")
            assert stats["numberOfEntries"] == 5
            assert stats["lastConfirmedEntry"] == str(topic.log.last)
            (ledger,) = stats["ledgers"]
            assert (ledger["ledgerId"], ledger["entries"]) == (first.ledger, 5)
            assert ledger["size"] == stats["totalSize"] > 500
            jobs = stats["cursors"]["jobs"]
            assert jobs["markDeletePosition"] == str(first)
            assert jobs["individuallyDeletedMessages"] == f"[({first.ledger}:1..{first.ledger}:3]]"

    asyncio.run(main())


def test_internal_stats_show_all_ranges_of_a_cursor(tmp_path: Path) -> None:
    """A bridge that reads them would take what a list lacks for put back."""

    async def main() -> None:
        async with administered(tmp_path) as admin:
            topic = await admin.engine.topic(f"{FULL}/eu")
            consumer, inbox = await subscribed(topic, "jobs", permits=2_500)
            await publish(admin, f"{FULL}/eu", 2_500)
            await inbox.holds(2_500)
            await consumer.acknowledge([Ack(each) for each in inbox.positions[1::2]])
            stats = await admin.get(f"{NS}/eu/internalStats")
            assert stats["cursors"]["jobs"]["individuallyDeletedMessages"].count("..") == 1_250

    asyncio.run(main())


def test_an_exclusive_producer_is_shown_as_one(tmp_path: Path) -> None:
    async def main() -> None:
        async with administered(tmp_path) as admin:
            topic = await admin.engine.topic(f"{FULL}/eu")
            await topic.producers.create(ProducerOptions(name="only", access_mode=AccessMode.EXCLUSIVE))
            waiting = asyncio.create_task(
                topic.producers.create(ProducerOptions(name="next", access_mode=AccessMode.WAIT_FOR_EXCLUSIVE))
            )
            await eventually(lambda: topic.producers.registry.waiting, "a waiting producer")
            stats = await admin.get(f"{NS}/eu/stats")
            assert [(each["producerName"], each["accessMode"]) for each in stats["publishers"]] == [
                ("only", "Exclusive")
            ]
            assert stats["topicEpoch"] == 0
            waiting.cancel()

    asyncio.run(main())


def test_the_last_message_id_is_that_of_the_last_message_not_of_a_marker(tmp_path: Path) -> None:
    async def main() -> None:
        async with administered(tmp_path) as admin:
            topic = await admin.engine.topic(f"{FULL}/eu-partition-3")
            assert (await admin.get(f"{NS}/eu-partition-3/lastMessageId"))["ledgerId"] == -1
            (position,) = await topic.publish([message()])
            await topic.writing.marker(marker())
            assert await admin.get(f"{NS}/eu-partition-3/lastMessageId") == {
                "ledgerId": position.ledger,
                "entryId": position.entry,
                "partitionIndex": 3,
                "batchIndex": -1,
                "batchSize": 0,
            }

    asyncio.run(main())


def test_compaction_is_started_and_watched(tmp_path: Path) -> None:
    async def main() -> None:
        async with administered(tmp_path) as admin:
            await publish(admin, f"{FULL}/eu", 3)
            assert await admin.get(f"{NS}/eu/compaction") == {"status": "NOT_RUN", "lastError": ""}
            await admin.done("PUT", f"{NS}/eu/compaction")
            topic = await admin.engine.topic(f"{FULL}/eu")
            await eventually(lambda: not topic.compaction.running, "the end of compaction")
            assert await admin.get(f"{NS}/eu/compaction") == {"status": "SUCCESS", "lastError": ""}
            running = topic.compaction.start()
            await admin.refused(409, "PUT", f"{NS}/eu/compaction")
            assert (await admin.get(f"{NS}/eu/compaction"))["status"] in ("RUNNING", "SUCCESS")
            await running

    asyncio.run(main())


def test_a_pass_of_compaction_that_fails_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with administered(tmp_path) as admin:
            topic = await admin.engine.topic(f"{FULL}/eu")
            await topic.publish([keyed("a"), keyed("b")])
            monkeypatch.setattr(compaction, "Compactor", partial(Compactor, keys_max=1))
            await admin.done("PUT", f"{NS}/eu/compaction")
            await eventually(lambda: not topic.compaction.running, "the end of compaction")
            answer = await admin.get(f"{NS}/eu/compaction")
            assert answer["status"] == "ERROR"
            assert "more than 1 different keys" in answer["lastError"]
            monkeypatch.undo()
            await topic.compaction.run()
            assert await admin.get(f"{NS}/eu/compaction") == {"status": "SUCCESS", "lastError": ""}

    asyncio.run(main())


def keyed(key: str) -> bytes:
    metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=PUBLISH_TIME_MS, partition_key=key)
    return encode_entry(metadata, b"x")
