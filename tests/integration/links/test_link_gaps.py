"""A link stops, and says so, where going on would lose messages or join two histories."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from engine_support import TOPIC, eventually, marker, message
from link_support import Web, link_of, web

from replicator.engine.engine import EngineSettings
from replicator.engine.errors import StoreFull
from replicator.engine.policies import Retention, TopicPolicies
from replicator.links.errors import NotResolved
from replicator.topology import Link as LinkSpec

pytestmark = pytest.mark.usefixtures("shortest_link_pauses")

NOTHING_KEPT = EngineSettings(policies=TopicPolicies(retention=Retention(age_seconds_max=0, bytes_max=0)))


class AuditRecorder:
    """An index that only hears what was done."""

    def __init__(self) -> None:
        self.audited: list[tuple[str, str, str]] = []
        self.details: list[Mapping[str, Any]] = []

    def audit(self, actor: str, action: str, subject: str, detail: Mapping[str, Any] | None = None) -> None:
        self.audited.append((actor, action, subject))
        self.details.append(detail or {})

    def link_state(self, link_key: str, topic: str, **state: Any) -> None: ...

    def link_gone(self, link_key: str) -> None: ...


async def trim(made: Web, cluster: str, topic: str = TOPIC) -> None:
    """Trim all but the last block, as if no link held the log back."""
    found = made.engines[cluster].find(topic)
    assert found is not None
    held = dict(found.holds.positions)
    found.holds.positions.clear()
    await made.engines[cluster].maintenance.run_once()
    found.holds.positions.update(held)


async def again(made: Web, key: str) -> None:
    """Replace the link by a new one, as a restart of its worker does."""
    await made.links[key].stop()
    made.links[key].detach()
    made.links[key] = link_of(made, made.links[key].spec)
    made.links[key].start()


@asynccontextmanager
async def with_gap(path: Path, spec: LinkSpec, *more: LinkSpec) -> AsyncIterator[tuple[Web, list[bytes], list[bytes]]]:
    """``a`` has copied three messages to ``b``, and trimmed the next three before they were copied; what was copied,
    and what is left."""
    async with web(path, [spec, *more], settings=NOTHING_KEPT) as made:
        copied = await made.publish("a", 0, 3)
        await eventually(lambda: made.entries("b", "a") == copied)
        await made.links[spec.key].stop()
        await made.publish("a", 3, 3)
        left = await made.publish("a", 6, 3)
        await trim(made, "a")
        assert made.entries("a", "a") == left
        await again(made, spec.key)
        try:
            yield made, copied, left
        finally:
            for link in made.links.values():
                await link.stop()


def gaps(made: Web, key: str = "a>b") -> list[tuple[str, str]]:
    return [(each["topic"], each["kind"]) for each in made.links[key].status()["gaps"]]


def test_a_link_stops_where_messages_were_trimmed_before_they_were_copied(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def main() -> None:
        async with with_gap(tmp_path, LinkSpec("a", "b")) as (made, copied, _):
            await eventually(lambda: gaps(made) == [(TOPIC, "trimmed")])
            other = await made.publish("a", 0, 3, "other")
            await eventually(lambda: made.entries("b", "a", "other") == other)
            for _attempt in range(3):
                await made.servers["b"].stop()
                await eventually(lambda: made.links["a>b"].state != "idle")
                await made.servers["b"].start()
                await eventually(lambda: made.links["a>b"].state == "idle")
            assert gaps(made) == [(TOPIC, "trimmed")]
            assert made.entries("b", "a") == copied
            assert made.links["a>b"].status()["gap_count"] == 1

    asyncio.run(main())
    assert capsys.readouterr().out.count("link halted a topic") == 1, "it is logged once, not at every connection"


def test_an_operator_makes_a_link_go_over_a_gap_and_it_is_recorded_at_both_ends(tmp_path: Path) -> None:
    async def main() -> None:
        async with with_gap(tmp_path, LinkSpec("a", "b")) as (made, copied, left):
            await eventually(lambda: gaps(made))
            link = made.links["a>b"]
            with pytest.raises(NotResolved, match="has no gap"):
                await link.resolve("persistent://public/default/none", "skip-and-record")
            index = link._topics._index = link._topics.ending._index = AuditRecorder()
            await link.resolve(TOPIC, "skip-and-record")
            await eventually(lambda: made.entries("b", "a") == copied + left)
            assert gaps(made) == []
            assert index.audited == [
                ("operator", "resolve", "link a>b"),
                ("link a>b", "skip-and-record", TOPIC),
            ]
            (skip,) = link.status()["skipped"]
            assert (skip["topic"], skip["kind"], skip["policy"]) == (TOPIC, "trimmed", "skip-and-record")
            assert skip["at_ms"] > 0
            (hole,) = made.engines["b"].find(TOPIC).origins.left_out("a")  # type: ignore[union-attr]
            assert hole[0].entry == 2
            await again(made, "a>b")
            more = await made.publish("a", 9, 1)
            await eventually(lambda: made.entries("b", "a") == copied + left + more)
            assert made.links["a>b"].status()["skipped"] == [skip], "also after a restart"

    asyncio.run(main())


def test_a_link_goes_over_gaps_by_itself_where_its_policy_says_so(tmp_path: Path) -> None:
    async def main() -> None:
        spec = LinkSpec("a", "b", on_gap="skip-and-record")
        async with with_gap(tmp_path, spec) as (made, copied, left):
            await eventually(lambda: made.entries("b", "a") == copied + left)
            assert len(made.links["a>b"].status()["skipped"]) == 1
            assert len(made.engines["b"].find(TOPIC).origins.left_out("a")) == 1  # type: ignore[union-attr]

    asyncio.run(main())


def test_an_operator_who_ends_a_gap_knows_of_the_missing_messages_of_every_origin(tmp_path: Path) -> None:
    async def main() -> None:
        specs = [LinkSpec("a", "h"), LinkSpec("h", "s", forward=True)]
        async with web(tmp_path, specs, settings=NOTHING_KEPT) as made:
            copied = [await made.publish("a", 0, 3)]
            await eventually(lambda: made.entries("h", "a") == copied[0])
            copied.append(await made.publish("h", 0, 3))
            await eventually(lambda: [made.entries("s", origin) for origin in "ah"] == copied)
            await made.links["h>s"].stop()
            missing = await made.publish("a", 3, 3)
            await eventually(lambda: made.entries("h", "a") == copied[0] + missing)
            await made.publish("h", 3, 3)
            left = await made.publish("h", 6, 1)
            await trim(made, "h")
            await again(made, "h>s")
            try:
                await eventually(lambda: gaps(made, "h>s") == [(TOPIC, "trimmed")])
                (gap,) = made.links["h>s"].status()["gaps"]
                assert gap["detail"].startswith("messages of h after ")
                assert ", of a after " in gap["detail"]
                index = made.links["h>s"]._topics.ending._index = AuditRecorder()
                await made.links["h>s"].resolve(TOPIC, "skip-and-record")
                await eventually(lambda: made.entries("s", "h") == copied[1] + left)
                assert index.audited == [("link h>s", "skip-and-record", TOPIC)] * 2
                skipped = [each["detail"] for each in made.links["h>s"].status()["skipped"]]
                assert [each.split(" after ")[0] for each in skipped] == ["messages of h", "messages of a"]
                more = await made.publish("a", 6, 1)
                await eventually(lambda: made.entries("s", "a") == copied[0] + more)
                copy = made.engines["s"].find(TOPIC)
                assert copy is not None
                assert [len(copy.origins.left_out(origin)) for origin in "ah"] == [1, 1]
            finally:
                await made.links["h>s"].stop()

    asyncio.run(main())


@pytest.mark.parametrize("on_gap", ["stop", "skip-and-record"])
def test_a_gap_that_was_ended_stays_so_though_the_destination_gets_no_block_that_says_it(
    tmp_path: Path, on_gap: str
) -> None:
    async def main() -> None:
        async with web(tmp_path, [LinkSpec("a", "b", on_gap=on_gap)], settings=NOTHING_KEPT) as made:
            copied = await made.publish("a", 0, 3)
            await eventually(lambda: made.entries("b", "a") == copied)
            await made.links["a>b"].stop()
            await made.publish("a", 3, 3)
            await made.engines["a"].find(TOPIC).writing.marker(marker(), local=True)  # type: ignore[union-attr]
            await trim(made, "a")
            assert made.entries("a", "a") == []
            await again(made, "a>b")
            if on_gap == "stop":
                await eventually(lambda: gaps(made) == [(TOPIC, "trimmed")])
                await made.links["a>b"].resolve(TOPIC, "skip-and-record")
            await eventually(lambda: made.links["a>b"].status()["skipped"] and gaps(made) == [])
            try:
                await again(made, "a>b")
                await eventually(lambda: made.links["a>b"].state == "idle")
                assert gaps(made) == []
                more = await made.publish("a", 6, 1)
                await eventually(lambda: made.entries("b", "a") == copied + more)
                assert len(made.links["a>b"].status()["skipped"]) == 1
                assert len(made.engines["b"].find(TOPIC).origins.left_out("a")) == 1  # type: ignore[union-attr]
            finally:
                await made.links["a>b"].stop()

    asyncio.run(main())


def test_a_skip_that_a_full_store_refuses_is_recorded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with with_gap(tmp_path, LinkSpec("a", "b")) as (made, copied, left):
            await eventually(lambda: gaps(made))
            link, writer = made.links["a>b"], made.engines["a"].writer
            index = link._topics.ending._index = AuditRecorder()

            async def refuse(*_: Any, **__: Any) -> None:
                raise StoreFull("full")

            with monkeypatch.context() as patched:
                patched.setattr(writer, "put", refuse)
                patched.setattr(writer, "put_many", refuse)
                for _ in range(3):
                    with pytest.raises(NotResolved, match="full"):
                        await link.resolve(TOPIC, "skip-and-record")
            assert link.status()["skipped"] == index.audited == []
            await link.resolve(TOPIC, "skip-and-record")
            await eventually(lambda: made.entries("b", "a") == copied + left)
            assert len(link.status()["skipped"]) == len(index.audited) == 1

    asyncio.run(main())


def test_a_gap_that_goes_on_where_one_was_ended_is_ended_by_one_decision(tmp_path: Path) -> None:
    async def main() -> None:
        async with web(tmp_path, [LinkSpec("a", "b")], settings=NOTHING_KEPT) as made:
            copied = await made.publish("a", 0, 3)
            await eventually(lambda: made.entries("b", "a") == copied)
            for first in (3, 6):
                await made.links["a>b"].stop()
                await made.publish("a", first, 3)
                await made.engines["a"].find(TOPIC).writing.marker(marker(), local=True)  # type: ignore[union-attr]
                await trim(made, "a")
                assert made.entries("a", "a") == []
                await again(made, "a>b")
                await eventually(lambda: gaps(made) == [(TOPIC, "trimmed")])
                await made.links["a>b"].resolve(TOPIC, "skip-and-record")
                assert gaps(made) == []
            try:
                await again(made, "a>b")
                await eventually(lambda: made.links["a>b"].state == "idle")
                assert gaps(made) == []
                assert len(made.links["a>b"].status()["skipped"]) == 2
                more = await made.publish("a", 9, 1)
                await eventually(lambda: made.entries("b", "a") == copied + more)
            finally:
                await made.links["a>b"].stop()

    asyncio.run(main())


def test_a_topic_is_copied_anew_where_the_policy_says_so(tmp_path: Path) -> None:
    async def main() -> None:
        async with with_gap(tmp_path, LinkSpec("a", "b", on_gap="copy-anew")) as (made, _, left):
            await eventually(lambda: made.entries("b", "a") == left)
            assert made.engines["b"].find(TOPIC).log.entries == len(left)  # type: ignore[union-attr]

    asyncio.run(main())


def test_a_copy_is_not_deleted_while_it_has_messages_of_its_own(tmp_path: Path) -> None:
    async def main() -> None:
        spec = LinkSpec("a", "b", on_gap="copy-anew")
        async with web(tmp_path, [spec], settings=NOTHING_KEPT) as made:
            copied = await made.publish("a", 0, 3)
            await eventually(lambda: made.entries("b", "a") == copied)
            own = await made.publish("b", 0, 3)
            await made.links["a>b"].stop()
            await made.publish("a", 3, 6)
            await trim(made, "a")
            await again(made, "a>b")
            await eventually(
                lambda: "published here" in made.links["a>b"].status()["halted"].get(TOPIC, ""), "the refusal"
            )
            assert made.entries("b", "b") == own
            with pytest.raises(NotResolved, match=r"the destination refuses copy-anew: .*published here"):
                await made.links["a>b"].resolve(TOPIC, "copy-anew")
            await again(made, "a>b")
            await eventually(lambda: "published here" in made.links["a>b"].status()["halted"].get(TOPIC, ""))
            await made.links["a>b"].stop()

    asyncio.run(main())


def test_a_copy_is_not_deleted_while_it_has_messages_of_others_that_the_source_lacks(tmp_path: Path) -> None:
    async def main() -> None:
        async with with_gap(tmp_path, LinkSpec("a", "b"), LinkSpec("c", "b")) as (made, copied, _):
            others = await made.publish("c", 0, 2)
            await eventually(lambda: made.entries("b", "c") == others and gaps(made))
            (gap,) = made.links["a>b"].status()["gaps"]
            assert "--policy copy-anew" in gap["detail"]
            with pytest.raises(NotResolved, match=r"the destination refuses copy-anew: .*'a' does not have all"):
                await made.links["a>b"].resolve(TOPIC, "copy-anew")
            (gap,) = made.links["a>b"].status()["gaps"]
            assert "--policy copy-anew" not in gap["detail"], "it is known by now that this is refused"
            assert f"--from a --to b --topic {TOPIC} --policy skip-and-record`" in gap["detail"]
            await made.links["a>b"].resolve(TOPIC, "skip-and-record")
            assert gaps(made) == []
            assert (made.entries("b", "a"), made.entries("b", "c")) == (copied, others)

    asyncio.run(main())


@pytest.mark.parametrize("on_gap", [None, "skip-and-record"])
def test_a_topic_made_anew_is_never_spliced_without_a_decision(tmp_path: Path, on_gap: str | None) -> None:
    async def main() -> None:
        spec = LinkSpec("a", "b") if on_gap is None else LinkSpec("a", "b", on_gap=on_gap)
        async with web(tmp_path, [spec]) as made:
            old = await made.publish("a", 0, 3)
            await eventually(lambda: made.entries("b", "a") == old)
            await made.engines["a"].deleting.delete(TOPIC)
            await (await made.engines["a"].topic(TOPIC)).publish([message(b"anew")])
            await eventually(lambda: gaps(made) == [(TOPIC, "made-anew")])
            with pytest.raises(NotResolved, match="skip-and-record cannot end the gap"):
                await made.links["a>b"].resolve(TOPIC, "skip-and-record")
            assert made.entries("b", "a") == old
            link = made.links["a>b"]
            index = link._topics._index = link._topics.ending._index = AuditRecorder()
            await link.resolve(TOPIC, "copy-anew")
            await eventually(lambda: made.entries("b", "a") == [message(b"anew")])
            assert index.details[-1]["messages_deleted"] == len(old)

    asyncio.run(main())


def test_a_destination_that_has_nothing_yet_starts_at_what_is_left_and_knows_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with web(tmp_path, [LinkSpec("a", "b")], settings=NOTHING_KEPT, started=False) as made:
            await made.publish("a", 0, 3)
            left = await made.publish("a", 3, 3)
            await trim(made, "a")
            made.links["a>b"].start()
            await eventually(lambda: made.entries("b", "a") == left)
            assert gaps(made) == []
            assert len(made.engines["b"].find(TOPIC).origins.left_out("a")) == 1  # type: ignore[union-attr]

    asyncio.run(main())


def test_a_destination_that_got_nothing_because_nothing_was_left_is_no_gap(tmp_path: Path) -> None:
    """All that a published was trimmed before the link was made; what is left here is of another cluster."""

    async def main() -> None:
        specs = [LinkSpec("x", "a"), LinkSpec("a", "b")]
        async with web(tmp_path, specs, settings=NOTHING_KEPT, started=False) as made:
            await made.publish("a", 0, 3)
            made.links["x>a"].start()
            others = await made.publish("x", 0, 3)
            await eventually(lambda: made.entries("a", "x") == others)
            await trim(made, "a")
            assert made.entries("a", "a") == []
            link = made.links["a>b"]
            link.start()
            await eventually(lambda: link.state == "idle" and link.backlog_entries() == 0)
            await again(made, "a>b")
            try:
                await eventually(lambda: made.links["a>b"].state == "idle")
                assert gaps(made) == []
                left = await made.publish("a", 3, 2)
                await eventually(lambda: made.entries("b", "a") == left)
                await again(made, "a>b")
                await eventually(lambda: made.links["a>b"].state == "idle")
                assert gaps(made) == []
            finally:
                await made.links["a>b"].stop()

    asyncio.run(main())


@pytest.mark.parametrize("on_gap", ["stop", "copy-anew"])
def test_a_destination_that_lost_its_copy_is_told_from_one_that_never_had_any(tmp_path: Path, on_gap: str) -> None:
    async def main() -> None:
        async with web(tmp_path, [LinkSpec("a", "b", on_gap=on_gap)], settings=NOTHING_KEPT) as made:
            copied = await made.publish("a", 0, 3)
            await eventually(lambda: made.entries("b", "a") == copied)
            left = await made.publish("a", 3, 3)
            await eventually(lambda: made.entries("b", "a") == copied + left)
            await trim(made, "a")
            await made.links["a>b"].stop()
            await made.engines["b"].deleting.delete(TOPIC)
            await again(made, "a>b")
            try:
                if on_gap == "stop":
                    await eventually(lambda: gaps(made) == [(TOPIC, "trimmed")])
                    assert made.engines["b"].find(TOPIC) is None
                    await made.links["a>b"].resolve(TOPIC, "skip-and-record")
                await eventually(lambda: made.entries("b", "a") == left)
                assert gaps(made) == []
            finally:
                await made.links["a>b"].stop()

    asyncio.run(main())


@pytest.mark.parametrize("on_gap", ["stop", "copy-anew"])
def test_what_a_source_lacks_of_another_cluster_is_waited_for_where_it_comes_on_another_way(
    tmp_path: Path, on_gap: str
) -> None:
    """c has trimmed a's messages before its link to b is made; a's own link is slow. Nothing may be left out at b."""

    async def main() -> None:
        specs = [LinkSpec("a", "b"), LinkSpec("a", "c"), LinkSpec("c", "b", forward=True, on_gap=on_gap)]
        async with web(tmp_path, specs, started=False) as made:
            published = await made.publish("a", 0, 9)
            made.links["a>c"].start()
            await eventually(lambda: made.entries("c", "a") == published)
            copy = made.engines["c"].find(TOPIC)
            assert copy is not None
            own = await made.publish("c", 0, 1)
            copy.holds.positions.clear()
            middle = copy.log.next_after(copy.log.first)  # type: ignore[arg-type]
            for _ in range(3):
                middle = copy.log.next_after(middle)  # type: ignore[arg-type]
            await copy.trimming.trim(middle)  # type: ignore[arg-type]
            assert len(made.entries("c", "a")) < len(published)
            made.links["c>b"].start()
            await eventually(lambda: gaps(made, "c>b") == [(TOPIC, "trimmed")])
            made.links["a>b"].start()
            await eventually(lambda: made.entries("b", "a") == published)
            await eventually(lambda: made.entries("b", "c") == own)
            assert gaps(made, "c>b") == made.links["c>b"].status()["skipped"] == []
            assert made.engines["b"].find(TOPIC).origins.left_out("a") == []  # type: ignore[union-attr]

    asyncio.run(main())


def test_what_was_left_out_on_the_way_to_a_source_is_told_onwards(tmp_path: Path) -> None:
    async def main() -> None:
        policy: dict[str, Any] = {"on_gap": "skip-and-record"}
        second = LinkSpec("b", "c", forward=True, **policy)
        async with with_gap(tmp_path, LinkSpec("a", "b", **policy), second) as (made, _, left):
            await eventually(lambda: made.entries("c", "a")[-3:] == left)
            holes = [made.engines[name].find(TOPIC).origins.left_out("a") for name in "bc"]  # type: ignore[union-attr]
            assert holes[0] == holes[1]
            assert len(holes[0]) == 1

    asyncio.run(main())
