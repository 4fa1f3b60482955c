"""Messages by their identity across a move to another cluster: invariant 5 from the client's side."""

from __future__ import annotations

from collections.abc import Sequence

from client_support import HandChannel, run_consumer, until
from engine_support import message
from pyroaring import BitMap

from replicator.client.consuming.consumer import Consumer
from replicator.client.consuming.moving import EntryIdentities
from replicator.client.errors import ClusterFenced, ConnectError
from replicator.engine.types import Delivery, SubscriptionType
from snapshots.position import Position

SHARED = SubscriptionType.SHARED


def at(entry: int, ledger: int = 1) -> Position:
    return Position(ledger, entry)


def known(entry: int) -> tuple[str, Position]:
    return ("A", at(entry))


def delivered_at(position: Position, entry: int) -> Delivery:
    """Return the message published as ``A``'s entry, as another cluster delivers it."""
    return Delivery(position, 0, 1, None, message(b"%d" % entry), "A", at(entry))


def test_what_was_acknowledged_and_not_confirmed_is_known_where_it_comes_again() -> None:
    moves = EntryIdentities()
    for entry in range(4):
        moves.delivered(at(entry), known(entry))
    moves.confirmed([at(0)], None)
    moves.moved([at(1)], {at(2): BitMap([3])}, [])
    assert moves.delivered(at(1, 9), known(1)) is True
    assert moves.delivered(at(2, 9), known(2)) == BitMap([3])
    assert moves.delivered(at(3, 9), known(3)) is False


def test_a_position_from_before_is_translated_or_remembered_and_never_sent() -> None:
    moves = EntryIdentities()
    for entry in range(3):
        moves.delivered(at(entry), known(entry))
    assert moves.place(at(1), -1, 1) == at(1)
    moves.moved([], {}, [])
    assert moves.place(at(1), -1, 1) is None
    assert moves.delivered(at(11, 9), known(1)) is True
    moves.delivered(at(12, 9), known(2))
    assert moves.place(at(2), -1, 1) == at(12, 9)
    assert moves.place(at(77), -1, 1) is None, "a position that nobody knows could be another message's here"


def test_a_cumulative_acknowledgement_from_before_covers_what_was_delivered_before() -> None:
    moves = EntryIdentities()
    for entry in range(4):
        moves.delivered(at(entry), known(entry))
    assert moves.before_through(at(2)) is None
    moves.moved([], {}, [])
    assert moves.before_through(at(2)) == [at(0), at(1), at(2)]
    assert moves.before_through(at(2, 9)) == [at(0), at(1), at(2), at(3)]


def test_a_consumer_that_moves_does_not_show_again_what_it_acknowledged() -> None:
    async def scenario(consumer: Consumer, channels: list[HandChannel]) -> None:
        first = channels[0]
        first.events.on_deliveries([delivered_at(at(entry), entry) for entry in range(3)])
        messages = [await consumer.receive() for _ in range(3)]
        await consumer.acknowledge(messages[0])
        (request,) = first.asked_for("acknowledge")
        first.events.on_ack_refused(request[0], ClusterFenced("served elsewhere"))
        opened: Sequence[HandChannel] = channels
        HandChannel.__init__.__defaults__ = ("eu-west",)
        try:
            first.events.on_lost(ConnectError("fenced"))
            await until(lambda: len(opened) == 2)
        finally:
            HandChannel.__init__.__defaults__ = ("us-east",)
        second = channels[1]
        assert second.asked_for("acknowledge") == [], "a position of the former cluster was sent to the new one"
        await consumer.acknowledge(messages[1])
        assert second.asked_for("acknowledge") == []
        second.events.on_deliveries([delivered_at(at(10 + entry, 9), entry) for entry in range(3)])
        assert (await consumer.receive()).data() == b"2"
        acknowledged = [ack.position for _, acks in second.asked_for("acknowledge") for ack in acks]
        assert acknowledged == [at(10, 9), at(11, 9)]

    run_consumer(scenario, consumer_type=SHARED, acknowledgement_group_time_ms=0)


def test_what_came_again_is_not_shown_once_it_is_acknowledged_by_its_position_from_before() -> None:
    """The application still has messages of the former cluster in hand when the new one has delivered them too."""

    async def scenario(consumer: Consumer, channels: list[HandChannel]) -> None:
        channels[0].events.on_deliveries([delivered_at(at(entry), entry) for entry in range(3)])
        in_hand = [await consumer.receive() for _ in range(2)]
        opened: Sequence[HandChannel] = channels
        HandChannel.__init__.__defaults__ = ("eu-west",)
        try:
            channels[0].events.on_lost(ConnectError("fenced"))
            await until(lambda: len(opened) == 2)
        finally:
            HandChannel.__init__.__defaults__ = ("us-east",)
        second = channels[1]
        second.events.on_deliveries([delivered_at(at(10 + entry, 9), entry) for entry in range(3)])
        for message_in_hand in in_hand:
            await consumer.acknowledge(message_in_hand)
        for request in second.asked_for("acknowledge"):
            second.events.on_ack_confirmed(request[0])
        assert [message_.data() for message_ in await consumer.receive_many(10)] == [b"2"]

    run_consumer(scenario, consumer_type=SHARED, acknowledgement_group_time_ms=0)


def test_messages_of_a_batch_that_are_acknowledged_from_before_are_not_shown() -> None:
    moves = EntryIdentities()
    moves.delivered(at(0), known(0))
    moves.moved([], {}, [])
    moves.delivered(at(5, 9), known(0))
    assert not moves.settled(at(5, 9), 1)
    assert moves.place(at(0), 1, 3) == at(5, 9)
    assert moves.settled(at(5, 9), 1)
    assert not moves.settled(at(5, 9), 0)
    moves.moved([], {}, [])
    assert not moves.settled(at(5, 9), 1)
