"""The topic in which the service tells of failovers: links carry it, and users do not come across it."""

from __future__ import annotations

import asyncio
from pathlib import Path

from admin_support import administered
from engine_support import eventually, marker
from link_support import web

from replicator.engine.topic_name import EPOCHS_TOPIC, SYSTEM_NAMESPACE
from replicator.topology import Link as LinkSpec


def test_the_topic_of_failovers_goes_over_every_link_whatever_its_patterns_say(tmp_path: Path) -> None:
    async def main() -> None:
        specs = [LinkSpec("a", "b", topics=("shop/.*",), exclude=(".*",)), LinkSpec("a", "b", name="second")]
        async with web(tmp_path, specs) as made:
            topic = await made.engines["a"].topic(EPOCHS_TOPIC)
            await topic.writing.marker(marker(b"epoch"))
            await eventually(lambda: (found := made.engines["b"].find(EPOCHS_TOPIC)) and found.log.entries == 1)
            assert made.links["a>b"].figures.entries == 1
            assert made.links["a>b#second"].figures.entries == 0

    asyncio.run(main())


def test_users_do_not_come_across_the_topic_of_failovers(tmp_path: Path) -> None:
    async def main() -> None:
        async with administered(tmp_path) as admin:
            await admin.engine.topic(EPOCHS_TOPIC, by_link=True)
            await admin.engine.topic("orders")
            assert await admin.get("tenants") == ["public"]
            assert await admin.get(f"namespaces/{SYSTEM_NAMESPACE.partition('/')[0]}") == []
            assert await admin.get(f"persistent/{SYSTEM_NAMESPACE}") == []
            assert await admin.get("persistent/public/default") == ["persistent://public/default/orders"]
            assert admin.engine.catalog.subscribable(SYSTEM_NAMESPACE) == []

    asyncio.run(main())
