"""The engine's default policies change while it runs: what inherits them follows at once, what was set stays."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from engine_support import message, opened

from replicator.engine.errors import EngineError
from replicator.engine.policies import PolicyOverrides, TopicPolicies
from replicator.engine.topics.namespace_policies import NamespacePolicies

SMALL = replace(TopicPolicies(), max_message_bytes=100)


def test_default_policies_that_change_hold_at_once_for_topics_there_and_to_come(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            there = await engine.topic("there")
            await there.publish([message(b"x" * 200)])
            await engine.loaded.set_default_policies(SMALL)
            to_come = await engine.topic("to-come")
            for topic in (there, to_come):
                with pytest.raises(EngineError, match="limit"):
                    await topic.publish([message(b"x" * 200)])
            await engine.loaded.set_default_policies(TopicPolicies())
            await there.publish([message(b"x" * 200)])

    asyncio.run(main())


def test_what_a_topic_or_its_namespace_sets_stands_over_defaults_that_change(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            own = await engine.topic("own")
            await own.policies.set(PolicyOverrides({"max_message_bytes": 1_000}))
            overrides = PolicyOverrides({"max_message_bytes": 2_000})
            await engine.catalog.create_namespace("acme/home", NamespacePolicies(topic_policies=overrides))
            of_namespace = await engine.topic("acme/home/orders")
            await engine.loaded.set_default_policies(replace(SMALL, max_consumers=3))
            assert (own.policies.effective.max_message_bytes, own.policies.effective.max_consumers) == (1_000, 3)
            assert (
                of_namespace.policies.effective.max_message_bytes,
                of_namespace.policies.effective.max_consumers,
            ) == (2_000, 3)

    asyncio.run(main())
