"""The starts that other clusters tell, merged into a subscription of a real engine (DESIGN 4.7; invariants 5 and 6)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from engine_support import TOPIC, message, opened

from replicator.engine.subscriptions.subscription import Subscription
from replicator.engine.topic import Topic
from replicator.sync.exact_state import ExactState
from replicator.sync.pending_acks import PendingAcks
from replicator.sync.topic_acks import TopicAcks
from snapshots.ack_vector import AckVector, OriginAcks
from snapshots.actions import ApplyUpdate
from snapshots.position import BEFORE_ALL, Position
from snapshots.position_set import PositionSet
from snapshots.starts import FROM_THE_FIRST, Start, Starts


class Bench(NamedTuple):
    topic: Topic
    subscription: Subscription
    state: ExactState
    positions: list[Position]

    def tell_of(self, generation: int, starts: Starts) -> bool:
        update = ApplyUpdate("sub", generation, None, "eu", whole=True, starts=starts)
        return self.state.merge_update(self.subscription, update, relay=False)

    def tell(self, starts: Starts, *, position: Position | None = None, acks: AckVector | None = None) -> bool:
        update = ApplyUpdate("sub", 1, position, "eu", acks or AckVector(), whole=acks is not None, starts=starts)
        return self.state.merge_update(self.subscription, update, relay=False)

    def start(self, entries: int) -> Start:
        return Start(self.topic.incarnation, self.positions[entries - 1])

    def left(self) -> list[int]:
        is_consumed = self.subscription.cursor.is_consumed
        return [number for number, position in enumerate(self.positions) if not is_consumed(position)]

    def claims(self) -> list[int]:
        acks = self.state.whole(self.subscription).origins["us"]
        return [number for number, position in enumerate(self.positions) if acks.covers(position)]


def run(path: Path, scenario: Callable[[Bench], Awaitable[None]], *, begins_after: int = 0, exact: bool = True) -> None:
    async def main() -> None:
        async with opened(path, "us") as engine:
            topic = await engine.topic(TOPIC)
            positions = await topic.publish([message(b"%d" % number) for number in range(10)])
            start = positions[begins_after - 1] if begins_after else BEFORE_ALL
            subscription = await topic.subscriptions.create("sub", start, replicated=True)
            origins, ends = topic.origins, topic.trimming.ends
            acks = TopicAcks("us", topic.incarnation, topic.log, origins.high_water, origins.left_out, ends)
            pending = PendingAcks(topic.topic_id, {})
            state = ExactState(acks, pending, topic.origins.high_waters, exact=exact)
            await scenario(Bench(topic, subscription, state, positions))

    asyncio.run(main())


def test_a_start_that_moves_back_uncovers_what_nobody_acknowledged_and_what_was_acknowledged_stays_so(
    tmp_path: Path,
) -> None:
    async def scenario(bench: Bench) -> None:
        await bench.subscription.acknowledge_cumulative(bench.positions[7], None)
        assert bench.claims() == [5, 6, 7]
        said = AckVector({"us": OriginAcks(bench.topic.incarnation, positions=PositionSet([bench.positions[3]]))})
        assert bench.tell({}, acks=said)
        assert bench.left() == [8, 9]
        assert bench.claims() == [3, 5, 6, 7], "it is kept, though it lies before the start"
        assert bench.tell({"us": bench.start(2)})
        assert bench.left() == [2, 4, 8, 9]
        assert bench.claims() == [3, 5, 6, 7]
        assert not bench.tell({"us": bench.start(2)})
        assert not bench.tell({"us": bench.start(4)}), "a later start says nothing"
        assert bench.tell({"us": FROM_THE_FIRST})
        assert bench.left() == [0, 1, 2, 4, 8, 9]

    run(tmp_path, scenario, begins_after=5)


def test_a_cursor_of_an_earlier_version_takes_a_start_and_keeps_what_it_has_acknowledged(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        bench.subscription.cursor.state.starts = {}
        await bench.subscription.acknowledge_cumulative(bench.positions[5], None)
        assert bench.tell({"us": bench.start(8)})
        assert bench.left() == [8, 9]
        assert bench.claims() == [0, 1, 2, 3, 4, 5]
        assert bench.tell({"us": FROM_THE_FIRST})
        assert bench.left() == [6, 7, 8, 9]
        assert bench.claims() == [0, 1, 2, 3, 4, 5]

    run(tmp_path, scenario)


def test_a_start_of_an_earlier_life_at_a_later_position_is_later_and_its_mark_delete_position_does_not_count(
    tmp_path: Path,
) -> None:
    async def scenario(bench: Bench) -> None:
        assert bench.tell({"ap": Start(2, Position(5, 0))})
        assert not bench.tell({"ap": Start(1, Position(7, 0))}, position=bench.positions[6])
        assert bench.left() == list(range(10))
        assert bench.tell({"ap": Start(3, Position(4, 0))}, position=bench.positions[6])
        assert bench.left() == [7, 8, 9]

    run(tmp_path, scenario)


@pytest.mark.parametrize("exact", [True, False])
def test_a_mark_delete_position_counts_only_if_it_was_told_with_no_later_start(tmp_path: Path, exact: bool) -> None:
    async def scenario(bench: Bench) -> None:
        assert not bench.tell({"us": bench.start(5)}, position=bench.positions[6])
        assert bench.left() == list(range(10)), "nobody said that the first five were consumed"
        assert bench.tell({"us": FROM_THE_FIRST}, position=bench.positions[6])
        assert bench.left() == [7, 8, 9]

    run(tmp_path, scenario, exact=exact)


def test_a_mark_delete_position_says_nothing_about_what_was_put_back_below_it(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        bench.state._unproven_through = bench.positions[6]
        for position in bench.positions[:7]:
            assert not bench.tell({}, position=position)
        assert bench.left() == list(range(10))
        assert bench.tell({}, position=bench.positions[7]), "it was mapped to a log that had all of it"
        assert bench.left() == [8, 9]

    run(tmp_path, scenario)


def test_a_seek_claims_all_before_it(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        await bench.subscription.moves.seek(bench.positions[7])
        assert bench.claims() == list(range(7))
        assert bench.subscription.cursor.state.starts == {"us": FROM_THE_FIRST}
        assert not bench.tell_of(2, {"us": bench.start(9)}), "somebody made it again at that moment"
        assert bench.left() == [7, 8, 9]

    run(tmp_path, scenario, begins_after=5)


def test_a_newer_generation_keeps_the_start_of_origins_that_whoever_began_it_does_not_know(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        vector = AckVector({"eu": OriginAcks(3)})
        update = ApplyUpdate("sub", 2, None, "eu", vector, whole=True)
        assert bench.state.merge_update(bench.subscription, update, relay=False)
        assert bench.left() == [5, 6, 7, 8, 9]
        assert bench.claims() == []
        assert bench.state.take(bench.subscription, whole=False)[1], "whoever began it is told of that start"

    run(tmp_path, scenario, begins_after=5)


@pytest.mark.parametrize("relay", [True, False])
def test_a_hub_notes_durably_that_it_must_tell_of_a_generation_in_which_nothing_is_acknowledged(
    tmp_path: Path, relay: bool
) -> None:
    async def scenario(bench: Bench) -> None:
        subscription = bench.subscription
        subscription.cursor.state.take_unannounced()
        subscription.note_announced()
        update = ApplyUpdate("sub", 2, None, "eu", AckVector({"us": OriginAcks(bench.topic.incarnation)}), whole=True)
        assert bench.state.merge_update(subscription, update, relay=relay)
        assert subscription.cursor.state.to_announce == relay, "the store keeps this, also over a crash"
        vector, whole = bench.state.take(subscription, whole=False)
        assert (bool(vector), whole) == (False, relay)

    run(tmp_path, scenario)
