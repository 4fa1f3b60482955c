"""Drawing of steps: for each kind of step, a function draws the arguments, or returns None if no such step can be
done now."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from histories.model import Model
from histories.steps import (
    LOCAL,
    NAMED,
    PARTED,
    PARTITIONS_MAX,
    PLAIN,
    PRODUCERS,
    REPLICATED,
    SYNCED,
    TOPICS,
    Step,
    is_replicated,
    serving,
    up,
)

PUBLISHED: Final = ("single", "single", "batch", "batch", "keyed", "null", "mixed", "chunks", "compressed", "delayed")

LONE_SHARE: Final = 0.8
"""Share of the messages of a topic with keys that are published where its first one was. Then some clusters publish
nothing to the topic, and their logs have only markers of their own."""

RECLAIM_SHARE: Final = 0.1
"""Share of the reclaims that are drawn where links lead back. There retention deletes nothing in the middle anyway."""

MEANWHILE: Final = (None, None, "command", "target", "source", "trim at target", "delete_topic at target")
"""Events in the middle of a failover; None where nothing happens."""
MEANWHILE_PLANNED: Final = (*MEANWHILE, "trim at source", "delete_topic at source")
WHILE_RECLAIMING: Final = (None, None, "kill_other", "trim", "delete_topic")
"""Events at another cluster in the middle of a reclaim; None where nothing happens."""

Draw = Callable[[random.Random, Model], dict[str, Any] | None]


def _at(drawn: random.Random, model: Model) -> str | None:
    found = serving(model)
    return drawn.choice(found) if found else None


def _consumed(model: Model) -> list[str]:
    """Return the topics to draw from. Some are in the list twice, to be drawn more often."""
    return [*SYNCED, *SYNCED, PLAIN, *([PARTED] if model.partitions else [])]


def _name_for(drawn: random.Random, topic: str) -> str:
    """Draw the name of a subscription. A name says whether it is replicated."""
    return drawn.choice(LOCAL if topic == PLAIN else REPLICATED * 2 + LOCAL)


def _grow(drawn: random.Random, model: Model) -> dict[str, Any] | None:
    at = _at(drawn, model)
    if at is None or model.down or model.paused or model.moved or model.partitions == PARTITIONS_MAX:
        return None
    return {"at": at, "to": drawn.randint(model.partitions + 1, PARTITIONS_MAX)}


def _dry_run(drawn: random.Random, model: Model) -> dict[str, Any] | None:
    if model.down or model.moved or model.dropped:
        return None
    source, to = drawn.choice(sorted(model.paused) or model.shape.links)
    return {"source": source, "to": to}


def _publish(drawn: random.Random, model: Model) -> dict[str, Any] | None:
    if (at := _at(drawn, model)) is None:
        return None
    topic = drawn.choice(_consumed(model))
    if topic == "keyed" and drawn.random() < LONE_SHARE:
        at = _first_publisher(model, topic) or at
        if at not in serving(model):
            return None
    how = drawn.choice(PUBLISHED if topic != PARTED else ("single", "batch", "keyed"))
    return {"at": at, "topic": topic, "how": how, "count": drawn.randint(1, 6)}


def _first_publisher(model: Model, topic: str) -> str | None:
    """Return the origin of the first message of a topic."""
    found = model.topics.get(topic)
    return next((sent.origin for sent in found.sent.values()), None) if found is not None else None


def _publish_named(drawn: random.Random, model: Model) -> dict[str, Any] | None:
    """Draw a step that publishes by a producer name and sequence ids that are perhaps used at other clusters, too."""
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
    topic = drawn.choice([*_consumed(model), *([NAMED] if model.deduplication else [])])
    return {"at": at, "topic": topic, "name": _name_for(drawn, topic), "earliest": drawn.random() < 0.5}


def _subscribe_at(drawn: random.Random, model: Model) -> dict[str, Any] | None:
    """Draw a new subscription that begins at one of the messages of a topic."""
    at = _at(drawn, model)
    known = sorted(topic for topic in model.topics if topic in (*TOPICS, NAMED))
    if at is None or not known:
        return None
    topic = drawn.choice(known)
    name = _name_for(drawn, topic)
    if model.find(topic, name, at, replicated=is_replicated(name)) is not None:
        return None
    return {"at": at, "topic": topic, "name": name, "place": drawn.randrange(1_000), "excluded": drawn.random() < 0.3}


def _subscribe_apart(drawn: random.Random, model: Model) -> dict[str, Any] | None:
    """Draw a new replicated subscription, and two clusters that make it before they tell each other of it."""
    topic, name = drawn.choice(SYNCED), drawn.choice(REPLICATED)
    pairs = [
        (at, other)
        for at in serving(model)
        for other in serving(model)
        if at != other and model.shape.tells(at, other) and model.shape.tells(other, at)
    ]
    if model.down or not pairs or (topic, name, None) in model.subscriptions:
        return None
    at, other = drawn.choice(pairs)
    return {"at": at, "other": other, "topic": topic, "name": name, "count": drawn.randint(0, 4)}


def _unsubscribe_in_use(drawn: random.Random, model: Model) -> dict[str, Any] | None:
    found = _existing(drawn, model)
    if found is None or model.down or model.paused or not is_replicated(found["name"]):
        return None
    subscription = model.subscriptions[found["topic"], found["name"], None]
    others = [
        name
        for name in serving(model)
        if name != found["at"] and name in subscription.clusters - subscription.excluded
        if model.shape.tells(found["at"], name)
    ]
    return {**found, "other": drawn.choice(others)} if others else None


def _any_existing(drawn: random.Random, model: Model) -> dict[str, Any] | None:
    """Draw an existing subscription, and a running cluster that has it."""
    found = [
        {"at": cluster, "topic": each.topic, "name": each.name}
        for each in model.subscriptions.values()
        if not each.deleted
        for cluster in sorted(each.clusters)
        if cluster in serving(model) and each.is_at(cluster) and cluster not in each.excluded
    ]
    return drawn.choice(found) if found else None


def _existing(drawn: random.Random, model: Model) -> dict[str, Any] | None:
    """Draw an existing subscription of a topic without partitions, and a running cluster that has it."""
    found = _any_existing(drawn, model)
    return None if found is None or found["topic"] == PARTED else found


def _consume(drawn: random.Random, model: Model) -> dict[str, Any] | None:
    found = _any_existing(drawn, model)
    if found is None:
        return None
    how = drawn.choice(("each", "each", "some", "cumulative", "half batches", "nothing", "negative"))
    return {**found, "count": drawn.randint(1, 12), "how": how, "seed": drawn.randrange(1000)}


def _seek(drawn: random.Random, model: Model) -> dict[str, Any] | None:
    """Draw a seek at a cluster that can tell all others of it.

    After a seek at another cluster, the clusters would have different generations of the subscription for good.
    """
    found = _existing(drawn, model)
    if found is None or not all(model.shape.tells(found["at"], other) for other in model.shape.clusters):
        return None
    return {**found, "earliest": drawn.random() < 0.7}


def _reset_by_time(drawn: random.Random, model: Model) -> dict[str, Any] | None:
    """Draw a reset where a seek may be drawn, to a time before one of the topic's messages or after the last."""
    found = _seek(drawn, model)
    if found is None:
        return None
    del found["earliest"]
    return {**found, "after": drawn.randint(0, len(model.topic(found["topic"]).sent))}


