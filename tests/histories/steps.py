"""Steps of a history: possible actions with their arguments, and the conditions under which they are possible.

A step is a value: a name and its arguments. ``draw`` draws one that is possible now. ``possible`` says whether a step
that was drawn earlier is still possible, since shrinking leaves steps out.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from histories.model import Model, Shape

TOPICS: Final = ("t0", "keyed")
NAMED: Final = "named"
"""Name of the topic whose producers use their names in several clusters."""
REPLICATED: Final = ("r-shared", "r-exclusive", "r-keys", "r-failover")
LOCAL: Final = ("l-shared", "l-exclusive")
TYPES: Final = {"shared": "Shared", "exclusive": "Exclusive", "keys": "KeyShared", "failover": "Failover"}
KEYS: Final = ("k1", "k2", "k3")
PRODUCERS: Final = ("orders", "bills")


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a history. Its text is the call of a method of ``World``."""

    name: str
    arguments: Mapping[str, Any]

    def __str__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in self.arguments.items())
        return f"await world.{self.name}({shown})"


Draw = Callable[[random.Random, Model], dict[str, Any] | None]


def up(model: Model) -> list[str]:
    return [name for name in model.shape.clusters if name not in model.down]


def serving(model: Model) -> list[str]:
    """Return the clusters that run and serve their own clients."""
    return [name for name in up(model) if name not in model.moved]


def is_replicated(name: str) -> bool:
    return name.startswith("r-")


def _at(drawn: random.Random, model: Model) -> str | None:
    found = serving(model)
    return drawn.choice(found) if found else None


def _publish(drawn: random.Random, model: Model) -> dict[str, Any] | None:
    if (at := _at(drawn, model)) is None:
        return None
    how = drawn.choice(("single", "single", "batch", "batch", "keyed", "null", "chunks", "compressed", "delayed"))
    return {"at": at, "topic": drawn.choice(TOPICS), "how": how, "count": drawn.randint(1, 6)}


def _publish_named(drawn: random.Random, model: Model) -> dict[str, Any] | None:
    """Draw a step that publishes with a producer's name and sequence ids that other clusters may use, too."""
    if (at := _at(drawn, model)) is None or not model.deduplication:
        return None
    return {
        "at": at,
        "producer": drawn.choice(PRODUCERS),
        "first": drawn.randint(0, 8),
        "count": drawn.randint(1, 4),
        "content": drawn.choice(("same", "same", "other")),
    }


def _subscribe(drawn: random.Random, model: Model) -> dict[str, Any] | None:
    if (at := _at(drawn, model)) is None:
        return None
    name = drawn.choice(REPLICATED * 2 + LOCAL)
    topics = (*TOPICS, NAMED) if model.deduplication else TOPICS
    return {"at": at, "topic": drawn.choice(topics), "name": name, "earliest": drawn.random() < 0.5}


def _existing(drawn: random.Random, model: Model) -> dict[str, Any] | None:
    """Draw an existing subscription, and one of its clusters that runs."""
    found = [
        {"at": cluster, "topic": each.topic, "name": each.name}
        for each in model.subscriptions.values()
        if not each.deleted
        for cluster in sorted(each.clusters)
        if cluster in serving(model) and each.is_at(cluster) and cluster not in each.excluded
    ]
    return drawn.choice(found) if found else None


def _consume(drawn: random.Random, model: Model) -> dict[str, Any] | None:
    found = _existing(drawn, model)
    if found is None:
        return None
    how = drawn.choice(("each", "each", "some", "cumulative", "half batches", "nothing", "negative"))
    return {**found, "count": drawn.randint(1, 12), "how": how, "seed": drawn.randrange(1000)}


def _seek(drawn: random.Random, model: Model) -> dict[str, Any] | None:
    """Draw a seek at a cluster that can tell all others of it. Elsewhere the generations would differ for good."""
    found = _existing(drawn, model)
    if found is None or not all(model.shape.tells(found["at"], other) for other in model.shape.clusters):
        return None
    return {**found, "earliest": drawn.random() < 0.7}


def _skip(drawn: random.Random, model: Model) -> dict[str, Any] | None:
    found = _existing(drawn, model)
    return None if found is None else {**found, "count": drawn.randint(1, 4)}


def _existing_alone(drawn: random.Random, model: Model) -> dict[str, Any] | None:
    return _existing(drawn, model)


def _topic_at(drawn: random.Random, model: Model) -> dict[str, Any] | None:
    at = _at(drawn, model)
    known = sorted(name for name in model.topics if name in TOPICS)
    return None if at is None or not known else {"at": at, "topic": drawn.choice(known)}


def _untrimmed(drawn: random.Random, model: Model) -> dict[str, Any] | None:
    """Draw a topic that still keeps consumed messages, while all clusters run."""
    known = sorted(name for name, topic in model.topics.items() if not topic.trims)
    return {"topic": drawn.choice(known)} if known and not model.down else None


def _trimmed(drawn: random.Random, model: Model) -> dict[str, Any] | None:
    at = _at(drawn, model)
    known = sorted(name for name, topic in model.topics.items() if topic.trims)
    return {"at": at, "topic": drawn.choice(known)} if known and at is not None else None


def _link(drawn: random.Random, model: Model) -> dict[str, Any] | None:
    found = [link for link in model.shape.links if link[0] not in model.down and link not in model.paused]
    return None if not found else dict(zip(("source", "to"), drawn.choice(found), strict=True))


def _paused(drawn: random.Random, model: Model) -> dict[str, Any] | None:
    found = sorted(link for link in model.paused if link[0] not in model.down)
    return None if not found else dict(zip(("source", "to"), drawn.choice(found), strict=True))


