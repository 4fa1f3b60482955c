"""Pauses between attempts at a topic whose brokers fail."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from asynchronous import asynchronous

from replicator.apache.errors import BridgeError
from replicator.apache.topic_work import PAUSE_MAX_SECONDS, TopicWork
from replicator.running.timeouts import timeout


def test_pauses_grow_and_begin_anew_once_brokers_answer_again() -> None:
    work = TopicWork("t", lambda _: False)
    pauses = []
    for _ in range(12):
        work.fails("reading", BridgeError("away"))
        pauses.append(work.pause_seconds("reading"))
    assert pauses == sorted(pauses)
    assert (pauses[0] < 0.5, pauses[-1]) == (True, PAUSE_MAX_SECONDS)
    work.retry_now()
    work.fails("reading", BridgeError("the topic is not loaded yet"))
    assert work.pause_seconds("reading") < 0.5


@asynchronous
async def test_a_part_that_goes_well_again_ends_the_pauses_of_the_others() -> None:
    work = TopicWork("t", lambda _: False)
    for part in ("reading", "subscriptions"):
        for _ in range(20):  # so that its pause would be half a minute
            work.fails(part, BridgeError("away"))
    attempts = 0
    pausing, second = asyncio.Event(), asyncio.Event()

    async def compare() -> None:
        nonlocal attempts
        attempts += 1
        (pausing if attempts == 1 else second).set()
        raise BridgeError("the bridge does not read this topic")

    keeping = asyncio.ensure_future(work.keep("subscriptions", compare))
    await pausing.wait()
    await asyncio.sleep(0)  # it pauses now
    work.succeeded("reading")
    async with timeout(10):
        await second.wait()
    keeping.cancel()
    with suppress(asyncio.CancelledError):
        await keeping
