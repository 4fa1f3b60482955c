"""The catalog: tenants, namespaces and topics, what may be made and deleted, and who hears of it."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest
from engine_support import DEADLINE_SECONDS, message, opened

from replicator.engine.engine import Engine
from replicator.engine.errors import (
    InvalidPartitions,
    InvalidPolicies,
    InvalidTopicName,
    NamespaceExists,
    NamespaceNotEmpty,
    NamespaceNotFound,
    NotAllowedError,
    TenantExists,
    TenantNotEmpty,
    TenantNotFound,
    TopicBusy,
    TopicExists,
    TopicNotFound,
)
from replicator.engine.policies import PolicyOverrides, TopicPolicies
from replicator.engine.topic import Topic
from replicator.engine.topic_listener import TopicListener
from replicator.engine.topics.namespace_policies import NamespacePolicies
from replicator.engine.types import ProducerOptions

NAMESPACE = "public/default"


class Heard(TopicListener[Topic]):
    """Keeps what a follower of the catalog hears."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def on_topic_created(self, topic_name: str) -> None:
        self.events.append(f"+{topic_name.removeprefix('persistent://')}")

    def on_topic_deleted(self, topic_name: str) -> None:
        self.events.append(f"-{topic_name.removeprefix('persistent://')}")

    def on_partitions(self, topic_name: str, partitions: int) -> None:
        self.events.append(f"{topic_name.removeprefix('persistent://')}={partitions}")

    def on_namespace_policies(self, namespace: str) -> None:
        self.events.append(f"{namespace}!")

    def on_inherited_policies(self, topic: Topic) -> None:
        self.events.append(f"{topic.name.removeprefix('persistent://')}!")


def full(*names: str) -> list[str]:
    return [f"persistent://{name}" for name in names]


def listening(engine: Engine) -> list[str]:
    heard = Heard()
    engine.add_listener(heard)
    return heard.events


def refuses_topics(engine: Engine, namespace: str) -> bool:
    try:
        engine.catalog.check_takes_topics(namespace)
    except NamespaceNotFound:
        return True
    return False


def test_a_topic_makes_its_namespace_and_tenant_which_outlive_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            assert engine.catalog.tenants() == []
            await engine.topic("acme/shop/orders")
            await engine.deleting.delete("acme/shop/orders")
            assert engine.catalog.namespaces("acme") == ["acme/shop"]
        async with opened(tmp_path) as engine:
            assert engine.catalog.tenants() == ["acme"]
            assert engine.catalog.namespaces("acme") == ["acme/shop"]
            assert engine.catalog.topics("acme/shop") == []

    asyncio.run(main())


