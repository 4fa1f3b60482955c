"""A topic that was deleted at one cluster and made anew: others keep its earlier life, and the links go on (ADR 80)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from asynchronous import asynchronous
from engine_support import TOPIC, entries_of, eventually, logged
from kept_lives_support import MESSAGES, backlog, decide, make_anew, publish
from link_support import Web, link_of, web
from sync_node_support import consume_all, consuming, mesh
from verify_support import change_block, faults
from worker_pair import Pair

from replicator.api import data_plane
from replicator.engine.errors import IncarnationMismatch, NotAllowedError
from replicator.engine.log.extent_rows import lives
from replicator.engine.log.store_tables import HighWater
from replicator.engine.types import Ack
from replicator.pipeline.verify.report import VerifyReport
from replicator.pipeline.verify.verify import VerifySettings, verify
from replicator.topology import SPARK
from replicator.topology import Link as LinkSpec
from replicator.worker.starting import start_worker
from snapshots.position import BEFORE_ALL
from snapshots.position_set import PositionSet

pytestmark = pytest.mark.usefixtures("shortest_link_pauses")


@asynccontextmanager
async def workers(directory: Path, links_of: str, names: str) -> AsyncIterator[Pair]:
    """Real workers, one for each letter of ``names``, with the links that ``links_of`` says."""
    made = Pair(directory, names=tuple(names), links=links_of)
    try:
        for name in names:
            made.workers[name] = await start_worker(made.topology, name)
        yield made
    finally:
        for worker in made.workers.values():
            await worker.stop()


def gaps(made: Pair) -> dict[str, tuple[str, str]]:
    """By link, the kind of its gap and what its status says."""
    return {
        link.key: (gap["kind"], gap["detail"])
        for worker in made.workers.values()
        for link in worker.parts.links
        for gap in link.status()["gaps"]
    }


def copied(made: Pair, name: str, origin: str = "a") -> list[bytes]:
    """The messages of ``origin`` at a cluster, in order; none if it has no topic."""
    topic = made.engine(name).find(TOPIC)
    return [] if topic is None else entries_of(topic, origin)


BOTH_WAYS = "  - {from: a, to: b}\n  - {from: b, to: a}\n"
RING = "".join(f"  - {{from: {one}, to: {other}, forward: true}}\n" for one, other in ("ab", "bc", "ca"))


@pytest.mark.parametrize("policy", ["keep-both", "copy-anew"])
@asynchronous
async def test_a_topic_that_was_made_anew_while_its_peer_was_down_is_kept_in_step_both_ways(
    tmp_path: Path, policy: str
) -> None:
    async with workers(tmp_path / "made", BOTH_WAYS, "ab") as made:
        old = await publish(made.engine("a"), b"old")
        await eventually(lambda: copied(made, "b") == old)
        await consume_all(made.topic("b"), MESSAGES)
        await eventually(lambda: backlog(made.engine("a")) == 0, "what was consumed at b, at a")
        await made.workers.pop("b").stop()
        new = await make_anew(made.engine("a"))
        made.workers["b"] = await start_worker(made.topology, "b")
        await eventually(lambda: gaps(made).keys() == {"a>b"}, "the gap of a>b")
        kind, text = gaps(made)["a>b"]
        assert kind == "made-anew"
        assert text.index("keep-both") < text.index("copy-anew")
        assert f"{MESSAGES} messages" in text
        resolved = await made.cli("links", "resolve", "--from", "a", "--to", "b", "--topic", TOPIC, "--policy", policy)
        assert resolved.returncode == 0, resolved.stderr
        kept = old if policy == "keep-both" else []
        await eventually(lambda: copied(made, "b") == kept + new, "the new messages at b")
        await consume_all(made.topic("b"), MESSAGES)
        await eventually(lambda: backlog(made.engine("a")) == 0, "what was consumed at b, at a")
        assert copied(made, "a") == new
        back = await publish(made.engine("b"), b"back", 1)
        await eventually(lambda: copied(made, "a", "b") == back)
        assert gaps(made) == {}


@pytest.mark.parametrize("first", ["keep-both", "copy-anew"])
@asynchronous
async def test_in_a_ring_what_one_deletion_began_has_an_end_and_acknowledgements_go_round_again(
    tmp_path: Path, first: str
) -> None:
    """After keep-both the other links follow. After copy-anew c has the last copy of the earlier life, and it stays."""
    async with workers(tmp_path / "made", RING, "abc") as made:
        old = await publish(made.engine("a"), b"old")
        for name in "bc":
            await eventually(lambda name=name: copied(made, name) == old)  # type: ignore[misc]
        await consume_all(made.topic("c"), MESSAGES)
        await eventually(lambda: backlog(made.engine("a")) == backlog(made.engine("b")) == 0)
        new = await make_anew(made.engine("a"))
        await eventually(lambda: gaps(made).keys() == {"a>b"}, "the gap of a>b alone")

        async def resolved(ends: str, policy: str) -> tuple[int, str]:
            done = await made.cli(
                "links", "resolve", "--from", ends[0], "--to", ends[1], "--topic", TOPIC, "--policy", policy
            )
            return done.returncode, done.stderr

        assert (await resolved("ab", first))[0] == 0
        if first == "copy-anew":
            await eventually(lambda: gaps(made).keys() == {"b>c"}, "the gap of b>c alone")
            status, refusal = await resolved("bc", "copy-anew")
            assert status == 2
            assert "'b' does not have all of them" in refusal
            assert "keep-both` keeps the earlier life at c" in refusal
            assert (await resolved("bc", "keep-both"))[0] == 0
        await eventually(lambda: copied(made, "c") == old + new)
        await eventually(lambda: copied(made, "b") == (old if first == "keep-both" else []) + new)
        await consume_all(made.topic("c"), MESSAGES)
        await eventually(lambda: backlog(made.engine("a")) == backlog(made.engine("b")) == 0)
        assert gaps(made) == {}


@asynchronous
async def test_verify_compares_each_life_of_a_topic_and_names_what_differs_in_an_old_one(tmp_path: Path) -> None:
    async with workers(tmp_path / "made", RING, "abc") as made:
        a, every = made.engine("a"), list[bytes]()
        for number in range(3):
            if number:
                await a.deleting.delete(TOPIC, force=True)
            every += await publish(a, b"life %d" % number)
            if number:
                await eventually(lambda: gaps(made).keys() == {"a>b"}, "the gap of a>b")
                (link,) = made.workers["a"].parts.links
                await link.resolve(TOPIC, "keep-both")
            for name in "bc":
                await eventually(lambda name=name, every=list(every): copied(made, name) == every)  # type: ignore[misc]
        for name in ("sub", "left"):
            await made.topic("c").subscriptions.create(name, BEFORE_ALL, replicated=True)
            await eventually(lambda name=name: name in made.topic("b").subscriptions)  # type: ignore[misc]
        await consume_all(made.topic("c"), 3 * MESSAGES)
        await eventually(lambda: backlog(made.engine("a")) == backlog(made.engine("b")) == 0)

        async def verified(*, digests: bool) -> VerifyReport:
            urls = {name: f"http://{made.topology.cluster(name).address}" for name in "abc"}
            settings = VerifySettings(settle_seconds=0.2, digests=digests)
            return await asyncio.to_thread(verify, None, urls, made.topology.links, [TOPIC], settings=settings)

        report = await verified(digests=True)
        assert (faults(report), report.findings) == ({}, ())
        assert [report.clusters[name].messages for name in "abc"] == [MESSAGES, 3 * MESSAGES, 3 * MESSAGES]
        at_b = made.topic("b")
        assert len(at_b.origins.earlier_lives()) == 2
        oldest = [entry.position for entry in at_b.reading.entries(BEFORE_ALL, None, 10**9, 10**12) if not entry.marker]
        at_c = [entry.position for entry in made.topic("c").reading.entries(BEFORE_ALL, None, 10**9, 10**12)]
        for number in (0, MESSAGES + 1, 2 * MESSAGES + 2):  # the exact mapping, of each life
            status, found = await made.translate("b", "c", oldest[number])
            assert (status, found["identity"]["origin"]) == (0, "a")
            assert found["to"]["position"] == str(at_c[number])
        status, refused = await made.translate("b", "a", oldest[0])
        assert status == 1
        assert "from before it was deleted and made anew" in refused
        at_b.subscriptions["left"].merging.acks(PositionSet(oldest[:4]), {}, announce=False)
        assert faults(await verified(digests=True)) == {"ack_mismatch": 4}
        change_block(made.topic("c"), 0, lambda _: None)
        for digests in (False, True):
            assert (await verified(digests=digests)).missing == MESSAGES, "the first life, at c"


@asynchronous
async def test_acknowledgements_of_a_kept_life_travel_between_those_who_keep_it_and_are_never_claimed_as_their_own(
    tmp_path: Path,
) -> None:
    async with mesh(tmp_path, "a", "b", "c") as nodes:
        a, b, c = nodes.values()
        await publish(a.engine, b"old")
        await (await a.engine.topic(TOPIC)).subscriptions.create("sub", BEFORE_ALL, replicated=True)
        await eventually(lambda: backlog(b.engine) == backlog(c.engine) == MESSAGES, "the subscription everywhere")
        await make_anew(a.engine)
        await decide(a)
        await eventually(lambda: backlog(b.engine) == backlog(c.engine) == 2 * MESSAGES, "both lives at b and c")
        for node, other, which in ((b, c, slice(0, 2)), (c, b, slice(2, 5))):  # of the kept life, both ways
            consumer, inbox = await consuming(node.topic(), 2 * MESSAGES - which.start)
            await consumer.acknowledge(
                [Ack(delivery.position) for delivery in inbox.deliveries[: which.stop - which.start]]
            )
            consumer.close()
            left = 2 * MESSAGES - which.stop
            await eventually(lambda other=other, left=left: backlog(other.engine) == left)  # type: ignore[misc]
        assert backlog(a.engine) == MESSAGES, "of a life that a lacks, nothing there is consumed"
        await consume_all(b.topic(), 2 * MESSAGES - 5)
        await eventually(lambda: backlog(c.engine) == 0, "what was consumed at b, of both lives, at c")
        await eventually(lambda: backlog(a.engine) == 0, "what was consumed at b, of the new life, at a")
        for node in (b, c):
            identities = [(origin, position) for origin, position, _ in logged(node.topic())]
            assert len(identities) == 2 * MESSAGES
            sub = node.subscription()
            assert sub is not None
            vector = node.sync.vector(node.topic(), sub)
            assert all(vector.origins[origin].covers(position) for origin, position in identities)
            own = vector.origins[node.engine.cluster]
            assert not any(own.covers(position) for _, position in identities)


@asynchronous
async def test_what_nobody_consumed_of_a_kept_life_is_not_taken_for_consumed_when_all_of_the_new_one_is(
    tmp_path: Path,
) -> None:
    """Invariant 5: a lacks the earlier life, so what is consumed at a proves nothing about it."""
    async with mesh(tmp_path, "a", "b") as nodes:
        a, b = nodes.values()
        await publish(a.engine, b"old")
        await (await a.engine.topic(TOPIC)).subscriptions.create("sub", BEFORE_ALL, replicated=True)
        await eventually(lambda: backlog(b.engine) == MESSAGES, "the subscription at b")
        await make_anew(a.engine)
        await decide(a)
        await eventually(lambda: backlog(b.engine) == 2 * MESSAGES, "both lives at b")
        await consume_all(await a.engine.topic(TOPIC), MESSAGES)
        await publish(b.engine, b"more", 1)
        await eventually(lambda: a.topic().log.messages == MESSAGES + 1, "what was published at b, at a")
        await consume_all(a.topic(), 1)
        await eventually(lambda: backlog(b.engine) == MESSAGES, "at b only the earlier life is left")
        await publish(a.engine, b"again", 1)
        await consume_all(a.topic(), 1)
        await eventually(lambda: b.topic().log.messages == 2 * MESSAGES + 2 and backlog(b.engine) == MESSAGES)


@asynchronous
async def test_a_link_keeps_both_lives_by_itself_if_its_policy_says_so_and_after_a_restart_nothing_comes_twice(
    tmp_path: Path,
) -> None:
    async with web(tmp_path, [LinkSpec("a", "b", on_gap="keep-both")]) as made:
        old = await made.publish("a", 0, 3)
        await eventually(lambda: made.entries("b", "a") == old)
        await made.engines["a"].deleting.delete(TOPIC)
        new = await publish(made.engines["a"], b"new")
        await eventually(lambda: made.entries("b", "a") == old + new)
        await made.links["a>b"].stop()
        made.links["a>b"].detach()
        again = made.links["a>b"] = link_of(made, made.links["a>b"].spec)
        again.start()
        more = await publish(made.engines["a"], b"more", 1)
        await eventually(lambda: made.entries("b", "a") == old + new + more)
        assert (again.status()["gap_count"], again.status()["skipped"]) == (0, [])
    async with web(tmp_path, [LinkSpec("a", "b")]) as made:
        more += await publish(made.engines["a"], b"last", 1)
        await eventually(lambda: made.entries("b", "a") == old + new + more)
        topic = made.engines["b"].find(TOPIC)
        assert topic is not None
        assert len(topic.origins.earlier_lives()) == 1
        await made.links["a>b"].stop()


@asynchronous
async def test_a_link_that_spark_carries_goes_on_with_the_later_life_and_carries_both_to_who_has_nothing(
    tmp_path: Path,
) -> None:
    links = [LinkSpec("a", "b", on_gap="keep-both"), LinkSpec("b", "c", forward=True)]
    async with web(tmp_path, links, engine=SPARK, started=False) as made:
        made.links["a>b"].start()
        old = await made.publish("a", 0, 3)
        await eventually(lambda: made.entries("b", "a") == old)
        await made.engines["a"].deleting.delete(TOPIC)
        new = await publish(made.engines["a"], b"new")
        await eventually(lambda: made.entries("b", "a") == old + new)
        made.links["b>c"].start()
        await eventually(lambda: made.entries("c", "a") == old + new)
        for link in made.links.values():
            await link.stop()


@asynchronous
async def test_a_destination_takes_up_no_life_that_is_earlier_or_its_own(tmp_path: Path) -> None:
    async with web(tmp_path, [LinkSpec("a", "b")]) as made:
        await made.publish("a", 0, 3)
        await eventually(lambda: len(made.entries("b", "a")) == 3)
        topic = made.engines["b"].find(TOPIC)
        assert topic is not None
        mark = topic.origins.high_water("a")
        assert mark is not None
        writer = made.engines["b"].writer
        for incarnation in (mark.incarnation - 1, mark.position.ledger):
            with pytest.raises(IncarnationMismatch, match="is not later than incarnation"):
                await writer.keep_both(topic.tail, {"a": HighWater(incarnation, BEFORE_ALL)})
        with pytest.raises(NotAllowedError, match="made anew in 'b', which is this cluster itself"):
            await writer.keep_both(topic.tail, {"b": HighWater(mark.position.ledger + 1, BEFORE_ALL)})
        assert topic.origins.high_water("a") == mark
        await made.links["a>b"].stop()


@asynchronous
async def test_a_destination_of_an_earlier_version_is_named_and_its_other_topics_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The earlier version says less of its marks, and has no such routes."""
    routes = [route for route in data_plane.routes() if not route.path.endswith(("keep-both", "earlier-lives"))]
    monkeypatch.setattr(data_plane, "routes", lambda: routes)
    told = data_plane._marks

    def less(*asked: Any) -> dict[str, Any]:
        return {
            origin: {name: row[name] for name in ("incarnation", "position")} for origin, row in told(*asked).items()
        }

    monkeypatch.setattr(data_plane, "_marks", less)
    async with web(tmp_path, [LinkSpec("a", "b", on_gap="keep-both")]) as made:
        old = await made.publish("a", 0, 3)
        await eventually(lambda: made.entries("b", "a") == old)
        await made.engines["a"].deleting.delete(TOPIC)
        new = await publish(made.engines["a"], b"new")
        link = made.links["a>b"]
        await eventually(lambda: "upgrade it" in link.status()["halted"].get(TOPIC, ""), "the reason")
        other = await made.publish("a", 0, 3, "other")
        await eventually(lambda: made.entries("b", "a", "other") == other)
        assert (made.entries("b", "a"), link.figures.reconnects) == (old, 0)
        await link.resolve(TOPIC, "copy-anew")
        await eventually(lambda: made.entries("b", "a") == new)
        await link.stop()


