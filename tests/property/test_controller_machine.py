"""State sync among model clusters, whatever links, workers and consumers do.

At every step the model checks that no applied position skips a message (invariant 5), that mappings are true, and that
positions are monotone (6). ``drain`` lets everything come to rest (7), and asks whether every living cluster knows all
that was consumed, though another is dead for ever (8).
"""

from __future__ import annotations

from typing import Final

import hypothesis.strategies as st
from controller_model import Kind, MarkerMoves, Model, ModelCluster
from examples import examples
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

NAMES: Final = ("us-east", "eu-west", "ap-south")
MESH: Final = tuple((a, b) for a in NAMES for b in NAMES if a != b)
ONE_WAY: Final = (("us-east", "eu-west"), ("eu-west", "us-east"), ("us-east", "ap-south"))
"""The two of the seed that copy each other, and a third that only receives."""
FEEDER: Final = (("us-east", "eu-west"), ("eu-west", "us-east"), ("ap-south", "us-east"))
"""The third only feeds one of the two: the other never gets its messages."""
STAR: Final = tuple(link for link in MESH if "us-east" in link)

some = st.integers(0, 50)
stalls = st.sets(st.sampled_from(MESH), max_size=3)
subscription_names = st.sampled_from(["orders", "audit"])


class ControllerMachine(RuleBasedStateMachine):
    """Machine of controllers in linked clusters. Subclasses set ``clusters`` and ``topologies``."""

    topologies: tuple[tuple[tuple[str, str], ...], ...]
    cluster_count: int

    @initialize(data=st.data(), moves=st.sampled_from(MarkerMoves))
    def start(self, data: st.DataObject, moves: MarkerMoves) -> None:
        links = data.draw(st.sampled_from(self.topologies), label="links")
        self.model = Model(NAMES[: self.cluster_count], links, moves)
        self.model.alive[0].create("orders")

    def some_alive(self, choice: int) -> ModelCluster:
        alive = self.model.alive
        return alive[choice % len(alive)]

    @rule(choice=some, messages=st.integers(1, 4))
    def publish(self, choice: int, messages: int) -> None:
        self.some_alive(choice).append(Kind.MESSAGE, [None] * messages)

    @rule(choice=some, name=subscription_names)
    def subscribe(self, choice: int, name: str) -> None:
        self.some_alive(choice).create(name)

    @rule(choice=some, name=subscription_names, messages=st.integers(1, 6))
    def consume(self, choice: int, name: str, messages: int) -> None:
        cluster = self.some_alive(choice)
        if name in cluster.subscriptions:
            cluster.consume(name, messages)

    @rule(choice=some, name=subscription_names, messages=st.integers(0, 6))
    def seek(self, choice: int, name: str, messages: int) -> None:
        cluster = self.some_alive(choice)
        if name in cluster.subscriptions:
            cluster.seek(name, messages)

    @rule(choice=some, entries=st.sampled_from([1, 2, 5]))
    def carry_a_few(self, choice: int, entries: int) -> None:
        links = [link for link in self.model.links if self.model.is_linked(*link)]
        if links:
            self.model.deliver(*links[choice % len(links)], entries)

    @rule(choice=some, entries=st.sampled_from([1, 3]))
    def handle_a_few_markers(self, choice: int, entries: int) -> None:
        self.some_alive(choice).handle(entries)

    @rule(rounds=st.integers(1, 4), stalled=stalls, asleep=st.sets(st.sampled_from(NAMES), max_size=2))
    def run_for_a_while(self, rounds: int, stalled: set[tuple[str, str]], asleep: set[str]) -> None:
        for _ in range(rounds):
            self.model.run_round(stalled, asleep)

    @rule(elapsed_ms=st.sampled_from([50, 100, 200, 1_000, 40_000]))
    def let_time_pass(self, elapsed_ms: int) -> None:
        self.model.now_ms += elapsed_ms

    @rule(choice=some, handled_again=st.integers(0, 4), with_index=st.booleans())
    def restart(self, choice: int, handled_again: int, with_index: bool) -> None:
        self.some_alive(choice).restart(handled_again, with_index=with_index)

    @rule(choice=some)
    def cut_off_for_ever(self, choice: int) -> None:
        if self.cluster_count == 3 and not self.model.dead:
            self.model.dead.add(self.some_alive(choice).name)

    @rule(
        choice=some,
        publisher=some,
        bursts=st.integers(0, 2),
        rounds=st.integers(0, 3),
        stalled=stalls,
        then_cut=st.booleans(),
        early=st.booleans(),
    )
    def drain(
        self,
        choice: int,
        publisher: int,
        bursts: int,
        rounds: int,
        stalled: set[tuple[str, str]],
        then_cut: bool,
        early: bool,
    ) -> None:
        """Consume everything in one cluster, before or after the snapshots are made; every other cluster must come to
        know.

        Meanwhile some links stall; then they resume, or the source of one of them is never seen again.
        """
        model, cluster = self.model, self.some_alive(choice)
        model.settle()
        source = self.some_alive(publisher)
        for _ in range(bursts):
            source.append(Kind.MESSAGE, [None])
            for _ in range(rounds):
                model.run_round(stalled)
        if early:
            model.run_round(stalled, asleep=NAMES)
        else:
            model.settle(stalled)
        consumed = dict.fromkeys(cluster.subscriptions, 0)
        for name in consumed:
            consumed[name] += cluster.consume(name, 10_000)
        if then_cut and self.cluster_count == 3 and not model.dead:
            model.dead |= {link[0] for link in sorted(stalled)[:1]} - {cluster.name}
        model.settle()
        for name in consumed:
            consumed[name] += cluster.consume(name, 10_000)
        model.settle()
        for other in model.alive:
            for name in cluster.subscriptions:
                if other is not cluster and model.is_linked(cluster.name, other.name):
                    self.check_knows(cluster, other, name, consumed_here=consumed.get(name, 0) > 0)

    def check_knows(self, cluster: ModelCluster, other: ModelCluster, name: str, *, consumed_here: bool) -> None:
        # Nobody passes on what another has told: who is not linked to that one learns of it with our own next move.
        is_mesh = len(self.model.links) == self.cluster_count * (self.cluster_count - 1)
        if (not consumed_here or name not in other.subscriptions) and (not is_mesh or self.model.dead):
            return
        its, ours = other.subscriptions[name], cluster.subscriptions[name]
        assert its.generation >= ours.generation, f"{other.name} was not told of the seek"
        # What `other` got and `cluster` never can, nobody has consumed. What only others consumed they have to tell.
        has_same = other.identities() <= cluster.identities() and its.generation == ours.generation
        if has_same and consumed_here and self.model.is_linked(other.name, cluster.name):
            assert other.has_consumed_all(name), f"{other.name} never learned all of {name} (invariants 7, 8)"

    def teardown(self) -> None:
        if hasattr(self, "model"):
            for choice in range(len(self.model.alive)):
                self.drain(choice, choice + 1, 1, 0, set(), then_cut=False, early=choice % 2 == 0)


class TwoClusters(ControllerMachine):
    topologies = (MESH[:1] + MESH[2:3],)
    cluster_count = 2


class ThreeClusters(ControllerMachine):
    topologies = (MESH, MESH, STAR, ONE_WAY, FEEDER)
    cluster_count = 3


TestTwoClusters = TwoClusters.TestCase
TestTwoClusters.settings = settings(settings.default, max_examples=examples(2) * settings.default.max_examples)
TestThreeClusters = ThreeClusters.TestCase
TestThreeClusters.settings = settings(settings.default, max_examples=examples(4) * settings.default.max_examples)