def _skip(drawn: random.Random, model: Model) -> dict[str, Any] | None:
    found = _existing(drawn, model)
    return None if found is None else {**found, "count": drawn.randint(1, 4)}


def _existing_alone(drawn: random.Random, model: Model) -> dict[str, Any] | None:
    return _existing(drawn, model)


def _read(drawn: random.Random, model: Model) -> dict[str, Any] | None:
    at = _at(drawn, model)
    known = sorted(name for name in model.topics if name in (*TOPICS, NAMED))
    return None if at is None or not known else {"at": at, "topic": drawn.choice(known)}


def _topic_at(drawn: random.Random, model: Model) -> dict[str, Any] | None:
    at = _at(drawn, model)
    known = sorted(name for name in model.topics if name in TOPICS)
    return None if at is None or not known else {"at": at, "topic": drawn.choice(known)}


def _to_consume_all(drawn: random.Random, model: Model) -> dict[str, Any] | None:
    """Draw a topic to consume. Prefer one whose consumed messages retention deletes."""
    return _trimmed(drawn, model) or _topic_at(drawn, model)


def _untrimmed(drawn: random.Random, model: Model) -> dict[str, Any] | None:
    """Draw a topic that still keeps consumed messages, if all clusters run and no link was dropped."""
    known = sorted(name for name, topic in model.topics.items() if not topic.trims and name in TOPICS)
    return {"topic": drawn.choice(known)} if known and not model.down and not model.dropped else None


def _kept_again(drawn: random.Random, model: Model) -> dict[str, Any] | None:
    """Draw a topic whose consumed messages retention deletes, if all clusters run."""
    found = _trimmed(drawn, model)
    return None if found is None or model.down else {"topic": found["topic"]}