def _running(drawn: random.Random, model: Model) -> dict[str, Any] | None:
    at = _at(drawn, model)
    return None if at is None or len(up(model)) < 2 else {"at": at}


def _down(drawn: random.Random, model: Model) -> dict[str, Any] | None:
    return {"at": drawn.choice(sorted(model.down))} if model.down else None


def _publish_and_kill(drawn: random.Random, model: Model) -> dict[str, Any] | None:
    at = _at(drawn, model)
    if at is None or len(up(model)) < 2:
        return None
    return {"at": at, "topic": drawn.choice(TOPICS), "count": drawn.randint(5, 60), "after": drawn.randint(0, 30)}


def _fail_over(drawn: random.Random, model: Model) -> dict[str, Any] | None:
    """Draw a planned failover along a link, while everything runs."""
    if model.down or model.paused or model.moved:
        return None
    source, to = drawn.choice(model.shape.links)
    return {"source": source, "to": to}


def _fail_over_dead(drawn: random.Random, model: Model) -> dict[str, Any] | None:
    return (
        None if model.down or model.moved else dict(zip(("source", "to"), drawn.choice(model.shape.links), strict=True))
    )


def _fail_back(drawn: random.Random, model: Model) -> dict[str, Any] | None:
    if model.down or model.paused or not model.moved:
        return None
    return {"to": drawn.choice(sorted(model.moved))}


def _lose_disk(drawn: random.Random, model: Model) -> dict[str, Any] | None:
    """Draw a cluster that loses its disk, while all clusters run and all links lead both ways."""
    if model.down or model.paused or model.moved or model.shape.name not in ("pair", "mesh"):
        return None
    return {"at": drawn.choice(model.shape.clusters)}


def _nothing(drawn: random.Random, model: Model) -> dict[str, Any] | None:
    return {}


@dataclass(frozen=True, slots=True)
class Kind:
    """Kind of step: its weight when steps are drawn, and whether it takes seconds or deletes a topic."""

    weight: int
    draw: Draw
    slow: bool = False
    deletes: bool = False


KINDS: Final[Mapping[str, Kind]] = {
    "publish": Kind(30, _publish),
    "publish_named": Kind(6, _publish_named),
    "subscribe": Kind(12, _subscribe),
    "consume": Kind(24, _consume),
    "seek": Kind(3, _seek),
    "skip": Kind(2, _skip),
    "clear": Kind(1, _existing_alone),
    "expire": Kind(1, _existing_alone),
    "unsubscribe": Kind(1, _existing_alone),
    "compact": Kind(2, _topic_at),
    "last_message": Kind(3, _topic_at),
    "retain_nothing": Kind(1, _untrimmed),
    "trim": Kind(3, _trimmed),
    "pause": Kind(4, _link),
    "resume": Kind(4, _paused),
    "settle": Kind(3, _nothing),
    "stop": Kind(2, _running, slow=True),
    "kill": Kind(2, _running, slow=True),
    "publish_and_kill": Kind(2, _publish_and_kill, slow=True),
    "start": Kind(8, _down, slow=True),
    "fail_over": Kind(1, _fail_over, slow=True),
    "fail_over_dead": Kind(1, _fail_over_dead, slow=True),
    "fail_back": Kind(3, _fail_back, slow=True),
    "lose_disk": Kind(1, _lose_disk, slow=True),
    "delete_topic": Kind(1, _topic_at, deletes=True),
}


def draw(drawn: random.Random, model: Model, *, slow: bool, deletes: bool) -> Step:
    """Draw a step that is possible now."""
    kinds = [(name, kind) for name, kind in KINDS.items() if (slow or not kind.slow) and (deletes or not kind.deletes)]
    while True:
        ((name, kind),) = drawn.choices(kinds, weights=[kind.weight for _, kind in kinds])
        if (arguments := kind.draw(drawn, model)) is not None:
            return Step(name, arguments)


def possible(step: Step, model: Model) -> bool:
    """Return whether a step that was drawn in a longer history can still be done."""
    given = step.arguments
    if step.name == "start":
        return given["at"] in model.down
    if step.name in ("fail_over", "lose_disk"):
        return not (model.down or model.paused or model.moved)
    if step.name == "fail_over_dead":
        return not (model.down or model.moved)
    if step.name == "fail_back":
        return given["to"] in model.moved and not (model.down or model.paused)
    if "at" in given and given["at"] not in (up(model) if step.name in ("stop", "kill") else serving(model)):
        return False
    if step.name in ("stop", "kill", "publish_and_kill"):
        return len(up(model)) > 1
    if step.name == "resume":
        return (given["source"], given["to"]) in model.paused and given["source"] not in model.down
    if step.name == "pause":
        return (given["source"], given["to"]) not in model.paused and given["source"] not in model.down
    if step.name in ("consume", "seek", "skip", "clear", "expire", "unsubscribe"):
        home = None if is_replicated(given["name"]) else given["at"]
        found = model.subscriptions.get((given["topic"], given["name"], home))
        return found is not None and not found.deleted and given["at"] not in found.excluded
    if step.name == "trim":
        return given["topic"] in model.topics and model.topics[given["topic"]].trims
    if step.name == "retain_nothing":
        return not model.down and given["topic"] in model.topics
    if step.name in ("compact", "last_message", "delete_topic"):
        return given["topic"] in model.topics
    return True


def describe(shape: Shape, steps: list[Step], *, deduplication: bool) -> str:
    """Return the steps as a program that a person can read and run."""
    body = "\n".join(f"    {step}" for step in steps)
    opening = f'async with history(SHAPES["{shape.name}"], deduplication={deduplication}) as world:'
    return f"{opening}\n{body}\n    await world.finish()"
