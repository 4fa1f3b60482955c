"""News from polls of a subscription's state, each given once."""

from __future__ import annotations

import random
from typing import Any

from replicator.drills.observations import FIRST_INDEX, LAST_INDEX, Place
from replicator.drills.traffic.ack_news import AckNews


def state(mark_delete: str, runs: Any = (), batches: Any = (), generation: int = 0) -> dict[str, Any]:
    return {
        "generation": generation,
        "mark_delete": mark_delete,
        "individually_deleted": [list(run) for run in runs],
        "batch_acks": dict(batches),
    }


def whole(first: tuple[int, int], last: tuple[int, int]) -> tuple[Place, Place]:
    return Place(*first, FIRST_INDEX), Place(*last, LAST_INDEX)


def test_each_poll_shows_only_what_is_new() -> None:
    news = AckNews()
    assert news.news(state("0:-1")) == []
    assert news.news(state("1:3")) == [whole((0, -1), (1, 3))]
    assert news.news(state("1:3")) == []
    assert news.news(state("1:3", [("1:6", "1:7")])) == [whole((1, 6), (1, 7))]
    assert news.news(state("1:3", [("1:6", "1:9")])) == [whole((1, 6), (1, 9))]
    assert news.news(state("1:9")) == [whole((1, 3), (1, 9))]


def test_indexes_of_a_batch_are_shown_as_runs_when_there_are_more_of_them() -> None:
    news = AckNews()
    assert news.news(state("1:3", batches={"1:5": [0, 1, 4]})) == [
        whole((0, -1), (1, 3)),
        (Place(1, 5, 0), Place(1, 5, 1)),
        (Place(1, 5, 4), Place(1, 5, 4)),
    ]
    assert news.news(state("1:3", batches={"1:5": [0, 1, 4]})) == []
    assert news.news(state("1:3", batches={"1:5": [0, 1, 2, 3, 4]})) == [(Place(1, 5, 0), Place(1, 5, 4))]


def test_a_new_generation_is_new_as_a_whole() -> None:
    news = AckNews()
    news.news(state("1:9", [("1:11", "1:11")]))
    assert news.news(state("1:4", [("1:11", "1:11")], generation=1)) == [
        whole((0, -1), (1, 4)),
        whole((1, 11), (1, 11)),
    ]


def test_all_news_together_cover_what_the_last_poll_shows() -> None:
    source = random.Random(7)
    entries, acked, news, found = 60, set[int](), AckNews(), list[tuple[Place, Place]]()
    while len(acked) < entries:
        acked |= set(source.sample(range(entries), 5))
        low = next((entry for entry in range(entries) if entry not in acked), entries) - 1
        runs = [(f"1:{entry}", f"1:{entry}") for entry in sorted(acked) if entry > low]
        found += news.news(state(f"1:{low}" if low >= 0 else "0:-1", runs))
        covered = {entry for entry in range(entries) if any(a <= Place(1, entry, 0) <= b for a, b in found)}
        assert covered == acked