def _set_ttl(drawn: random.Random, model: Model) -> dict[str, Any] | None:
    """Draw a topic and an age, if all clusters run. A short age leaves open what comes, so it is drawn seldom."""
    found = _topic_at(drawn, model)
    if found is None or model.down:
        return None
    ages = model.topic(found["topic"]).ages
    return {"topic": found["topic"], "seconds": drawn.choice((0, 0, 1, 3_600) if ages else (1, 3_600, 3_600, 0))}


def _to_trim(drawn: random.Random, model: Model) -> dict[str, Any] | None:
    """Draw a topic on which a pass has something to do. Prefer one whose messages may be passed over."""
    at = _at(drawn, model)
    aging = sorted(name for name, topic in model.topics.items() if topic.ages)
    return {"at": at, "topic": drawn.choice(aging)} if at is not None and aging else _trimmed(drawn, model)


def _trimmed(drawn: random.Random, model: Model) -> dict[str, Any] | None:
    at = _at(drawn, model)
    known = sorted(name for name, topic in model.topics.items() if topic.trims and name in TOPICS)
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
    """Draw a planned failover along a link, if all clusters run and all links carry."""
    if model.down or model.paused or model.moved:
        return None
    source, to = drawn.choice(model.shape.links)
    return {"source": source, "to": to, **_meanwhile(drawn, model, MEANWHILE_PLANNED)}


def _meanwhile(drawn: random.Random, model: Model, events: Sequence[str | None]) -> dict[str, Any]:
    """Draw one of the ``events``, and a topic if it needs one. Draw nothing that needs one while there is no topic."""
    meanwhile, found = drawn.choice(events), _to_consume_all(drawn, model)
    if meanwhile is None or not meanwhile.startswith(("trim", "delete_topic")):
        return {"meanwhile": meanwhile}
    return {"meanwhile": None} if found is None else {"meanwhile": meanwhile, "topic": found["topic"]}


def _fail_over_dead(drawn: random.Random, model: Model) -> dict[str, Any] | None:
    if model.down or model.moved or model.dropped:
        return None
    source, to = drawn.choice(model.shape.links)
    return {"source": source, "to": to, **_meanwhile(drawn, model, MEANWHILE)}


def _fail_back(drawn: random.Random, model: Model) -> dict[str, Any] | None:
    if model.down or model.paused or not model.moved:
        return None
    return {"to": drawn.choice(sorted(model.moved))}


def _one_disk(drawn: random.Random, model: Model) -> dict[str, Any] | None:
    """Draw the cluster for a step about its disk, if all clusters run, and links carry both ways between them."""
    if model.down or model.paused or model.moved or model.without_postgres or not model.shape.is_mesh:
        return None
    return {"at": drawn.choice(model.shape.clusters)}


def _lose_disk(drawn: random.Random, model: Model) -> dict[str, Any] | None:
    found = _one_disk(drawn, model)
    if found is None:
        return None
    others = [name for name in model.shape.clusters if name != found["at"]]
    damaged = drawn.choice(others) if len(others) > 1 and drawn.random() < 0.5 else None
    if damaged is not None or drawn.random() < 0.2:
        return {**found, "damaged": damaged, "meanwhile": drawn.choice((None, "kill"))}
    return {**found, **_while_reclaiming(drawn, model, others)}


def _while_reclaiming(drawn: random.Random, model: Model, others: Sequence[str]) -> dict[str, Any]:
    return {**_meanwhile(drawn, model, WHILE_RECLAIMING), "other": drawn.choice(others)}


def _back_up(drawn: random.Random, model: Model) -> dict[str, Any] | None:
    found, of_topic = _one_disk(drawn, model), _topic_at(drawn, model)
    if found is None or of_topic is None:
        return found
    meanwhile = drawn.choice((None, None, "kill", "trim", "delete_topic"))
    return {**found, "meanwhile": meanwhile, "topic": of_topic["topic"]}


def _reclaim(drawn: random.Random, model: Model) -> dict[str, Any] | None:
    """Draw a cluster that takes back its messages. The source of a one-way link may be drawn, too.

    Where a link leads back, that link keeps retention from deleting the messages anyway.
    """
    one_way = model.shape.name == "one-way" and not model.subscriptions
    if one_way and not (model.down or model.paused or model.moved or model.without_postgres):
        at, other = model.shape.links[0]
        return {"at": at, **_while_reclaiming(drawn, model, [other])}
    found = _one_disk(drawn, model) if drawn.random() < RECLAIM_SHARE else None
    if found is None:
        return None
    return {**found, **_while_reclaiming(drawn, model, [name for name in model.shape.clusters if name != found["at"]])}


def _restore(drawn: random.Random, model: Model) -> dict[str, Any] | None:
    found = _one_disk(drawn, model)
    return None if found is None or found["at"] not in model.backed_up else found


