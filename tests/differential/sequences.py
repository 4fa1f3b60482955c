"""Random sequences of operations by two producers and three consumers. Each step ends before the next begins.

Each consumer has its own subscription, of three types, so that the sequence alone decides what each sees.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Final

import pulsar
from differential.harness import At, all_of, data, said, send_all
from hypothesis import strategies as st

TYPES: Final = ("Exclusive", "Shared", "Failover")
COUNTED: Final = ("Shared",)
"""Types of subscription for which a broker counts redeliveries; see ``counts-on-one-consumer`` in
docs/compatibility.md."""
ACKS_LEAVE_SECONDS: Final = 0.2
"""Acknowledgements are grouped for 0.1 s by the client."""

WHO = st.integers(0, 2)
STEPS = st.one_of(
    st.tuples(st.just("send"), st.integers(0, 1), st.integers(1, 5)),
    st.tuples(st.just("batch"), st.integers(0, 1), st.integers(2, 5)),
    st.tuples(st.just("receive"), WHO, st.just(0)),
    st.tuples(st.just("acknowledge"), WHO, st.integers(0, 9)),
    st.tuples(st.just("cumulative"), WHO, st.integers(0, 9)),
    st.tuples(st.just("redeliver"), WHO, st.just(0)),
    st.tuples(st.just("reject"), WHO, st.integers(0, 9)),
    st.tuples(st.just("seek"), WHO, st.integers(0, 30)),
    st.tuples(st.just("again"), WHO, st.just(0)),
    st.tuples(st.just("anew"), WHO, st.just(0)),
    st.tuples(st.just("last"), WHO, st.just(0)),
)
SEQUENCES = st.tuples(st.booleans(), st.lists(STEPS, min_size=3, max_size=14))


@dataclass(slots=True)
class _Consumer:
    kind: str
    consumer: Any
    held: list[Any]
    """Received, and not acknowledged."""


def follow(at: At, by_index: bool, steps: list[tuple[str, int, int]]) -> list[Any]:
    """Carry the steps out, and say what each showed."""
    ids: list[Any] = []
    trace: list[Any] = []

    def subscribed(kind: str) -> Any:
        return at.consumer(
            kind,
            consumer_type=getattr(pulsar.ConsumerType, kind),
            batch_index_ack_enabled=by_index,
            negative_ack_redelivery_delay_ms=50,
        )

    producers = [at.producer(producer_name=f"p{number}") for number in range(2)]
    batching = [at.producer(batching_enabled=True, batching_max_publish_delay_ms=10_000) for _ in range(2)]
    consumers = [_Consumer(kind, subscribed(kind), []) for kind in TYPES]

    def received(who: _Consumer) -> list[Any]:
        got = all_of(who.consumer)
        who.held.extend(got)
        counts = who.kind in COUNTED
        return [(data(each), each.redelivery_count()) if counts else data(each) for each in got]

    for step, which, number in [*steps, *(("receive", who, 0) for who in range(3))]:
        if step in ("send", "batch"):
            producer = (producers if step == "send" else batching)[which]
            first = len(ids)
            ids.extend(send_all(producer, range(first, first + number)))
            trace.append((step, [each.batch_index() for each in ids[first:]]))
            continue
        who = consumers[which]
        if step in ("redeliver", "reject", "seek"):
            received(who)  # else what is on its way to the client may come before or after
        chosen = who.held[number % len(who.held)] if who.held else None
        match step:
            case "receive":
                trace.append((step, received(who)))
            case "acknowledge" if chosen is not None:
                trace.append((step, said(lambda: who.consumer.acknowledge(chosen))))  # noqa: B023
                who.held.remove(chosen)
            case "cumulative" if chosen is not None:
                trace.append((step, said(lambda: who.consumer.acknowledge_cumulative(chosen))))  # noqa: B023
            case "redeliver":
                time.sleep(ACKS_LEAVE_SECONDS)
                who.consumer.redeliver_unacknowledged_messages()
                who.held.clear()
                trace.append((step, received(who)))
            case "reject" if chosen is not None:
                time.sleep(ACKS_LEAVE_SECONDS)
                who.consumer.negative_acknowledge(chosen)
                trace.append((step, received(who)))
                # Two copies of the rejected message exist now; either may be acknowledged.
            case "seek" if ids:
                time.sleep(ACKS_LEAVE_SECONDS)
                trace.append((step, said(lambda: who.consumer.seek(ids[number % len(ids)]))))  # noqa: B023
                who.held.clear()
                trace.append((step, received(who)))
            case "again" | "anew":
                ending = said(who.consumer.unsubscribe if step == "anew" else who.consumer.close)
                who.consumer, who.held = subscribed(who.kind), []
                trace.append((step, ending, received(who)))
            case "last":
                last = who.consumer.get_last_message_id()
                trace.append((step, ids.index(last) if last in ids else None))
    return trace