FORWARDED = (LinkSpec("a", "c", on_gap="keep-both"), LinkSpec("a", "b"), LinkSpec("c", "b", forward=True))


@asynchronous
async def test_a_destination_gets_the_rest_of_an_earlier_life_before_the_later_one_or_all_of_both(
    tmp_path: Path,
) -> None:
    async with web(tmp_path, [FORWARDED[0], FORWARDED[2], LinkSpec("c", "d", forward=True)], started=False) as made:
        for key in ("a>c", "c>b"):
            made.links[key].start()
        old = await made.publish("a", 0, 3)
        await eventually(lambda: made.entries("b", "a") == old)
        await made.links["c>b"].stop()
        old += await made.publish("a", 3, 3)
        await eventually(lambda: made.entries("c", "a") == old)
        await made.engines["a"].deleting.delete(TOPIC)
        new = await publish(made.engines["a"], b"new")
        await eventually(lambda: made.entries("c", "a") == old + new)
        for key in ("c>b", "c>d"):
            made.links[key].detach()
            made.links[key] = link_of(made, made.links[key].spec)
            made.links[key].start()
            await eventually(lambda key=key: made.entries(key[-1], "a") == old + new)  # type: ignore[misc]
            assert made.links[key].status()["gap_count"] == 0
        assert made.links["c>b"].figures.reconnects == 0