def _postgres_away(drawn: random.Random, model: Model) -> dict[str, Any] | None:
    found = [name for name in up(model) if name not in model.without_postgres]
    return {"at": drawn.choice(found)} if found else None


def _postgres_back(drawn: random.Random, model: Model) -> dict[str, Any] | None:
    return {"at": drawn.choice(sorted(model.without_postgres))} if model.without_postgres else None


def _drop_link(drawn: random.Random, model: Model) -> dict[str, Any] | None:
    """Draw a link to take out of the topology. Retention then deletes messages that the link has not copied."""
    if model.down or model.moved or any(topic.trims for topic in model.topics.values()):
        return None
    return _link(drawn, model)


def _join(drawn: random.Random, model: Model) -> dict[str, Any] | None:
    """Draw a step by which one more cluster joins. Return None unless all clusters run, and all links carry."""
    if model.joining is None or model.down or model.paused or model.moved or model.without_postgres:
        return None
    return {"at": model.joining, "starts_first": drawn.random() < 0.5}


def _settle_anew(drawn: random.Random, model: Model) -> dict[str, Any] | None:
    """Draw a rest at which topics are copied anew, if a topic was deleted: only that makes gaps which may end so."""
    has_gaps = any(topic.lives for topic in model.topics.values())
    return None if model.down or model.paused or not has_gaps else {}


def _nothing(drawn: random.Random, model: Model) -> dict[str, Any] | None:
    return {}


@dataclass(frozen=True, slots=True)
class Kind:
    """Kind of step: its weight when steps are drawn, whether it takes seconds, and whether it deletes a topic."""

    weight: int
    draw: Draw
    slow: bool = False
    deletes: bool = False


KINDS: Final[Mapping[str, Kind]] = {
    "publish": Kind(30, _publish),
    "publish_named": Kind(8, _publish_named),
    "subscribe": Kind(12, _subscribe),
    "subscribe_at": Kind(2, _subscribe_at),
    "subscribe_apart": Kind(1, _subscribe_apart),
    "consume": Kind(24, _consume),
    "rest": Kind(1, _any_existing),
    "seek": Kind(3, _seek),
    "reset_by_time": Kind(1, _reset_by_time),
    "skip": Kind(2, _skip),
    "clear": Kind(1, _existing_alone),
    "expire": Kind(1, _existing_alone),
    "unsubscribe": Kind(1, _existing_alone),
    "unsubscribe_in_use": Kind(1, _unsubscribe_in_use),
    "consume_all": Kind(2, _to_consume_all),
    "compact": Kind(2, _read),
    "compact_and_read": Kind(2, _read),
    "last_message": Kind(4, _read),
    "retain_nothing": Kind(2, _untrimmed),
    "retain_again": Kind(1, _kept_again),
    "set_ttl": Kind(1, _set_ttl),
    "trim": Kind(3, _to_trim),
    "pause": Kind(4, _link),
    "resume": Kind(5, _paused),
    "drop_link": Kind(1, _drop_link),
    "join": Kind(4, _join),
    "grow": Kind(1, _grow),
    "settle": Kind(3, _nothing),
    "settle_anew": Kind(2, _settle_anew, deletes=True),
    "dry_run": Kind(1, _dry_run, slow=True),
    "stop": Kind(2, _running, slow=True),
    "kill": Kind(2, _running, slow=True),
    "publish_and_kill": Kind(2, _publish_and_kill, slow=True),
    "start": Kind(8, _down, slow=True),
    "fail_over": Kind(1, _fail_over, slow=True),
    "fail_over_dead": Kind(1, _fail_over_dead, slow=True),
    "fail_back": Kind(3, _fail_back, slow=True),
    "lose_disk": Kind(2, _lose_disk, slow=True),
    "back_up": Kind(2, _back_up, slow=True),
    "restore": Kind(2, _restore, slow=True),
    "reclaim_while_trimming": Kind(10, _reclaim, slow=True),
    "postgres_away": Kind(2, _postgres_away, slow=True),
    "postgres_back": Kind(4, _postgres_back, slow=True),
    "delete_topic": Kind(3, _topic_at, deletes=True),
    "make_anew": Kind(2, _topic_at, deletes=True),
}


def draw(drawn: random.Random, model: Model, *, slow: bool, deletes: bool) -> Step:
    """Draw a step that is possible now."""
    kinds = [(name, kind) for name, kind in KINDS.items() if (slow or not kind.slow) and (deletes or not kind.deletes)]
    while True:
        ((name, kind),) = drawn.choices(kinds, weights=[kind.weight for _, kind in kinds])
        if (arguments := kind.draw(drawn, model)) is not None:
            return Step(name, arguments)
