"""Places of messages and size of the backlog: by time, by number from either end, in bytes, and emptying a topic."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from admin_support import Admin, administered
from engine_support import PUBLISH_TIME_MS, marker, message

from snapshots.position import Position

EU = "persistent/acme/orders/eu"
FULL = "persistent://acme/orders/eu"
JOBS = f"{EU}/subscription/jobs"
EARLIEST = {"ledgerId": -1, "entryId": -1}


async def published(admin: Admin, texts: list[str]) -> list[Position]:
    topic = await admin.engine.topic(FULL)
    return await topic.publish([message(text.encode()) for text in texts])


def as_id(position: Position) -> dict[str, Any]:
    return {"ledgerId": position.ledger, "entryId": position.entry}


async def payload(admin: Admin, path: str) -> bytes:
    async with admin.session.get(f"{admin.url}/admin/v2/{path}") as response:
        assert response.status == 200, await response.text()
        return await response.read()


def test_messages_are_examined_from_either_end_without_markers(tmp_path: Path) -> None:
    async def main() -> None:
        async with administered(tmp_path) as admin:
            await admin.done("PUT", EU)
            await admin.refused(412, "GET", f"{EU}/examinemessage", messagePosition=1)
            await published(admin, ["a", "b"])
            topic = await admin.engine.topic(FULL)
            await topic.writing.marker(marker())
            await published(admin, ["c"])
            at = f"{EU}/examinemessage?initialPosition="
            assert await payload(admin, f"{at}earliest&messagePosition=1") == b"a"
            assert await payload(admin, f"{at}earliest&messagePosition=3") == b"c"
            assert await payload(admin, f"{at}earliest&messagePosition=9") == b"c"
            assert await payload(admin, f"{at}latest&messagePosition=2") == b"b"
            assert await payload(admin, f"{EU}/examinemessage") == b"c"
            await admin.refused(412, "GET", f"{EU}/examinemessage", initialPosition="latest", messagePosition=9)

    asyncio.run(main())


def test_a_message_id_is_found_by_time(tmp_path: Path) -> None:
    async def main() -> None:
        async with administered(tmp_path) as admin:
            first, _, last = await published(admin, ["a", "b", "c"])
            found = await admin.get(f"{EU}/messageid/{PUBLISH_TIME_MS}")
            assert (found["ledgerId"], found["entryId"]) == first
            found = await admin.get(f"{EU}/messageid/{PUBLISH_TIME_MS + 10**9}")
            assert (found["ledgerId"], found["entryId"]) == (last.ledger, last.entry + 1)

    asyncio.run(main())


def test_what_is_left_is_counted_in_bytes_entries_and_messages(tmp_path: Path) -> None:
    async def main() -> None:
        async with administered(tmp_path) as admin:
            await published(admin, ["a" * 1_000])
            (second,) = await published(admin, ["b" * 1_000])
            await admin.done("PUT", JOBS, EARLIEST)
            status, everything = await admin.call("PUT", f"{EU}/backlogSize", EARLIEST)
            assert status == 200
            status, half = await admin.call("PUT", f"{EU}/backlogSize", as_id(second))
            assert 1_000 < half < everything < 4_000
            _, none = await admin.call("PUT", f"{EU}/backlogSize", as_id(second) | {"excluded": True})
            assert none == 0
            _, found = await admin.call("POST", f"{JOBS}/analyzeBacklog")
            assert (found["entries"], found["messages"], found["lastMessageId"]) == (2, 2, str(second))

    asyncio.run(main())


def test_expiring_up_to_a_message_takes_it_along_unless_it_is_excluded(tmp_path: Path) -> None:
    async def main() -> None:
        async with administered(tmp_path) as admin:
            positions = await published(admin, ["a", "b", "c", "d"])
            await admin.done("PUT", JOBS, EARLIEST)
            await admin.done("POST", f"{JOBS}/expireMessages", as_id(positions[1]) | {"excluded": True})
            assert (await admin.get(f"{EU}/stats"))["subscriptions"]["jobs"]["msgBacklog"] == 3
            await admin.done("POST", f"{JOBS}/expireMessages", as_id(positions[2]))
            assert (await admin.get(f"{EU}/stats"))["subscriptions"]["jobs"]["msgBacklog"] == 1
            await admin.refused(409, "POST", f"{JOBS}/expireMessages", {"ledgerId": 1, "entryId": 1})

    asyncio.run(main())


def test_properties_of_a_subscription_are_replaced_and_kept_over_a_restart(tmp_path: Path) -> None:
    async def main() -> None:
        async with administered(tmp_path) as admin:
            await published(admin, ["a"])
            await admin.done("PUT", JOBS, {"messageId": EARLIEST, "properties": {"owner": "me"}})
            assert await admin.get(f"{JOBS}/properties") == {"owner": "me"}
            await admin.done("PUT", f"{JOBS}/properties", {"team": "us"})
            await admin.refused(400, "PUT", f"{JOBS}/properties", {"team": 1})
        async with administered(tmp_path) as admin:
            assert await admin.get(f"{JOBS}/properties") == {"team": "us"}
            assert (await admin.get(f"{EU}/stats"))["subscriptions"]["jobs"]["msgBacklog"] == 1

    asyncio.run(main())


def test_a_truncated_topic_has_no_backlog_and_only_its_last_block(tmp_path: Path) -> None:
    async def main() -> None:
        async with administered(tmp_path) as admin:
            await published(admin, ["a", "b"])
            (last,) = await published(admin, ["c"])
            await admin.done("PUT", JOBS, EARLIEST)
            await admin.done("DELETE", f"{EU}/truncate")
            stats = await admin.get(f"{EU}/internalStats")
            assert (stats["numberOfEntries"], stats["lastConfirmedEntry"]) == (1, str(last))
            assert (await admin.get(f"{EU}/stats"))["subscriptions"]["jobs"]["msgBacklog"] == 0

    asyncio.run(main())


def test_the_inside_of_partitions_and_what_is_stored_of_cursors(tmp_path: Path) -> None:
    async def main() -> None:
        async with administered(tmp_path) as admin:
            await admin.done("PUT", f"{EU}/partitions", 2)
            await admin.done("PUT", f"{JOBS}?replicated=true", EARLIEST)
            inside = await admin.get(f"{EU}/partitioned-internalStats")
            assert inside["metadata"]["partitions"] == 2
            assert set(inside["partitions"]) == {f"{FULL}-partition-0", f"{FULL}-partition-1"}
            stored = await admin.get(f"{EU}-partition-0/internal-info")
            assert stored["cursors"]["jobs"]["properties"] == {"pulsar.replicated.subscription": 1}
            assert json.dumps(stored)
            await admin.refused(404, "GET", f"{EU}-partition-0/partitioned-internalStats")

    asyncio.run(main())


def test_a_message_up_to_which_a_partition_expires_is_named_with_its_partition(tmp_path: Path) -> None:
    async def main() -> None:
        async with administered(tmp_path) as admin:
            await admin.done("PUT", f"{EU}/partitions", 2)
            (position,) = await (await admin.engine.topic(f"{FULL}-partition-1")).publish([message(b"a")])
            jobs = f"{EU}-partition-1/subscription/jobs"
            await admin.done("PUT", jobs, EARLIEST)
            for wrong in ({}, {"partitionIndex": 0}):
                said = await admin.refused(412, "POST", f"{jobs}/expireMessages", as_id(position) | wrong)
                assert "partitionIndex" in said
            await admin.done("POST", f"{jobs}/expireMessages", as_id(position) | {"partitionIndex": 1})
            assert (await admin.get(f"{EU}-partition-1/stats"))["subscriptions"]["jobs"]["msgBacklog"] == 0

    asyncio.run(main())
