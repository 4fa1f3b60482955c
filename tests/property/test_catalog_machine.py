"""The catalog over a real store against a model: topics that come, grow and go, namespaces, policies, restarts.

What must hold after every step: listings are the model's; a follower that only hears events has the same set of names;
what counts for a topic is its own policies over its namespace's; a topic has what was published since it was made, and
nothing of an older one of its name; ids and incarnations are never given twice; no row belongs to nobody.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Awaitable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest
from catalog_support import Follower, rows_of_nobody
from engine_support import logged, message
from examples import examples
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from replicator.engine.engine import Engine
from replicator.engine.errors import EngineError
from replicator.engine.policies import PolicyOverrides, TopicPolicies
from replicator.engine.topics import topic_deletion
from replicator.engine.topics.namespace_policies import NamespacePolicies
from snapshots.position import BEFORE_ALL

T = TypeVar("T")
NAMESPACES = ["acme/shop", "acme/shop-2", "public/default"]
LOCALS = ["a", "b", "__i", "a-partition-0", "a-partition-1", "a-partition-4", "a-partition-01", "ab"]
BASES = ["a", "b", "__i"]
namespaces = st.sampled_from(NAMESPACES)
names = st.builds("persistent://{}/{}".format, namespaces, st.sampled_from(LOCALS))
bases = st.builds("persistent://{}/{}".format, namespaces, st.sampled_from(BASES))
topic_policies = st.none() | st.builds(
    PolicyOverrides,
    st.fixed_dictionaries({}, optional={"message_ttl_seconds": st.integers(1, 3), "max_producers": st.integers(5, 6)}),
)
namespace_policies = st.builds(
    NamespacePolicies,
    topic_policies=topic_policies,
    auto_topic_creation=st.booleans(),
    auto_partitions=st.sampled_from([0, 0, 2]),
)


@dataclass
class ModelTopic:
    entries: list[bytes] = field(default_factory=list)
    policies: PolicyOverrides | None = None


@dataclass
class ModelNamespace:
    policies: NamespacePolicies = field(default_factory=NamespacePolicies)
    topics: dict[str, ModelTopic] = field(default_factory=dict)
    partitioned: dict[str, int] = field(default_factory=dict)

    def whole(self, name: str) -> tuple[str, str] | None:
        """Return the base and the index of a name that could be a partition's."""
        base, separator, index = name.rpartition("-partition-")
        return (base, index) if separator else None

    def is_partition(self, name: str) -> bool:
        parts = self.whole(name)
        return parts is not None and parts[1] in {str(n) for n in range(self.partitioned.get(parts[0], 0))}

    def can_be_made(self, name: str) -> bool:
        """Return whether a plain topic may have the name."""
        parts = self.whole(name)
        if name in self.partitioned:
            return False
        return parts is None or parts[0] not in self.partitioned or self.is_partition(name)

    def can_be_partitioned(self, base: str, partitions: int) -> bool:
        allowed = {f"{base}-partition-{n}" for n in range(partitions)}
        return base not in self.topics and all(
            name in allowed for name in self.topics if name.startswith(f"{base}-partition-")
        )

    def partition(self, base: str, partitions: int) -> None:
        self.partitioned[base] = partitions
        for number in range(partitions):
            self.topics.setdefault(f"{base}-partition-{number}", ModelTopic())

    def subscribable(self) -> list[str]:
        found = [*self.partitioned, *(name for name in self.topics if not self.is_partition(name))]
        return sorted(name for name in found if not name.rpartition("/")[2].startswith("__"))


def namespace_of(topic: str) -> str:
    return topic.removeprefix("persistent://").rpartition("/")[0]


class CatalogMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.directory = Path(tempfile.mkdtemp())
        self.tenants: set[str] = set()
        self.model: dict[str, ModelNamespace] = {}
        self.incarnations: set[int] = set()
        self.follower = Follower()
        self.engine: Engine
        self.open()

    # Running the engine.

    def run(self, call: Awaitable[T]) -> T:
        async def awaited() -> T:
            return await call

        return self.loop.run_until_complete(awaited())

    def open(self) -> None:
        self.engine = self.run(Engine.open(self.directory, cluster="us-east"))
        self.engine.add_listener(self.follower)

    def expect(self, allowed: bool, call: Awaitable[Any]) -> None:
        if allowed:
            self.run(call)
        else:
            with pytest.raises(EngineError):
                self.run(call)

    def namespace(self, name: str, *, make: bool = False) -> ModelNamespace:
        """Return the model's namespace; keep it in the model only if it is to be made."""
        found = self.model.get(name) or ModelNamespace()
        if make:
            self.model[name] = found
            self.tenants.add(name.partition("/")[0])
        return found

    # Topics.

    @rule(name=names)
    def create_topic(self, name: str) -> None:
        namespace = self.namespace(namespace_of(name))
        allowed = namespace.can_be_made(name) and name not in namespace.topics
        self.expect(allowed, self.engine.making.create(name))
        if allowed:
            self.namespace(namespace_of(name), make=True).topics[name] = ModelTopic()

    @rule(name=names, by_link=st.booleans())
    def use_topic(self, name: str, by_link: bool) -> None:
        namespace = self.namespace(namespace_of(name))
        policies = namespace.policies
        exists = name in namespace.topics
        by_policy = not (by_link or exists or namespace.is_partition(name) or name in namespace.partitioned)
        if by_policy and policies.auto_topic_creation and policies.auto_partitions and namespace.whole(name) is None:
            allowed = namespace.can_be_partitioned(name, policies.auto_partitions)
            if allowed:
                self.namespace(namespace_of(name), make=True).partition(name, policies.auto_partitions)
            self.expect(False, self.engine.topic(name))
            return
        allowed = exists or (namespace.can_be_made(name) and (not by_policy or policies.auto_topic_creation))
        self.expect(allowed, self.engine.topic(name, by_link=by_link))
        if allowed:
            self.namespace(namespace_of(name), make=True).topics.setdefault(name, ModelTopic())

    @rule(name=names, at_once=st.integers(2, 4))
    def use_topic_at_once(self, name: str, at_once: int) -> None:
        namespace = self.namespace(namespace_of(name))
        allowed = name in namespace.topics or namespace.can_be_made(name)

        async def use() -> None:
            topics = await asyncio.gather(*(self.engine.topic(name, by_link=True) for _ in range(at_once)))
            assert len(set(topics)) == 1

        self.expect(allowed, use())
        if allowed:
            self.namespace(namespace_of(name), make=True).topics.setdefault(name, ModelTopic())

    @rule(name=names, gives_up=st.booleans())
    def delete_topic(self, name: str, gives_up: bool) -> None:
        namespace = self.namespace(namespace_of(name))
        allowed = name in namespace.topics

        async def delete() -> None:
            deletion = asyncio.ensure_future(self.engine.deleting.delete(name))
            if gives_up:
                await asyncio.sleep(0)
                deletion.cancel()
                await asyncio.wait([deletion])
                with suppress(EngineError):
                    await self.engine.deleting.delete(name)  # waits for the one that goes on
                if not allowed:
                    raise EngineError("as it was before")
            else:
                await deletion

        self.expect(allowed, delete())
        namespace.topics.pop(name, None)

    @rule(name=names)
    def delete_and_make_anew_at_once(self, name: str) -> None:
        namespace = self.namespace(namespace_of(name))
        if name not in namespace.topics:
            return

        async def replace() -> None:
            old = self.engine.find(name)
            assert old is not None
            deletion = asyncio.ensure_future(self.engine.deleting.delete(name))
            while old.deleted is None:  # noqa: ASYNC110
                await asyncio.sleep(0)
            anew = await self.engine.topic(name, by_link=True)
            assert anew.incarnation > old.incarnation
            await deletion

        self.run(replace())
        namespace.topics[name] = ModelTopic()

    @rule(base=bases, partitions=st.integers(0, 6), how=st.sampled_from(["create", "grow", "adopt"]))
    def partition(self, base: str, partitions: int, how: str) -> None:
        namespace = self.namespace(namespace_of(base))
        existing = namespace.partitioned.get(base)
        fits = partitions > 0 and (existing is not None or namespace.can_be_partitioned(base, partitions))
        if how == "create":
            allowed = fits and existing in (None, partitions)
            call: Awaitable[Any] = self.engine.partitioned.create(base, partitions)
        elif how == "grow":
            allowed = fits and existing is not None and partitions >= existing
            call = self.engine.partitioned.grow(base, partitions)
        else:
            allowed = fits
            call = self.engine.partitioned.adopt(base, partitions)
        self.expect(allowed, call)
        if allowed and (how != "adopt" or partitions > (existing or 0)):
            self.namespace(namespace_of(base), make=True).partition(base, partitions)

    @rule(base=bases)
    def delete_partitioned_topic(self, base: str) -> None:
        namespace = self.namespace(namespace_of(base))
        allowed = base in namespace.partitioned
        self.expect(allowed, self.engine.partitioned.delete(base))
        if allowed:
            del namespace.partitioned[base]
            for name in [name for name in namespace.topics if name.startswith(f"{base}-partition-")]:
                del namespace.topics[name]

    # Namespaces and tenants.

    @rule(name=namespaces, policies=namespace_policies)
    def create_namespace(self, name: str, policies: NamespacePolicies) -> None:
        allowed = name not in self.model
        self.expect(allowed, self.engine.catalog.create_namespace(name, policies))
        if allowed:
            self.namespace(name, make=True).policies = policies

    @rule(name=namespaces, policies=namespace_policies)
    def set_namespace(self, name: str, policies: NamespacePolicies) -> None:
        allowed = name in self.model
        self.expect(allowed, self.engine.catalog.set_namespace(name, policies))
        if allowed:
            self.model[name].policies = policies

    @rule(name=namespaces, force=st.booleans())
    def delete_namespace(self, name: str, force: bool) -> None:
        found = self.model.get(name)
        allowed = found is not None and (force or not (found.topics or found.partitioned))
        self.expect(allowed, self.engine.catalog.delete_namespace(name, force=force))
        if allowed:
            del self.model[name]

    @rule(name=st.sampled_from(["acme", "public"]), create=st.booleans())
    def tenant(self, name: str, create: bool) -> None:
        if create:
            self.expect(name not in self.tenants, self.engine.catalog.create_tenant(name))
            self.tenants.add(name)
            return
        allowed = name in self.tenants and not any(each.startswith(f"{name}/") for each in self.model)
        self.expect(allowed, self.engine.catalog.delete_tenant(name))
        if allowed:
            self.tenants.remove(name)

    # What is in topics.

    @rule(data=st.data())
    def publish_and_subscribe(self, data: st.DataObject) -> None:
        if (found := self._any_topic(data)) is not None:
            name, model = found
            topic = self.engine.find(name)
            assert topic is not None
            entry = message(b"%d" % len(model.entries))
            self.run(topic.publish([entry]))
            self.run(topic.subscriptions.create("sub", BEFORE_ALL, replicated=False))
            model.entries.append(entry)

    @rule(data=st.data(), policies=topic_policies)
    def set_policies(self, data: st.DataObject, policies: PolicyOverrides | None) -> None:
        if (found := self._any_topic(data)) is not None:
            name, model = found
            topic = self.engine.find(name)
            assert topic is not None
            self.run(topic.policies.set(policies))
            model.policies = policies

    def _any_topic(self, data: st.DataObject) -> tuple[str, ModelTopic] | None:
        topics = {name: topic for each in self.model.values() for name, topic in each.topics.items()}
        return None if not topics else (name := data.draw(st.sampled_from(sorted(topics))), topics[name])

    @rule(sweep_first=st.booleans())
    def restart(self, sweep_first: bool) -> None:
        if sweep_first:
            self.run(self.engine.deleting.sweeper.swept())
        self.run(self.engine.close())
        for namespace in self.model.values():  # partitions that are missing are made at the start
            for base, partitions in namespace.partitioned.items():
                namespace.partition(base, partitions)
        self.open()

    # What must hold.

    @invariant()
    def listings_are_the_models(self) -> None:
        catalog = self.engine.catalog
        assert catalog.tenants() == sorted(self.tenants)
        for tenant in self.tenants:
            assert catalog.namespaces(tenant) == sorted(n for n in self.model if n.startswith(f"{tenant}/"))
        for name, namespace in self.model.items():
            assert catalog.namespace(name) == namespace.policies
            assert catalog.topics(name) == sorted(namespace.topics)
            assert catalog.partitioned_topics(name) == namespace.partitioned
            assert catalog.subscribable(name) == namespace.subscribable()
        expected = {name for each in self.model.values() for name in each.topics}
        assert {topic.name for topic in self.engine.topics()} == expected

    @invariant()
    def who_follows_the_events_has_the_set(self) -> None:
        assert self.follower.names == {name for each in self.model.values() for name in each.subscribable()}

    @invariant()
    def topics_have_their_own_content_and_policies(self) -> None:
        for namespace in self.model.values():
            for name, model in namespace.topics.items():
                topic = self.engine.find(name)
                assert topic is not None
                assert [entry for _, _, entry in logged(topic)] == model.entries
                assert ("sub" in topic.subscriptions) is bool(model.entries)
                inherited = (namespace.policies.topic_policies or PolicyOverrides()).over(TopicPolicies())
                assert topic.policies.effective == (model.policies or PolicyOverrides()).over(inherited)

    def teardown(self) -> None:
        self.run(self.engine.deleting.sweeper.swept())
        leftover = rows_of_nobody(self.engine.store)
        self.run(self.engine.close())
        self.loop.close()
        shutil.rmtree(self.directory)
        assert leftover == set()


@pytest.fixture(autouse=True)
def small_sweeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make sweeps so small that restarts come amid them."""
    monkeypatch.setattr(topic_deletion, "SWEEP_ROWS_MAX", 1)


TestCatalog = CatalogMachine.TestCase
TestCatalog.settings = settings(max_examples=examples(25), stateful_step_count=30, deadline=None)
