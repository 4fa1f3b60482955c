"""Topics that links brought are made at the brokers, and those that were deleted there are not made anew."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from answering_admin import answering, asked
from asynchronous import asynchronous
from engine_support import opened

from replicator.apache.errors import BridgeError, BridgeHalted
from replicator.apache.topic_at_brokers import TopicAtBrokers

TOPIC = "persistent://public/default/t"
PARTITION = f"{TOPIC}-partition-2"


class Brokers:
    """Topics that they have, list, and were asked to make; and the partitions of :data:`TOPIC`."""

    def __init__(self) -> None:
        self.has: set[str] = set()
        self.lists: list[str] = []
        self.partitions = 0
        self.takes_partitions = True
        self.made: list[tuple[str, Any]] = []

    async def answer(self, request: web.Request) -> web.Response:
        path = request.path.removeprefix("/admin/v2/persistent/public/default")
        if request.method in ("PUT", "POST"):
            body: Any = await request.json() if request.can_read_body else None
            self.made.append((path, body))
            if path.endswith("/partitions") and self.takes_partitions:
                self.partitions = int(body)
            return web.Response(status=204)
        if path == "":
            return web.json_response(self.lists)
        if path.endswith("/partitions"):
            return web.json_response({"partitions": self.partitions})
        if path.endswith("/internalStats") and path.split("/")[1] in self.has:
            return web.json_response(
                {
                    "lastConfirmedEntry": "1:-1",
                    "pendingAddEntriesCount": 0,
                    "lastLedgerCreatedTimestamp": "",
                    "ledgers": [],
                    "numberOfEntries": 7,
                    "cursors": {},
                }
            )
        return web.Response(status=404)


@asynccontextmanager
async def made_at(
    path: Path, brokers: Brokers, topic: str = TOPIC, *, was_there: bool = False, partitions: int = 0
) -> AsyncIterator[TopicAtBrokers]:
    async with answering(brokers.answer) as url, opened(path, "a") as engine, asked(url) as admin:
        if partitions:
            await engine.partitioned.adopt(TOPIC, partitions)
        yield TopicAtBrokers(admin, engine, topic, lambda: was_there)


@asynchronous
async def test_a_topic_that_links_brought_is_made_once(tmp_path: Path) -> None:
    brokers = Brokers()
    async with made_at(tmp_path, brokers) as topic:
        await topic.ensure()
        assert brokers.made == [("/t", None)]
        brokers.has.add("t")
        await topic.ensure()
        assert len(brokers.made) == 1


@asynchronous
async def test_a_topic_that_was_read_and_is_gone_was_deleted_and_is_made_only_by_a_renewal(tmp_path: Path) -> None:
    brokers = Brokers()
    async with made_at(tmp_path, brokers, was_there=True) as topic:
        with pytest.raises(BridgeHalted, match="was deleted at the brokers") as halted:
            await topic.ensure()
        assert halted.value.remedy == f"replicator bridge renew {TOPIC} -f FILE"
        assert halted.value.remedy in str(halted.value)
        assert brokers.made == []
        await topic.ensure(anew=True)
        assert brokers.made == [("/t", None)]


@asynchronous
async def test_a_topic_that_the_brokers_list_and_do_not_find_was_not_deleted(tmp_path: Path) -> None:
    brokers = Brokers()
    brokers.lists = [TOPIC]
    async with made_at(tmp_path, brokers, was_there=True) as topic:
        with pytest.raises(BridgeError, match="do not find it yet") as error:
            await topic.ensure()
        assert not isinstance(error.value, BridgeHalted)
        assert brokers.made == []


@asynchronous
async def test_a_partition_is_made_with_its_topic_and_never_again_if_it_was_deleted(tmp_path: Path) -> None:
    brokers = Brokers()
    async with made_at(tmp_path / "new", brokers, PARTITION, partitions=4) as topic:
        await topic.ensure()
        assert brokers.made == [("/t/partitions", 4)]
    brokers.partitions = 2
    async with made_at(tmp_path / "deleted", brokers, PARTITION, was_there=True, partitions=4) as topic:
        with pytest.raises(BridgeHalted, match="was deleted"):
            await topic.ensure()
        assert brokers.partitions == 2
        await topic.ensure(anew=True)
        assert brokers.partitions == 4


@asynchronous
async def test_names_of_partitions_that_stand_in_the_way_say_what_to_do(tmp_path: Path) -> None:
    brokers = Brokers()
    brokers.has |= {"t", "t-partition-2"}
    async with made_at(tmp_path / "alone", brokers, PARTITION) as topic:
        with pytest.raises(BridgeError, match=f"create-partitioned-topic {TOPIC} -p 3") as alone:
            await topic.ensure()
    assert f"Consume the 7 entries of {PARTITION} there, delete it" in str(alone.value)
    brokers.takes_partitions = False
    async with made_at(tmp_path / "whole", brokers, PARTITION, partitions=4) as topic:
        with pytest.raises(BridgeError, match="pulsar-admin topics delete TOPIC") as whole:
            await topic.ensure()
        assert f"Consume the 7 entries of {TOPIC} and the 7 entries of {PARTITION} there" in str(whole.value)
        brokers.has.remove("t")
        with pytest.raises(BridgeError, match=f"Consume the 7 entries of {PARTITION} there, and delete that"):
            await topic.ensure()
