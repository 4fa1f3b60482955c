"""The row of a subscription in the index: what its cursor has when the row is written, in a bounded size."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from engine_support import TOPIC, message, opened, subscribed

from replicator.engine.subscriptions.subscription import Subscription
from replicator.engine.topic import Topic
from replicator.engine.types import Ack
from replicator.index import subscription_states
from replicator.index.subscription_states import SubscriptionStates
from snapshots.ack_vector import AckVector
from snapshots.position import BEFORE_ALL
from snapshots.repository import SubscriptionState


def no_acks(topic: Topic, subscription: Subscription) -> AckVector:
    return AckVector()


def test_a_row_has_what_the_cursor_has_when_it_is_written_not_when_it_was_recorded(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            await topic.publish([message() for _ in range(6)])
            consumer, inbox = await subscribed(topic)
            await inbox.holds(6)
            recorded = SubscriptionState(TOPIC, "sub", 1, BEFORE_ALL, False)
            await consumer.acknowledge([Ack(inbox.positions[at]) for at in (0, 2, 3, 5)])
            state = SubscriptionStates(engine, None).counted(recorded)
            assert state.mark_delete == inbox.positions[0]
            assert (state.acked_beyond, state.holes) == (3, 2)
            assert state.ack_vector is None

    asyncio.run(main())


def test_what_is_gone_or_buried_is_written_as_it_was_recorded(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            await topic.publish([message()])
            await subscribed(topic)
            states = SubscriptionStates(engine, None)
            for recorded in (
                SubscriptionState(TOPIC, "another", 4, BEFORE_ALL, True),
                SubscriptionState(f"{TOPIC}-2", "sub", 4, BEFORE_ALL, True),
                SubscriptionState.buried(TOPIC, "sub", 4),
            ):
                assert states.counted(recorded) is recorded

    asyncio.run(main())


def test_invariant_11_the_vector_is_summed_up_only_while_it_is_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscription_states, "VECTOR_POSITIONS_MAX", 2)

    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            await topic.publish([message() for _ in range(6)])
            consumer, inbox = await subscribed(topic, replicated=True)
            await inbox.holds(6)
            states = SubscriptionStates(engine, no_acks)
            await consumer.acknowledge([Ack(inbox.positions[at]) for at in (1, 3)])
            assert states.exact(topic, topic.subscriptions["sub"]).ack_vector == {}
            await consumer.acknowledge([Ack(inbox.positions[5])])
            state = states.exact(topic, topic.subscriptions["sub"])
            assert state.ack_vector is None
            assert state.acked_beyond == 3

    asyncio.run(main())