@asynchronous
async def test_a_source_that_has_an_earlier_life_which_the_destination_lacks_goes_on_when_an_operator_says_so(
    tmp_path: Path,
) -> None:
    async with web(tmp_path, FORWARDED, started=False) as made:
        made.links["a>c"].start()
        old = await made.publish("a", 0, 3)
        await eventually(lambda: made.entries("c", "a") == old)
        await made.engines["a"].deleting.delete(TOPIC)
        new = await publish(made.engines["a"], b"new")
        await eventually(lambda: made.entries("c", "a") == old + new)
        made.links["a>b"].start()
        await eventually(lambda: made.entries("b", "a") == new)
        link = made.links["c>b"]
        link.start()
        await eventually(lambda: [each["kind"] for each in link.status()["gaps"]] == ["earlier-life"])
        assert "nothing is lost" in link.status()["gaps"][0]["detail"]
        await link.resolve(TOPIC, "keep-both")
        others = await made.publish("c", 0, 1)
        await eventually(lambda: made.entries("b", "c") == others)
        topic = made.engines["b"].find(TOPIC)
        assert topic is not None
        ((_, upto),) = topic.origins.left_out("a")
        assert upto.ledger < topic.origins.high_waters()["a"].incarnation
        await link.stop()
        link.detach()
        again = made.links["c>b"] = link_of(made, link.spec)
        again.start()
        others += await made.publish("c", 1, 1)
        await eventually(lambda: made.entries("b", "c") == others)
        assert again.status()["gap_count"] == 0
        assert made.entries("c", "a") == old + new