def test_listings_are_sorted_and_of_one_namespace(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            for name in ("b", "a", "acme/shop/c", "acme/shop-2/d"):
                await engine.topic(name)
            await engine.partitioned.create("parted", 2)
        async with opened(tmp_path) as engine:
            catalog = engine.catalog
            assert catalog.tenants() == ["acme", "public"]
            assert catalog.namespaces("acme") == ["acme/shop", "acme/shop-2"]
            assert catalog.topics("acme/shop") == full("acme/shop/c")
            assert catalog.topics(NAMESPACE) == full(
                *(f"public/default/{name}" for name in ("a", "b", "parted-partition-0", "parted-partition-1"))
            )
            assert catalog.partitioned_topics(NAMESPACE) == {full("public/default/parted")[0]: 2}
            assert catalog.subscribable(NAMESPACE) == full(*(f"public/default/{name}" for name in ("a", "b", "parted")))
            assert catalog.subscribable("public/unknown") == []

    asyncio.run(main())


def test_internal_topics_are_topics_but_nobodys_to_subscribe_to_by_pattern(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            events = listening(engine)
            await engine.topic("__change_events")
            await engine.partitioned.create("__sharded", 2)
            assert len(engine.catalog.topics(NAMESPACE)) == 3
            assert engine.catalog.subscribable(NAMESPACE) == []
            await engine.deleting.delete("__change_events")
            await engine.partitioned.delete("__sharded")
            assert events == ["public/default/__sharded=2"]

    asyncio.run(main())


def test_what_is_made_and_deleted_is_told_by_the_names_that_consumers_use(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            events = listening(engine)
            await engine.topic("a/b/plain")
            await engine.topic("a/b/plain")
            await engine.partitioned.create("a/b/parted", 2)
            await engine.partitioned.grow("a/b/parted", 4)
            await engine.partitioned.delete("a/b/parted")
            await engine.deleting.delete("a/b/plain")
            await engine.making.create("a/b/plain")
            assert events == [
                "+a/b/plain",
                "a/b/parted=2",
                "+a/b/parted",
                "a/b/parted=4",
                "-a/b/parted",
                "-a/b/plain",
                "+a/b/plain",
            ]

    asyncio.run(main())


def test_topics_that_become_partitions_are_told_to_have_gone(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            await engine.topic("a/b/c-partition-1")
            assert engine.catalog.subscribable("a/b") == full("a/b/c-partition-1")
            events = listening(engine)
            await engine.partitioned.create("a/b/c", 2)
            assert events == ["a/b/c=2", "-a/b/c-partition-1", "+a/b/c"]
            assert engine.catalog.subscribable("a/b") == full("a/b/c")

    asyncio.run(main())


def test_a_topic_that_is_there_is_not_made_again(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            await engine.making.create("plain")
            await engine.partitioned.create("parted", 1)
            for name in ("plain", "parted", "parted-partition-0"):
                with pytest.raises(TopicExists):
                    await engine.making.create(name)

    asyncio.run(main())


def test_a_number_of_partitions_grows_and_never_falls(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            await engine.partitioned.create("parted", 2)
            await engine.partitioned.grow("parted", 5)
            await engine.partitioned.grow("parted", 5)
            for fewer in (4, 0, -1):
                with pytest.raises(InvalidPartitions):
                    await engine.partitioned.grow("parted", fewer)
            with pytest.raises(TopicNotFound):
                await engine.partitioned.grow("unknown", 5)
        async with opened(tmp_path) as engine:
            assert engine.partitioned.count("parted") == 5
            assert len(engine.topics()) == 5

    asyncio.run(main())


def test_the_larger_number_of_two_clusters_wins(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            assert await engine.partitioned.adopt("parted", 3) == 3
            assert await engine.partitioned.adopt("parted", 2) == 3
            assert await engine.partitioned.adopt("parted", 4) == 4
            assert len(engine.topics()) == 4

    asyncio.run(main())


def test_tenants_and_namespaces_are_made_once_and_deleted_when_they_are_empty(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            catalog = engine.catalog
            await catalog.create_tenant("acme")
            await catalog.create_namespace("acme/shop")
            await catalog.create_namespace("other/shop")
            with pytest.raises(TenantExists):
                await catalog.create_tenant("other")
            with pytest.raises(NamespaceExists):
                await catalog.create_namespace("acme/shop")
            with pytest.raises(TenantNotEmpty):
                await catalog.delete_tenant("acme")
            await engine.topic("acme/shop/orders")
            with pytest.raises(NamespaceNotEmpty):
                await catalog.delete_namespace("acme/shop")
            await engine.deleting.delete("acme/shop/orders")
            await catalog.delete_namespace("acme/shop")
            await catalog.delete_tenant("acme")
        async with opened(tmp_path) as engine:
            assert engine.catalog.tenants() == ["other"]
            with pytest.raises(TenantNotFound):
                engine.catalog.namespaces("acme")
            with pytest.raises(TenantNotFound):
                await engine.catalog.delete_tenant("acme")
            for ask in (engine.catalog.namespace, engine.catalog.topics, engine.catalog.partitioned_topics):
                with pytest.raises(NamespaceNotFound):
                    ask("acme/shop")
            with pytest.raises(NamespaceNotFound):
                await engine.catalog.delete_namespace("acme/shop")
            with pytest.raises(NamespaceNotFound):
                await engine.catalog.set_namespace("acme/shop", NamespacePolicies())

    asyncio.run(main())


def test_a_namespace_can_be_deleted_with_everything_in_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic("acme/shop/orders")
            await topic.publish([message()])
            await engine.partitioned.create("acme/shop/parted", 3)
            await engine.topic("acme/shop-2/kept")
            events = listening(engine)
            await engine.catalog.delete_namespace("acme/shop", force=True)
            assert sorted(events) == ["-acme/shop/orders", "-acme/shop/parted"]
            assert engine.catalog.namespaces("acme") == ["acme/shop-2"]
            assert [each.name for each in engine.topics()] == full("acme/shop-2/kept")
            await engine.topic("acme/shop/orders")
            assert engine.catalog.subscribable("acme/shop") == full("acme/shop/orders")

    asyncio.run(main())


def test_no_topic_is_made_in_a_namespace_that_is_being_deleted(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            await engine.catalog.create_namespace("acme/shop")
            deletion = asyncio.ensure_future(engine.catalog.delete_namespace("acme/shop"))
            async with asyncio.timeout(DEADLINE_SECONDS):
                while not refuses_topics(engine, "acme/shop"):  # noqa: ASYNC110 - nothing tells of it
                    await asyncio.sleep(0)
            with pytest.raises(NamespaceNotFound, match="being deleted"):
                await engine.topic("acme/shop/orders")
            await deletion
            assert engine.topics() == []

    asyncio.run(main())


def test_a_namespace_in_which_a_topic_is_being_made_is_not_empty(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            await engine.catalog.create_namespace("acme/shop")
            making = asyncio.ensure_future(engine.topic("acme/shop/orders"))
            await asyncio.sleep(0)
            with pytest.raises(NamespaceNotEmpty):
                await engine.catalog.delete_namespace("acme/shop")
            await making
            assert engine.catalog.topics("acme/shop") == full("acme/shop/orders")

    asyncio.run(main())


def test_topics_that_are_being_made_do_not_hold_up_a_forced_deletion_of_their_namespace(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            for life in range(20):
                await engine.catalog.create_namespace("acme/shop")
                makings = [asyncio.ensure_future(engine.topic(f"acme/shop/orders-{index}")) for index in range(10)]
                for _ in range(life):
                    await asyncio.sleep(0)
                await engine.catalog.delete_namespace("acme/shop", force=True)
                await asyncio.gather(*makings, return_exceptions=True)
                with contextlib.suppress(NamespaceNotFound):  # topics that are asked for afterwards make it anew
                    await engine.catalog.delete_namespace("acme/shop", force=True)
                assert engine.topics() == []

    asyncio.run(main())


@pytest.mark.parametrize("name", ["", "a", "a/b/c", "a/", "/b", "a/..", "a/b c", "a/" + "b" * 390])
def test_a_bad_name_of_a_namespace_is_refused(tmp_path: Path, name: str) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            with pytest.raises(InvalidTopicName):
                await engine.catalog.create_namespace(name)
            with pytest.raises(InvalidTopicName):
                engine.catalog.subscribable(name)
            assert engine.catalog.tenants() == []

    asyncio.run(main())


@pytest.mark.parametrize("name", ["", "a/b", "..", "a b", "a" * 400])
def test_a_bad_name_of_a_tenant_is_refused(tmp_path: Path, name: str) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            with pytest.raises(InvalidTopicName):
                await engine.catalog.create_tenant(name)
            assert engine.catalog.tenants() == []

    asyncio.run(main())


def test_each_policy_is_the_topics_own_or_else_its_namespaces_or_else_the_engines(tmp_path: Path) -> None:
    of_namespace, own = PolicyOverrides({"message_ttl_seconds": 7}), PolicyOverrides({"max_producers": 1})
    namespaces = TopicPolicies(message_ttl_seconds=7)
    both = TopicPolicies(message_ttl_seconds=7, max_producers=1)

    async def main() -> None:
        async with opened(tmp_path) as engine:
            with_own, without = await engine.topic("with-own"), await engine.topic("without")
            await with_own.policies.set(own)
            events = listening(engine)
            await engine.catalog.set_namespace(NAMESPACE, NamespacePolicies(topic_policies=of_namespace))
            assert (with_own.policies.effective, without.policies.effective) == (both, namespaces)
            assert events[0] == f"{NAMESPACE}!", "a link announces schemas before it copies a topic anew"
            assert all(event.startswith(f"{NAMESPACE}/") for event in events[1:])
            assert len(events) > 1
            await with_own.policies.set(None)
            assert with_own.policies.effective == namespaces
            assert (await engine.topic("later")).policies.effective == namespaces
        async with opened(tmp_path) as engine:
            assert engine.catalog.namespace(NAMESPACE).topic_policies == of_namespace
            assert (await engine.topic("without")).policies.effective == namespaces
            await engine.catalog.set_namespace(NAMESPACE, NamespacePolicies())
            assert (await engine.topic("without")).policies.effective == TopicPolicies()

    asyncio.run(main())


def test_where_topics_are_not_made_by_use_only_an_operator_and_links_make_them(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            await engine.catalog.create_namespace(NAMESPACE, NamespacePolicies(auto_topic_creation=False))
            with pytest.raises(TopicNotFound, match="auto_topic_creation"):
                await engine.topic("orders")
            assert await engine.by_use.partitions("orders") == 0
            await engine.making.create("orders")
            await engine.topic("orders")
            await engine.topic("copied", by_link=True)
            await engine.partitioned.create("parted", 2)
            await engine.deleting.delete("parted-partition-1")
            await engine.topic("parted-partition-1")

    asyncio.run(main())


def test_a_namespace_can_have_topics_that_are_used_made_with_partitions(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            await engine.topic("older")
            await engine.catalog.set_namespace(NAMESPACE, NamespacePolicies(auto_partitions=3))
            assert await engine.by_use.partitions("older") == 0
            assert await engine.by_use.partitions("orders") == 3
            assert await engine.by_use.partitions("orders-partition-1") == 0
            with pytest.raises(NotAllowedError, match="3 partitions"):
                await engine.topic("parted")
            assert engine.catalog.partitioned_topics(NAMESPACE) == dict.fromkeys(
                full("public/default/orders", "public/default/parted"), 3
            )

    asyncio.run(main())


def test_only_policies_that_make_sense_are_taken(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            for wrong in (
                NamespacePolicies(auto_partitions=-1),
                NamespacePolicies(auto_partitions=10**6),
                NamespacePolicies(auto_topic_creation=1),  # type: ignore[arg-type]
                NamespacePolicies(replication_clusters=("",)),
            ):
                with pytest.raises(InvalidPolicies):
                    await engine.catalog.create_namespace("a/b", wrong)
            assert engine.catalog.tenants() == []

    asyncio.run(main())


def test_a_topic_that_is_used_is_deleted_by_force_only(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic("orders")
            producer = await topic.producers.create(ProducerOptions(name="p"))
            with pytest.raises(TopicBusy, match="1 producers and 0 consumers"):
                await engine.deleting.delete("orders")
            assert (await producer.publish([message()])) == [topic.log.last]
            await engine.deleting.delete("orders", force=True)
            assert producer.closed
            with pytest.raises(TopicNotFound):
                await engine.deleting.delete("orders")
            with pytest.raises(TopicNotFound):
                await topic.publish([message()])

    asyncio.run(main())
