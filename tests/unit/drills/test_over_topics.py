"""A drill of several topics: each has figures of its own, and the figures of all are those of each together."""

from __future__ import annotations

import io
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicator.cli.output import SafeConsole
from replicator.drills.errors import DrillError
from replicator.drills.jobs import DrillOptions, plan_jobs
from replicator.drills.measures import Measures, measure
from replicator.drills.observations import DrillSubscription, FailoverKind, Observations
from replicator.drills.over_topics import TopicStatistics
from replicator.drills.report import build_report, render_table
from replicator.drills.report_html import render_html
from replicator.drills.timeline import ObservationsIncomplete
from replicator.engine.types import SubscriptionType
from snapshots.position import Position

SUBSCRIPTIONS = (
    DrillSubscription("ordered", SubscriptionType.EXCLUSIVE, cumulative=True),
    DrillSubscription("shared", SubscriptionType.SHARED, cumulative=False),
)
FAILOVER_S = 50.0


def observed(seed: int, topics: int, *, only: int | None = None) -> Observations:
    """Return random observations of a drill with a kill at 50 s, drawn from ``seed``.

    With ``only``, return those of that topic alone.
    """
    seen = Observations(SUBSCRIPTIONS, topics if only is None else 1)
    for name in ("a", "b"):
        seen.clusters.code(name)
    number = seen.failed_over(FailoverKind.KILL, "a", "b", FAILOVER_S, FAILOVER_S)
    seen.returned("a", 90.0)
    for topic in range(topics):
        source = random.Random(seed * 1000 + topic)
        mark = source.randrange(40)
        if only not in (None, topic):
            continue
        shown_as = topic if only is None else 0
        seen.high_water(number, "b", Position(1, mark), shown_as)
        for entry in range(source.randrange(1, 30)):
            message = seen.add_message(source.choice("xyz"), shown_as)
            sent_s = source.uniform(0, 80)
            seen.sent(message, sent_s)
            cluster = "a" if sent_s < FAILOVER_S else "b"
            if source.random() < 0.9:
                seen.confirmed(message, cluster, Position(1, entry), -1, sent_s + 0.1)
            for subscription in SUBSCRIPTIONS:
                for _ in range(source.choice((0, 1, 1, 1, 2))):
                    at_s = sent_s + source.uniform(0.2, 20)
                    where = "a" if at_s < FAILOVER_S else "b"
                    place = Position(1, entry)
                    seen.received(subscription.name, "c", where, message, cluster, place, -1, 0, at_s)
                    if source.random() < 0.8:
                        seen.acked(subscription.name, where, message, at_s + 0.1)
    return seen


@given(st.integers(0, 10**6), st.integers(1, 6))
def test_the_figures_of_all_topics_are_those_of_each_measured_alone(seed: int, topics: int) -> None:
    together = measure(observed(seed, topics))
    alone: list[Measures] = [measure(observed(seed, topics, only=topic)) for topic in range(topics)]
    for figure in ("published", "confirmed", "consumed_unique", "lost", "repeated", "out_of_order", "late",
                   "rpo_messages", "repeated_acked_before_kill", "repeated_acked_over_1s_before_kill"):  # fmt: skip
        assert getattr(together, figure) == sum(getattr(each, figure) for each in alone), figure
    over = together.over_topics
    of_topics: list[tuple[TopicStatistics, list[float | None]]] = [
        (over.lost, [each.lost for each in alone]),
        (over.repeated, [each.repeated for each in alone]),
        (over.recover_seconds, [each.rto_seconds for each in alone]),
    ]
    for measured, of_each in of_topics:
        known = sorted(each for each in of_each if each is not None)
        assert measured.topics == len(known)
        if known:
            assert measured.worst == pytest.approx(known[-1])
            assert measured.worst_topic is not None
            assert of_each[measured.worst_topic] == pytest.approx(known[-1])
            assert measured.p50 == pytest.approx(known[(len(known) * 50 + 99) // 100 - 1])
            assert measured.p99 == pytest.approx(known[(len(known) * 99 + 99) // 100 - 1])
    assert together.rto_seconds == (None if over.recover_seconds.worst is None else over.recover_seconds.worst)


def test_a_topic_without_a_high_water_mark_is_no_guess() -> None:
    seen = observed(1, 2)
    seen.topics = 3
    with pytest.raises(ObservationsIncomplete, match="when clients left a"):
        measure(seen)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"topics": 20, "messages": 100}, "each needs 10 messages; give --messages 200"),
        ({"topics": 500}, "4,500 consumers, and a drill has at most 4,000 with --client own; give at most 444 topics"),
        ({"topics": 100, "client": "pulsar"}, "at most 200 with --client pulsar; give at most 22 topics"),
    ],
)
def test_more_topics_than_there_is_room_for_are_refused_with_how_many_there_may_be(
    tmp_path: Path, wrong: dict[str, Any], message: str
) -> None:
    pytest.importorskip("pulsar")
    plain = DrillOptions(10_000, engine="embedded", scenario="planned", out_dir=tmp_path)
    with pytest.raises(DrillError, match=message):
        plan_jobs(replace(plain, **wrong))


def test_each_topic_has_a_name_of_its_own_and_one_topic_keeps_the_name_of_before(tmp_path: Path) -> None:
    plain = DrillOptions(10_000, engine="embedded", scenario="planned", out_dir=tmp_path)
    (one,), _ = plan_jobs(plain)
    (many,), _ = plan_jobs(replace(plain, topics=20))
    assert len(one.topics) == 1
    assert one.topics[0].rpartition("-")[2].isdigit()
    assert len(set(many.topics)) == 20
    assert many.topics[19].endswith("-19")


def test_the_screen_and_the_page_show_the_worst_topic_of_each_figure_and_fit() -> None:
    seen = observed(7, 6)
    measures = measure(seen)
    names = [f"persistent://public/drill/t-{number}" for number in range(6)]
    names[5] += "<b>\x1b[2J"
    measures = replace(
        measures, over_topics=replace(measures.over_topics, lost=replace(measures.over_topics.lost, worst_topic=5))
    )
    faults = dict.fromkeys(("missing", "duplicated", "reordered", "mismapped", "ack_mismatch"), 0)
    needed = {"snapshot_mappings": 3, "subscription_updates": 4, "wall_seconds": 5.0}
    extras = {**needed, "topics": 6, "differences": [f"namespace n{number}" for number in range(300)]}
    report = build_report("kill-primary", "embedded", 1, measures, faults, extras, topics=names)
    console = SafeConsole(file=io.StringIO(), width=120, highlight=False, markup=False, emoji=False)
    console.print(render_table(report))
    assert isinstance(console.file, io.StringIO)
    screen = console.file.getvalue()
    assert "Over 6 topics" in screen
    assert "public/drill/t-5<b>\\u001b[2J" in screen
    assert "\x1b" not in screen
    assert "292 more differences" in screen
    page = render_html(report, measures.series)
    assert "Over 6 topics" in page
    assert "t-5&lt;b&gt;" in page
    one = build_report("kill-primary", "embedded", 1, measures, faults, needed)
    assert "Over " not in render_html(one, measures.series).replace("Over time", "")