@asynchronous
async def test_a_destination_whose_version_cannot_say_what_it_lacks_of_an_earlier_life_is_named_as_a_gap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    routes = [route for route in data_plane.routes() if not route.path.endswith("earlier-lives")]
    monkeypatch.setattr(data_plane, "routes", lambda: routes)
    async with web(tmp_path, FORWARDED, started=False) as made:
        made.links["a>c"].start()
        old = await made.publish("a", 0, 3)
        await copied_to(made, "c", old)
        await made.engines["a"].deleting.delete(TOPIC)
        new = await publish(made.engines["a"], b"new")
        made.links["a>b"].start()
        await copied_to(made, "b", new)
        await copied_to(made, "c", old + new)
        link = made.links["c>b"]
        link.start()
        await eventually(lambda: [each["kind"] for each in link.status()["gaps"]] == ["earlier-life"])
        assert "upgrade b" in link.status()["gaps"][0]["detail"]
        await link.resolve(TOPIC, "keep-both")
        others = await made.publish("c", 0, 1)
        await eventually(lambda: made.entries("b", "c") == others)
        assert link.figures.reconnects == 0


async def copied_to(made: Web, name: str, entries: list[bytes]) -> None:
    await eventually(lambda: made.entries(name, "a") == entries)


@asynchronous
async def test_of_several_earlier_lives_each_that_the_destination_lacks_is_named(tmp_path: Path) -> None:
    """The destination has the second life and the third, and lacks the first."""
    specs = (FORWARDED[0], LinkSpec("a", "b", on_gap="keep-both"), FORWARDED[2])
    async with web(tmp_path, specs, started=False) as made:
        made.links["a>c"].start()
        every = await made.publish("a", 0, 3)
        await copied_to(made, "c", every)
        for number in (1, 2):
            await made.engines["a"].deleting.delete(TOPIC)
            every += await publish(made.engines["a"], b"life %d" % number)
            await copied_to(made, "c", every)
            if number == 1:
                made.links["a>b"].start()
            await copied_to(made, "b", every[3:])
        link = made.links["c>b"]
        link.start()
        await eventually(lambda: [each["kind"] for each in link.status()["gaps"]] == ["earlier-life"])
        await link.resolve(TOPIC, "keep-both")
        others = await made.publish("c", 0, 1)
        await eventually(lambda: made.entries("b", "c") == others)
        topic = made.engines["b"].find(TOPIC)
        assert topic is not None
        ((_, upto),) = topic.origins.left_out("a")
        assert upto.ledger < min(life.first.ledger for life in lives(made.engines["b"].store, topic.topic_id)["a"])
