"""A state machine drives the topics of a pattern consumer against the real registry of watchers, over a connection that
loses, repeats and reorders notifications, and breaks. Whatever happened: after one poll the consumer's topics are the
model's, in their latest incarnation, each subscribed to once."""

from __future__ import annotations

from examples import examples
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from replicator.client.consuming.topic_set import (
    POLL_ANSWER_SECONDS_MAX,
    RETRY_MAX_SECONDS,
    Action,
    CloseConsumers,
    Poll,
    SubscribeTopic,
    TopicSet,
)
from replicator.engine.topics.topic_list import topic_list_hash
from replicator.engine.topics.topic_patterns import parse_pattern
from replicator.engine.topics.topic_watch import TopicListing, TopicsChanged, TopicWatch, TopicWatchRegistry

NAMESPACE = "public/default"
NAMES = [f"persistent://{NAMESPACE}/{local}" for local in ("a1", "a2", "a3", "b1")]
MATCHING = frozenset(NAMES[:3])
PERIOD_SECONDS = 60.0


class TopicSetMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.topics: dict[str, int] = {}
        """The model: what there is, and in which incarnation."""
        self.incarnations = 0
        self.registry = TopicWatchRegistry()
        self.watch: TopicWatch | None = None
        self.wire: list[TopicsChanged | TopicListing] = []
        self.asked: list[str] = []
        """Hashes of polls that the worker has not seen yet."""
        self.core = TopicSet(period_seconds=PERIOD_SECONDS, now=0.0)
        self.running: list[SubscribeTopic | CloseConsumers] = []
        self.connected_to: dict[str, int] = {}
        """Incarnations of the topics that the consumer is connected to; a topic may be gone."""

    # The cluster.

    @rule(name=st.sampled_from(NAMES), heard=st.booleans())
    def create(self, name: str, heard: bool) -> None:
        if name not in self.topics:
            self.incarnations += 1
            self.topics[name] = self.incarnations
            if heard and self.watch is not None:
                self.watch.pattern.created(name)

    @rule(name=st.sampled_from(NAMES), heard=st.booleans())
    def delete(self, name: str, heard: bool) -> None:
        if self.topics.pop(name, None) is not None and heard and self.watch is not None:
            self.watch.pattern.deleted(name)

    @rule()
    def notify(self) -> None:
        if self.watch is not None and (changed := self.watch.take()) is not None:
            self.wire.append(changed)

    @rule()
    def answer_poll(self) -> None:
        if self.watch is not None and self.asked:
            topics = self.registry.topics(NAMESPACE, self.topics.keys())
            for _ in self.watch.pattern.refresh(topics):
                pass
            self.wire.append(self.watch.listing(self.asked.pop(0)))

    # The connection.

    @rule()
    def connect(self) -> None:
        if self.watch is None:
            self.watch = self.registry.open(1, parse_pattern("a.*"))
            self.asked.append(self.core.hash)
            self.core.connected(self.now)

    @rule()
    def lose_connection(self) -> None:
        if self.watch is not None:
            self.registry.close(self.watch)
            self.watch = None
            self.wire.clear()
            self.asked.clear()
            self.core.disconnected()

    @rule(at=st.integers(0, 9))
    def lose_frame(self, at: int) -> None:
        if self.wire:
            self.wire.pop(at % len(self.wire))

    @rule(at=st.integers(0, 9))
    def repeat_frame(self, at: int) -> None:
        if self.wire:
            self.wire.append(self.wire[at % len(self.wire)])

    @rule(at=st.integers(0, 9))
    def deliver_frame(self, at: int) -> None:
        if self.wire:
            self.hear(self.wire.pop(at % len(self.wire)))

    # The consumer.

    @rule(at=st.integers(0, 9), works=st.booleans())
    def finish_action(self, at: int, works: bool) -> None:
        if self.running:
            self.finish(self.running.pop(at % len(self.running)), works=works)

    @rule(name=st.sampled_from(NAMES))
    def notice_end(self, name: str) -> None:
        if name in self.connected_to and self.connected_to[name] != self.topics.get(name):
            del self.connected_to[name]
            self.do(self.core.ended(name, self.now))

    @rule(seconds=st.sampled_from([0.05, 1.0, 31.0, 61.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        if self.now >= self.core.next_at():
            self.do(self.core.tick(self.now))

    @invariant()
    def each_topic_has_one_attempt_at_a_time(self) -> None:
        names = [action.topic for action in self.running]
        assert len(names) == len(set(names))

    @invariant()
    def the_hash_is_that_of_the_names(self) -> None:
        assert self.core.hash == topic_list_hash(self.core.names)

    def teardown(self) -> None:
        """Let one poll arrive, of a new connection or of the present one; nothing is lost from then on."""
        if self.watch is None or self.incarnations % 2:
            self.lose_connection()
            self.connect()
        else:
            self.wire.clear()  # what was on its way is lost
            self.asked.clear()
            self.now += POLL_ANSWER_SECONDS_MAX + PERIOD_SECONDS
            self.do(self.core.tick(self.now))
        self.finish_everything()
        assert len(self.asked) == 1
        self.answer_poll()
        for frame in self.wire:
            self.hear(frame)
        self.wire.clear()
        for _ in range(4):
            self.finish_everything()
            self.now += RETRY_MAX_SECONDS
            self.do(self.core.tick(self.now))
        self.finish_everything()
        wanted = {name: incarnation for name, incarnation in self.topics.items() if name in MATCHING}
        assert self.connected_to == wanted
        assert self.core.names == wanted.keys()
        assert self.core.settled

    # Helpers.

    def finish_everything(self) -> None:
        for name in NAMES:
            self.notice_end(name)
        while self.running:
            self.finish(self.running.pop(0), works=True)

    def hear(self, frame: TopicsChanged | TopicListing) -> None:
        match frame:
            case TopicsChanged(change, names_hash):
                self.do(self.core.changed(change.added, change.deleted, names_hash, self.now))
            case TopicListing(names_hash, names):
                self.do(self.core.listed(names, names_hash, self.now))

    def do(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Poll(known):
                    assert self.watch is not None, "a poll without a connection"
                    assert known == self.core.hash
                    self.asked.append(known)
                case _:
                    self.running.append(action)

    def finish(self, action: SubscribeTopic | CloseConsumers, *, works: bool) -> None:
        match action:
            case CloseConsumers(name):
                self.connected_to.pop(name, None)
                self.do(self.core.on_closed(name, self.now))
            case SubscribeTopic(name):
                if name not in self.topics or not works:
                    self.connected_to.pop(name, None)
                    self.do(self.core.failed(name, self.now, gone=name not in self.topics))
                else:
                    self.connected_to[name] = self.topics[name]
                    self.do(self.core.subscribed(name, 0, self.now))


TestTopicSet = TopicSetMachine.TestCase
TestTopicSet.settings = settings(max_examples=examples(150), stateful_step_count=60, deadline=None)
