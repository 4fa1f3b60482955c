"""Links that stand still on the way from the source of a switch to its target, and the topics that they hold up. Pure.

Invariant (DESIGN §3): 12, a switch that cannot end is refused with the command that opens the way.

A link stands still for a topic at a gap, at a halt, or because an operator paused it. A gap and a pause last until an
operator acts. A link asks by itself again about a halt, and a policy of the link may end a gap. A link also stands
still for a topic that its destination deleted (:mod:`replicator.failover.deleted_topics`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from replicator.links.gaps import policies_for
from replicator.links.schema_announcer import SCHEMAS
from replicator.topology import Link, Topology


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Reason why a topic's messages do not get to the target, with the command that opens the way."""

    text: str
    lasting: bool
    """Whether the obstacle lasts until an operator acts. Otherwise the obstacle may end by itself in a moment."""


@dataclass(frozen=True, slots=True)
class StoppedLink:
    """Link that copies nothing, or not all topics."""

    link: Link
    paused: bool
    halted: Mapping[str, Obstacle]
    """By topic, the obstacle at which the link stands still."""

    @classmethod
    def of(cls, link: Link, answer: Mapping[str, Any]) -> StoppedLink:
        """Return what the status of ``link`` says at the worker of its source."""
        halted = {
            str(topic): Obstacle(f"link {link.key} has halted {topic}: {reason}", lasting=False)
            for topic, reason in answer["halted"].items()
            if not reason.startswith(SCHEMAS)  # the topic's messages go on
        }
        for gap in answer["gaps"]:
            policies = gap.get("policies", policies_for(str(gap["kind"])))  # earlier versions do not name them
            halted[str(gap["topic"])] = Obstacle(
                f"link {link.key} has a gap ({gap['kind']}) in {gap['topic']}: {gap['detail']}",
                lasting=link.on_gap not in policies,
            )
        return cls(link, bool(answer["paused"]), halted)

    def stops(self, topic: str) -> bool:
        return self.paused or topic in self.halted

    def obstacle(self, topic: str) -> Obstacle:
        if not self.paused:
            return self.halted[topic]
        link = self.link
        named = f" --name {link.name}" if link.name else ""
        resume = f"`replicator links resume -f FILE --from {link.source} --to {link.destination}{named}`"
        return Obstacle(f"link {link.key} is paused: {resume} lets it go on", lasting=True)


@dataclass(frozen=True, slots=True)
class Way:
    """Way of messages from ``source`` to ``target`` over the links of a topology."""

    topology: Topology
    source: str
    target: str
    stopped: Mapping[str, StoppedLink] = field(default_factory=dict)
    """By key, links that copy nothing, or not all topics."""
    silent: frozenset[str] = frozenset()
    """Clusters that did not say how their links stand."""

    def links(self) -> dict[str, list[Link]]:
        """Return, by cluster, the links that can carry messages of the source."""
        found: dict[str, list[Link]] = {}
        for link in self.topology.links:
            if link.source != self.target and (link.source == self.source or link.forward):
                found.setdefault(link.source, []).append(link)
        return found

    def topics(self) -> Collection[str] | None:
        """Return the topics that links may hold up; None if links may hold up all topics."""
        if any(each.paused for each in self.stopped.values()):
            return None
        return {topic for each in self.stopped.values() for topic in each.halted}

    def obstacles(self, topics: Collection[str]) -> dict[str, Obstacle]:
        """Return those of ``topics`` whose messages do not get to the target, each with the reason. This takes some
        20 to 200 µs for each topic."""
        return {topic: each for topic in topics if (each := self.obstacle(topic)) is not None}

    def obstacle(self, topic: str) -> Obstacle | None:
        """Return why messages of the topic do not get to the target; None if a way is open."""
        stopped = [key for key, each in self.stopped.items() if each.stops(topic)]
        if not stopped:
            return None
        held_up_at = self.topology.held_up_at(self.source, self.target, topic, stopped)
        found = [self.stopped[link.key].obstacle(topic) for link in held_up_at]
        if not found:
            return None
        return Obstacle("; ".join(each.text for each in found), all(each.lasting for each in found))
