"""A worker whose store is new takes the states of subscriptions from others, before it serves clients and before it
trims anything (DESIGN §3, invariants 5 and 6)."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from asynchronous import asynchronous
from engine_support import TOPIC, entries_of, eventually, message, settled, subscribed
from sync_node_support import consume_all
from worker_pair import Pair

from replicator.backup.reclaiming import opened, reclaim
from replicator.engine.errors import StoreFailed, StoreFull
from replicator.engine.policies import BacklogQuota, PolicyOverrides, QuotaPolicy, Retention
from replicator.engine.topic import Topic
from replicator.engine.topics.namespace_policies import NamespacePolicies
from replicator.engine.upkeep import waiting_states
from replicator.engine.upkeep.waiting_states import HOLDER
from replicator.sync.service import SubscriptionSync
from replicator.worker import taking_states
from replicator.worker.starting import start_worker
from replicator.worker.taking_states import PeerAway, StateRecovery, _Asked
from snapshots.actions import ApplyUpdate

BOTH_WAYS = "  - {from: a, to: b}\n  - {from: b, to: a}\n"
MESSAGES = 20
OTHER = "persistent://public/default/a-t"
LIMITED = PolicyOverrides({"max_producers": 7})
KEEP_NOTHING = NamespacePolicies(topic_policies=PolicyOverrides({"retention": Retention(0, 0)}))


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(taking_states, "RETRY_SECONDS", 0.05)
    monkeypatch.setattr(taking_states, "LOOK_SECONDS", 0.02)


@asynccontextmanager
async def consumed_and_lost(directory: Path) -> AsyncIterator[Pair]:
    """Two workers with messages of both, all consumed at ``a``, which has lost its disk and is stopped."""
    made = Pair(directory, names=("a", "b"), links=BOTH_WAYS)
    try:
        for name in ("a", "b"):
            made.workers[name] = await start_worker(made.topology, name)
        for name in ("a", "b"):
            topic = await made.engine(name).topic(TOPIC)
            await topic.publish([message(b"%s %d" % (name.encode(), number)) for number in range(MESSAGES)])
        await eventually(lambda: has_all(made, "a") and has_all(made, "b"), "all messages at both")
        await consume_all(made.topic("a"), 2 * MESSAGES)
        await eventually(lambda: backlog(made, "b") == 0, "b knows what was consumed")
        await made.topic("a").policies.set(LIMITED)
        await made.engine("a").catalog.grants.change("public", lambda of: of.with_role("r", ["produce"]), lambda: None)
        await eventually(lambda: keeps_settings(made), "b keeps policies and permissions")
        await made.workers.pop("a").stop()
        shutil.rmtree(directory / "a")
        yield made
    finally:
        for worker in made.workers.values():
            await worker.stop()


def keeps_settings(made: Pair) -> bool:
    """Return whether ``b`` keeps all policies and permissions of ``a``."""
    kept = made.engine("b").kept_settings.states("a")
    return bool(kept) and kept[0].rows == made.engine("a").cluster_settings.all_rows()


def has_all(made: Pair, name: str) -> bool:
    topic = made.engine(name).find(TOPIC)
    return topic is not None and all(len(entries_of(topic, origin)) == MESSAGES for origin in ("a", "b"))


def backlog(made: Pair, name: str) -> int | None:
    topic = made.engine(name).find(TOPIC)
    subscription = None if topic is None else topic.subscriptions.get("sub")
    return None if subscription is None else subscription.cursor.backlog_entries()


def waits(made: Pair) -> Any:
    return made.workers["a"].parts.states.status()


async def start_without_b(made: Pair) -> None:
    """Take back the messages of ``a``, and start it while ``b``, which has the states of subscriptions, is stopped."""
    await reclaim(made.topology, "a")
    await made.workers.pop("b").stop()
    made.workers["a"] = await start_worker(made.topology, "a")


@pytest.mark.parametrize("asked", [True, False], ids=["reclaimed by a command", "by the start alone"])
@asynchronous
async def test_a_new_store_repeats_nothing_that_others_know_to_be_consumed(tmp_path: Path, asked: bool) -> None:
    async with consumed_and_lost(tmp_path / "made") as made:
        if asked:
            await reclaim(made.topology, "a")
        made.workers["a"] = await start_worker(made.topology, "a", on_empty_store="reclaim")
        topic = made.engine("a").find(TOPIC)
        assert topic is not None, "it is there before clients are"
        _, inbox = await subscribed(topic, "sub")
        await eventually(lambda: has_all(made, "a"), "all messages")
        await eventually(lambda: backlog(made, "a") == 0, "all is consumed")
        await settled(lambda: len(inbox.deliveries))
        assert inbox.deliveries == []
        await eventually(lambda: waits(made) is None, "nothing is awaited")
        if not asked:  # the command takes messages back alone
            assert topic.policies.own == LIMITED
            assert list(made.engine("a").catalog.grants.of("public").roles) == ["r"]
            note = made.workers["a"].parts.settings.status()["taken_back"]
            assert (note["peer"], note["silent"], note["missing"]) == ("b", [], [])


@asynchronous
async def test_nothing_is_trimmed_or_expired_before_others_have_told_their_states(tmp_path: Path) -> None:
    async with consumed_and_lost(tmp_path / "made") as made:
        await start_without_b(made)
        engine = made.engine("a")
        await engine.catalog.set_namespace("public/default", KEEP_NOTHING)
        topic = made.topic("a")
        first = topic.log.first
        await engine.maintenance.run_once()
        assert topic.log.first == first, "without a subscription nothing else holds it"
        await topic.policies.set(LIMITED.setting(message_ttl_seconds=0))
        await subscribed(topic, "late", permits=0)
        await engine.maintenance.run_once()
        assert unread(topic) > 0, "nothing is expired"
        assert list(waits(made)["clusters"]) == ["b"]
        assert waits(made)["kept"] == "everything"
        await made.workers.pop("a").stop()  # a restart does not forget it
        made.workers["a"] = await start_worker(made.topology, "a")
        engine, topic = made.engine("a"), made.topic("a")
        await engine.maintenance.run_once()
        assert topic.log.first == first
        assert unread(topic) > 0
        made.workers["b"] = await start_worker(made.topology, "b")
        await eventually(lambda: waits(made) is None, "b has told its states")
        await eventually(lambda: has_all(made, "a") and backlog(made, "a") == 0, "all is consumed")
        await engine.maintenance.run_once()
        assert unread(topic) == 0, "now it is"
        await engine.maintenance.run_once()
        assert topic.log.first != first


def unread(topic: Topic) -> int:
    return topic.subscriptions["late"].cursor.backlog_entries()


@asynchronous
async def test_after_the_time_what_is_untold_counts_against_the_quota(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with consumed_and_lost(tmp_path / "made") as made:
        await start_without_b(made)
        engine, topic, states = made.engine("a"), made.topic("a"), made.workers["a"].parts.states
        quota = BacklogQuota(bytes_max=1)
        held = PolicyOverrides({"retention": Retention(0, 0), "backlog_quota": quota})
        await topic.policies.set(held)
        await subscribed(topic, "local")  # of which nobody can tell anything
        first = topic.log.first
        states.change(states.addresses, 0)
        monkeypatch.setattr(waiting_states, "SILENT_SECONDS", 0.0)
        assert states.waiting is not None
        states.waiting.heard("b")  # it answers, and does not tell all of it
        await engine.maintenance.run_once()
        assert waits(made)["kept"] == "untold"
        assert waits(made)["subscriptions"] == [{"topic": TOPIC, "subscription": "local"}]
        assert topic.log.first == first
        assert topic.writing.quota_exceeded is QuotaPolicy.PRODUCER_REQUEST_HOLD
        evicting = BacklogQuota(bytes_max=1, policy=QuotaPolicy.CONSUMER_BACKLOG_EVICTION)
        await topic.policies.set(held.setting(backlog_quota=evicting))
        before = topic.holds.positions[HOLDER]
        await engine.maintenance.run_once()
        assert topic.holds.positions[HOLDER] > before


@asynchronous
async def test_a_worker_that_comes_back_late_asks_again_before_it_trims_anything(tmp_path: Path) -> None:
    """It was killed, and its store began to wait longer ago than another cluster has time for its first answer."""
    async with consumed_and_lost(tmp_path / "made") as made:
        await start_without_b(made)
        engine = made.engine("a")
        await engine.catalog.set_namespace("public/default", KEEP_NOTHING)
        first = made.topic("a").log.first
        await made.workers["a"].parts.states.stop()
        row = engine.store.meta(taking_states.ROW)
        assert not row["done"]
        since_ms = row["since_ms"] - 2_000 * waiting_states.SILENT_SECONDS
        await engine.remember(taking_states.ROW, {**row, "since_ms": since_ms})
        await made.workers.pop("a").stop()
        made.workers["a"] = await start_worker(made.topology, "a")
        await made.engine("a").maintenance.run_once()
        assert made.topic("a").log.first == first
        assert waits(made)["clusters"].keys() == {"b"}
        await made.workers.pop("a").stop()
        made.workers["b"] = await start_worker(made.topology, "b")
        made.workers["a"] = await start_worker(made.topology, "a")
        assert backlog(made, "a") == 0, "b was asked before clients are served"


@asynchronous
async def test_a_topic_that_may_not_be_made_here_holds_up_no_other_one(tmp_path: Path) -> None:
    """It is partitioned here, and not in the other cluster."""
    async with consumed_and_lost(tmp_path / "made") as made:
        other = await made.engine("b").topic(OTHER)
        await other.publish([message(b"other")])
        await consume_all(other, 1)
        await reclaim(made.topology, "a")
        async with opened(made.topology, "a") as engine:
            await engine.partitioned.create(OTHER, 2)
        made.workers["a"] = await start_worker(made.topology, "a")
        assert backlog(made, "a") == 0
        await eventually(lambda: waits(made) is None, "nothing is awaited")
        assert made.engine("a").find(OTHER) is None


@pytest.mark.parametrize("error", [StoreFailed, PeerAway], ids=["not merged", "no answer"])
@asynchronous
async def test_only_the_log_of_a_topic_whose_states_cannot_be_taken_is_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    merge, broken = SubscriptionSync.merge_told, {OTHER}

    async def merge_told(sync: SubscriptionSync, topic: Topic, update: ApplyUpdate) -> None:
        if topic.name in broken:
            raise error("this topic's states cannot be taken")
        await merge(sync, topic, update)

    async with consumed_and_lost(tmp_path / "made") as made:
        other = await made.engine("b").topic(OTHER)
        await other.publish([message(b"other")])
        await consume_all(other, 1)
        await reclaim(made.topology, "a")
        async with opened(made.topology, "a") as engine:
            await engine.topic(OTHER)
        monkeypatch.setattr(SubscriptionSync, "merge_told", merge_told)
        made.workers["a"] = await start_worker(made.topology, "a")
        assert backlog(made, "a") == 0
        held = [topic.name for topic in made.engine("a").topics() if HOLDER in topic.holds.positions]
        assert held == [OTHER]
        reason = f"subscriptions of {OTHER} cannot be taken from b: this topic's states cannot be taken"
        assert waits(made)["clusters"] == {"b": reason}
        broken.clear()
        await eventually(lambda: waits(made) is None, "all is told")
        assert all(HOLDER not in topic.holds.positions for topic in made.engine("a").topics())


@asynchronous
async def test_invariant_11_a_worker_whose_disk_is_full_does_not_ask_about_all_topics_again_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    merge, take_from, states = SubscriptionSync.merge_told, StateRecovery._take_from, _Asked.states
    full, asked = [True], list[int]()
    """For each round, the number of topics about which ``b`` was asked."""

    async def merge_told(sync: SubscriptionSync, topic: Topic, update: ApplyUpdate) -> None:
        if full:
            raise StoreFull("the disk is full")
        await merge(sync, topic, update)

    async def take_one_round(taking: StateRecovery, peer: str) -> None:
        asked.append(0)
        await take_from(taking, peer)

    async def counted(asking: _Asked, name: str) -> list[ApplyUpdate]:
        asked[-1] += 1
        return await states(asking, name)

    async with consumed_and_lost(tmp_path / "made") as made:
        for number in range(2 * taking_states.AT_ONCE_MAX):
            other = await made.engine("b").topic(f"{OTHER}-{number}")
            await other.publish([message(b"other")])
            await consume_all(other, 1)
        await reclaim(made.topology, "a")
        monkeypatch.setattr(SubscriptionSync, "merge_told", merge_told)
        monkeypatch.setattr(StateRecovery, "_take_from", take_one_round)
        monkeypatch.setattr(_Asked, "states", counted)
        made.workers["a"] = await start_worker(made.topology, "a")
        await eventually(lambda: len(asked) > 3, "some rounds")
        assert waits(made)["clusters"] == {"b": "subscriptions cannot be taken from b: the disk is full"}
        assert 0 < max(asked) <= taking_states.AT_ONCE_MAX
        full.clear()
        await eventually(lambda: waits(made) is None, "all is told")
