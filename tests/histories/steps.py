"""Steps of a history: possible actions with their arguments, and the conditions under which they are possible.

A step is a value: a name and its arguments. :func:`histories.drawing.draw` draws one that is possible now.
:func:`possible` says whether a step that was drawn earlier is still possible, since shrinking leaves steps out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from histories.model import Model
from histories.shapes import Shape

PLAIN: Final = "plain"
"""Name of a topic without replicated subscriptions. Only messages make links look at it."""
SYNCED: Final = ("t0", "keyed")
TOPICS: Final = (*SYNCED, PLAIN)
NAMED: Final = "named"
"""Name of the topic whose producers use their names in several clusters."""
PARTED: Final = "parts"
"""Name of the topic with partitions."""
PARTITIONS_MAX: Final = 5
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


def up(model: Model) -> list[str]:
    return [name for name in model.shape.clusters if name not in model.down]


def serving(model: Model) -> list[str]:
    """Return the clusters that run and serve their own clients."""
    return [name for name in up(model) if name not in model.moved]


def is_replicated(name: str) -> bool:
    return name.startswith("r-")


def possible(step: Step, model: Model) -> bool:
    """Return whether a step that was drawn in a longer history can still be done."""
    given = step.arguments
    if step.name == "start":
        return given["at"] in model.down
    if step.name in ("fail_over", "lose_disk", "back_up", "restore", "reclaim_while_trimming"):
        if model.down or model.paused or model.moved:
            return False
        if step.name == "fail_over":
            return True
        return not model.without_postgres and (step.name != "restore" or given["at"] in model.backed_up)
    if step.name == "fail_over_dead":
        return not (model.down or model.moved or model.dropped)
    if step.name == "join":
        return given["at"] == model.joining and not (
            model.down or model.paused or model.moved or model.without_postgres
        )
    if step.name == "fail_back":
        return given["to"] in model.moved and not (model.down or model.paused)
    if step.name in ("postgres_away", "postgres_back"):
        is_away = given["at"] in model.without_postgres
        return is_away == (step.name == "postgres_back") and (is_away or given["at"] in up(model))
    if "at" in given and given["at"] not in (up(model) if step.name in ("stop", "kill") else serving(model)):
        return False
    if step.name in ("stop", "kill", "publish_and_kill"):
        return len(up(model)) > 1
    if step.name == "resume":
        return (given["source"], given["to"]) in model.paused and given["source"] not in model.down
    if step.name == "pause":
        return (given["source"], given["to"]) not in model.paused and given["source"] not in model.down
    if step.name == "dry_run":
        return not model.down and not model.moved and not model.dropped
    if step.name == "grow":
        return not model.down and not model.paused and not model.moved and given["to"] > model.partitions
    if step.name == "drop_link":
        carries = (given["source"], given["to"]) not in model.paused
        return carries and not (model.down or model.moved or any(topic.trims for topic in model.topics.values()))
    if step.name == "subscribe_at":
        known = model.find(given["topic"], given["name"], given["at"], replicated=is_replicated(given["name"]))
        return known is None and given["topic"] in model.topics
    if step.name == "subscribe_apart":
        made = (given["topic"], given["name"], None) in model.subscriptions
        return not made and not model.down and given["other"] in serving(model)
    if step.name == "unsubscribe_in_use" and (model.down or model.paused or given["other"] not in serving(model)):
        return False
    if step.name in (
        "consume", "rest", "seek", "reset_by_time", "skip", "clear", "expire", "unsubscribe", "unsubscribe_in_use"
    ):  # fmt: skip
        home = None if is_replicated(given["name"]) else given["at"]
        found = model.subscriptions.get((given["topic"], given["name"], home))
        return found is not None and not found.deleted and given["at"] not in found.excluded
    if step.name == "trim":
        topic = model.topics.get(given["topic"])
        return topic is not None and (topic.trims or topic.ages)
    if step.name in ("retain_again", "set_ttl"):
        return not model.down and given["topic"] in model.topics
    if step.name == "retain_nothing":
        return not model.down and not model.dropped and given["topic"] in model.topics
    if step.name in ("compact", "compact_and_read", "consume_all", "last_message", "delete_topic", "make_anew"):
        return given["topic"] in model.topics
    if step.name in ("publish", "subscribe") and given["topic"] == PARTED:
        return model.partitions > 0
    return True


def describe(shape: Shape, steps: list[Step], *, deduplication: bool, official: bool = False) -> str:
    """Return the steps as a program that a person can read and run."""
    body = "\n".join(f"    {step}" for step in steps)
    client = ", official=True" if official else ""
    opening = f'async with history(SHAPES["{shape.name}"], deduplication={deduplication}{client}) as world:'
    return f"{opening}\n{body}\n    await world.finish()"
