"""Comparison of subscriptions' acknowledgements over links, at the places of the clients, until they have arrived.

Messages acknowledged at the cut must be acknowledged at the links' destinations. That takes a moment, so lacking ones
are looked at again until a deadline. Messages that became open again at the source, by a seek or a reset, are left out.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Final

from replicator.pipeline.verify.brokers.acknowledged import SharedEntries, common_of, difference, only_acked_at_source
from replicator.pipeline.verify.brokers.differences import Difference
from replicator.pipeline.verify.brokers.entry_log import EntryLog, Int64s
from replicator.pipeline.verify.comparison.acked import Acked

POLL_SECONDS: Final = 0.25

States = Mapping[str, Acked]
"""Subscriptions by name."""


async def compare_acknowledgements(
    pairs: Collection[tuple[str, str]],
    places: Mapping[str, tuple[str, EntryLog]],
    first: Mapping[str, States],
    read: Callable[[str], Awaitable[States | None]],
    deadline: float,
) -> tuple[list[Difference], int]:
    """Return the differences, and the number of subscriptions compared. ``pairs`` are of clusters, source and
    destination.

    ``places`` has, by cluster, the name of its clients' place, and its log. ``first`` has the acknowledgements at the
    cut; ``read`` returns the present ones, or None for a cluster that is lost. Differences with a lost cluster stay.
    ``deadline`` is on
    :func:`time.monotonic`."""
    common = {
        pair: common_of(places[pair[0]][1], places[pair[1]][1])
        for pair in sorted(pairs)
        if pair[0] in places and pair[1] in places and first.get(pair[0])
    }
    waiting = {(*pair, name): _NOTHING for pair in common for name in first[pair[0]]}
    subscriptions = len({name for *_, name in waiting})
    while waiting:
        clusters = {cluster for source, destination, _ in waiting for cluster in (source, destination)}
        now = {cluster: await read(cluster) for cluster in sorted(clusters)}
        found: dict[tuple[str, str, str], Int64s] = {}
        for source, destination, name in waiting:
            here, there = now[source], now[destination]
            if here is None or there is None:
                if len(before := waiting[source, destination, name]):  # nobody can say that they have arrived
                    found[source, destination, name] = before
                continue
            if name not in here:
                continue
            lacking = _lacking(common[source, destination], first[source][name], here[name], there.get(name))
            if len(lacking):
                found[source, destination, name] = lacking
        waiting = found
        if not waiting or time.monotonic() >= deadline:
            break
        await asyncio.sleep(POLL_SECONDS)
    return [
        difference(common[source, destination], at, name, places[source][0], places[destination][0])
        for (source, destination, name), at in waiting.items()
    ], subscriptions


def _lacking(common: SharedEntries, first: Acked, here: Acked, there: Acked | None) -> Int64s:
    found = only_acked_at_source(common, first, there)
    log = common.source
    rows = common.at_source[found]
    return found[here.contains(log.ledger[rows], log.entry[rows])]


_NOTHING: Final[Int64s] = EntryLog().ledger
