"""When the topics of one worker ask for snapshots: as one alone would while few move, and seldom while many do.

The topics are :class:`~snapshots.scheduling.SnapshotScheduler` with one budget, and a clock that the test moves.
"""

from __future__ import annotations

from typing import Final

from hypothesis import given
from hypothesis import strategies as st

from snapshots.pacing import BURST_SNAPSHOTS, SNAPSHOT_AGE_MS_MAX, SNAPSHOTS_A_SECOND, SnapshotBudget
from snapshots.scheduling import MESSAGES_MAX, SnapshotScheduler

INTERVAL_MS: Final = 200
PEER: Final = frozenset({"eu-west"})

events = st.lists(
    st.tuples(st.integers(0, 4_000), st.integers(0, 39), st.sampled_from([1, 1, 1, 10, 600, MESSAGES_MAX])),
    max_size=150,
)
"""(Pause before it, topic, number of messages.)"""


class Worker:
    """Worker with topics: their messages come at given times, and they ask for snapshots when these are due."""

    def __init__(self, topics: int, budget: SnapshotBudget) -> None:
        self.now_ms = 0
        self.topics = [SnapshotScheduler(budget) for _ in range(topics)]
        self.waits_since: dict[int, int] = {}
        """Time at which the first message came that no snapshot covers, by topic."""
        self.waiting = dict.fromkeys(range(topics), 0)
        """Number of messages that no snapshot covers, by topic."""
        self.requests: list[tuple[int, int]] = []
        """Time and topic of each."""
        self.waits: list[int] = []

    def run_until(self, end_ms: int) -> None:
        while due := self._next_due():
            at_ms, topic = min(due)
            if at_ms > end_ms:
                break
            self.now_ms = at_ms
            self.topics[topic].on_request(at_ms)
            self.requests.append((at_ms, topic))
            self.waits.append(at_ms - self.waits_since.pop(topic))
            self.waiting[topic] = 0
        self.now_ms = end_ms

    def publish(self, topic: int, messages: int) -> None:
        self.topics[topic].on_messages(messages, PEER, self.now_ms, INTERVAL_MS, others_ask=False)
        self.waits_since.setdefault(topic, self.now_ms)
        self.waiting[topic] += messages
        self._next_due()  # as the shell, which sets its timer

    def _next_due(self) -> list[tuple[int, int]]:
        return [(self.topics[topic].due_ms(self.now_ms, INTERVAL_MS), topic) for topic in self.waits_since]


@given(events, st.booleans())
def test_no_topic_waits_longer_than_a_mapping_may_be_old_and_the_rate_holds(
    happens: list[tuple[int, int, int]], exact: bool
) -> None:
    """Invariant 11, and no topic starves."""
    budget = SnapshotBudget(exact=exact)
    worker = Worker(40, budget)
    full = 0
    for pause_ms, topic, messages in happens:
        worker.run_until(worker.now_ms + pause_ms)
        worker.publish(topic, messages)
        if worker.waiting[topic] >= MESSAGES_MAX:
            full += 1
            due_ms = worker.topics[topic].due_ms(worker.now_ms, INTERVAL_MS)
            assert due_ms <= worker.now_ms + INTERVAL_MS, "1,000 messages do not wait for a turn"
    worker.run_until(worker.now_ms + 1_000_000)
    assert not worker.waits_since
    assert all(wait_ms <= budget.age_ms_max(INTERVAL_MS) for wait_ms in worker.waits)
    by_topic: dict[int, int] = {}
    for at_ms, topic in worker.requests:
        assert at_ms - by_topic.get(topic, -INTERVAL_MS) >= INTERVAL_MS
        by_topic[topic] = at_ms


@given(st.lists(st.tuples(st.integers(0, 700), st.sampled_from([1, 3])), max_size=100))
def test_a_lone_topic_asks_as_often_as_without_a_budget(happens: list[tuple[int, int]]) -> None:
    worker = Worker(1, SnapshotBudget())
    expected: list[int] = []
    for pause_ms, messages in happens:
        worker.run_until(worker.now_ms + pause_ms)
        if not expected or expected[-1] <= worker.now_ms:  # else these messages are covered by the one that is due
            expected.append(max(worker.now_ms, expected[-1] + INTERVAL_MS) if expected else worker.now_ms)
        worker.publish(0, messages)
        worker.run_until(worker.now_ms)
    worker.run_until(worker.now_ms + 1_000)
    assert [at_ms for at_ms, _ in worker.requests] == expected


def test_500_topics_that_all_move_ask_every_ten_seconds_each() -> None:
    seconds, worker = 60, Worker(500, SnapshotBudget())
    for tick in range(seconds * 20):  # each of the topics has a message a second
        worker.run_until(tick * 50)
        for topic in range(25 * (tick % 20), 25 * (tick % 20) + 25):
            worker.publish(topic, 1)
    allowed = BURST_SNAPSHOTS + seconds * SNAPSHOTS_A_SECOND + 500 * seconds * 1000 // SNAPSHOT_AGE_MS_MAX
    assert len(worker.requests) <= allowed
    assert len(worker.requests) / (500 * seconds) < 0.12, "requests a message"
    assert max(worker.waits) <= SNAPSHOT_AGE_MS_MAX


def test_a_topic_whose_turn_is_far_away_asks_at_once_after_a_thousand_messages() -> None:
    budget = SnapshotBudget()
    while budget.reserve(0, SNAPSHOT_AGE_MS_MAX) < SNAPSHOT_AGE_MS_MAX:
        pass
    topic = SnapshotScheduler(budget)
    topic.on_messages(MESSAGES_MAX - 1, PEER, 0, INTERVAL_MS, others_ask=False)
    assert topic.due_ms(0, INTERVAL_MS) > 5_000
    topic.on_messages(1, PEER, 100, INTERVAL_MS, others_ask=False)
    assert topic.due_ms(100, INTERVAL_MS) == 100
    topic.on_request(100)
    topic.on_messages(MESSAGES_MAX, PEER, 150, INTERVAL_MS, others_ask=False)
    assert topic.due_ms(150, INTERVAL_MS) == 100 + INTERVAL_MS


def test_topics_that_are_at_rest_take_no_turns() -> None:
    """10,000 topics that nobody asks about leave the budget to the one that moves."""
    budget = SnapshotBudget()
    for _ in range(10_000):
        SnapshotScheduler(budget).on_messages(1, PEER, 0, INTERVAL_MS, others_ask=False)
    topic = SnapshotScheduler(budget)
    topic.on_messages(1, PEER, 0, INTERVAL_MS, others_ask=False)
    assert topic.due_ms(0, INTERVAL_MS) == 0
