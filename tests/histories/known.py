"""Known sequences of few steps. Each fix that can be taken back has a sequence of its name, which fails without it.

The other sequences once failed, or have steps that are rarely drawn.

``python -m histories --known`` runs them all, and ``--known --revert NAME`` the one that must fail without that fix.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from histories.running import History
from histories.shapes import SHAPES
from histories.steps import Step


def _step(name: str, /, **arguments: Any) -> Step:
    return Step(name, arguments)


def _history(shape: str, *steps: Step, deduplication: bool = False, joins: bool = False) -> History:
    return History(SHAPES[shape], deduplication, 0, slow=True, deletes=True, steps=steps, joins=joins)


def _publish(at: str, how: str = "single", count: int = 5) -> Step:
    return _step("publish", at=at, topic="t0", how=how, count=count)


def _subscribe(at: str, name: str = "r-shared") -> Step:
    return _step("subscribe", at=at, topic="t0", name=name, earliest=True)


def _named(at: str) -> Step:
    return _step("publish_named", at=at, producer="orders", first=0, count=3, content="other")


_SETTLE: Final = _step("settle")
_CONSUME_ALL: Final = _step("consume_all", at="a", topic="t0")

KNOWN: Final[Mapping[str, History]] = {
    "content-across-origins": _history("pair", _named("a"), _SETTLE, _named("b"), deduplication=True),
    "markers-are-no-lineage": _history(
        "pair",
        _publish("b"),
        _SETTLE,
        _subscribe("a"),
        _CONSUME_ALL,
        _SETTLE,
        _step("delete_topic", at="a", topic="t0"),
        _publish("b"),
        _SETTLE,
    ),
    "keep-both": _history(
        "pair",
        _subscribe("b"),
        _publish("a"),
        _SETTLE,
        _step("delete_topic", at="a", topic="t0"),
        _publish("a"),
    ),
    "earlier-store-is-taken-back": _history(
        "pair", _subscribe("a"), _publish("a"), _SETTLE, _step("lose_disk", at="a")
    ),
    "a-start-is-no-acknowledgement": _history(
        "pair",
        _publish("a"),
        _SETTLE,
        _step("subscribe_apart", at="b", other="a", topic="t0", name="r-shared", count=2),
    ),
    "positions-that-are-received": _history(
        "pair", _publish("a", "mixed", 3), _step("compact_and_read", at="a", topic="t0")
    ),
    "bound-of-the-walk": _history(
        "pair",
        _publish("a"),
        _subscribe("a"),
        _SETTLE,
        _step("retain_nothing", topic="t0"),
        _CONSUME_ALL,
        _SETTLE,
        _CONSUME_ALL,
    ),
    "reclaim-goes-on-past-damage": _history("mesh", _publish("a"), _SETTLE, _step("lose_disk", at="a", damaged="b")),
    "retention-is-held-back": _history("one-way", _publish("a"), _step("reclaim_while_trimming", at="a")),
    "unsubscribe-asks": _history(
        "pair",
        _publish("a"),
        _subscribe("a"),
        _SETTLE,
        _step("unsubscribe_in_use", at="a", other="b", topic="t0", name="r-shared"),
    ),
    "compaction-counts-a-hidden-duplicate": _history(
        "pair",
        _step("pause", source="a", to="b"),
        _step("publish_named", at="a", producer="orders", first=0, count=2, content="same"),
        _step("publish_named", at="b", producer="orders", first=0, count=1, content="same"),
        _step("resume", source="a", to="b"),
        _SETTLE,
        _step("compact_and_read", at="a", topic="named"),
        deduplication=True,
    ),
    "added-partitions-get-no-subscriptions": _history(
        "pair",
        _step("grow", at="a", to=1),
        _step("subscribe", at="a", topic="parts", name="l-shared", earliest=True),
        _step("grow", at="a", to=2),
        _step("publish", at="a", topic="parts", how="single", count=4),
        _step("consume", at="a", topic="parts", name="l-shared", count=1, how="each", seed=0),
    ),
    "link-does-not-ask-about-a-topic-made-anew": _history(
        "one-way", _publish("a"), _SETTLE, _step("delete_topic", at="b", topic="t0"), _subscribe("b", "l-shared")
    ),
    "switch-compares-an-origin-without-messages": _history(
        "pair", _subscribe("a"), _SETTLE, _step("fail_over", source="a", to="b")
    ),
    "trimmed-messages-are-claimed-by-a-later-generation": _history(
        "pair",
        _publish("b"),
        _publish("b", count=1),  # another block, because retention keeps the last one
        _SETTLE,
        _step("pause", source="b", to="a"),
        _subscribe("b"),
        _step("retain_nothing", topic="t0"),
        _step("trim", at="a", topic="t0"),
        _step("resume", source="b", to="a"),
        _SETTLE,
        _publish("a", count=1),
    ),
    "policies-change-to-and-fro": _history(
        "pair",
        _publish("a"),
        _subscribe("b"),
        _SETTLE,
        _step("set_ttl", topic="t0", seconds=3_600),
        _step("consume", at="b", topic="t0", name="r-shared", count=2, how="each", seed=0),
        _step("retain_nothing", topic="t0"),
        _CONSUME_ALL,
        _step("retain_again", topic="t0"),
        _publish("a", "batch"),
        _step("rest", at="b", topic="t0", name="r-shared"),
        _step("seek", at="b", topic="t0", name="r-shared", earliest=True),
        _SETTLE,
        _step("set_ttl", topic="t0", seconds=1),
        *(_step("rest", at="a", topic="t0", name="r-shared") for _ in range(3)),
        _step("trim", at="a", topic="t0"),
        _step("set_ttl", topic="t0", seconds=0),
        _publish("b"),
        _step("seek", at="a", topic="t0", name="r-shared", earliest=True),
    ),
    "subscriptions-begin-at-messages": _history(
        "pair",
        _publish("a"),
        _publish("a", "batch", 3),
        _SETTLE,
        _publish("b"),
        _step("subscribe_at", at="a", topic="t0", name="r-shared", place=3, excluded=False),
        _step("subscribe_at", at="b", topic="t0", name="l-shared", place=6, excluded=True),
        _step("subscribe_at", at="b", topic="t0", name="r-keys", place=10, excluded=False),
        _publish("a", "chunks"),
        _step("consume", at="a", topic="t0", name="r-shared", count=4, how="each", seed=0),
    ),
    "subscriptions-are-put-to-a-time": _history(
        "pair",
        _publish("a", "batch"),
        _publish("b"),
        _subscribe("a"),
        _SETTLE,
        _CONSUME_ALL,
        _step("reset_by_time", at="b", topic="t0", name="r-shared", after=5),
        _publish("a", "chunks"),
        _step("consume", at="b", topic="t0", name="r-shared", count=20, how="each", seed=0),
        _SETTLE,
        _step("reset_by_time", at="a", topic="t0", name="r-shared", after=12),
        _step("reset_by_time", at="a", topic="t0", name="r-shared", after=7),
    ),
    "a-cluster-joins": _history(
        "pair",
        _publish("b"),
        _subscribe("a"),
        _step("grow", at="a", to=2),
        _SETTLE,
        _step("consume", at="a", topic="t0", name="r-shared", count=2, how="each", seed=0),
        _step("delete_topic", at="b", topic="t0"),
        _publish("b", count=2),
        _step("join", at="c", starts_first=False),
        _publish("c"),
        joins=True,
    ),
    "a-subscription-is-deleted-where-nobody-is-told": _history(
        "one-way",
        _publish("a"),
        _subscribe("a"),
        _SETTLE,
        _CONSUME_ALL,
        _SETTLE,
        _step("unsubscribe", at="b", topic="t0", name="r-shared"),
    ),
    "a-deleted-topic-is-made-anew": _history(
        "pair", _publish("b"), _SETTLE, _step("delete_topic", at="a", topic="t0"), _publish("a")
    ),
    "a-topic-that-was-deleted-is-copied-anew": _history(
        "mesh",
        _publish("a"),
        _publish("b"),
        _subscribe("b"),
        _subscribe("b", "l-shared"),
        _SETTLE,
        _step("delete_topic", at="a", topic="t0"),
        _publish("a"),
        _step("settle_anew"),
        _publish("a"),
        _publish("b"),
        _subscribe("c", "r-keys"),
    ),
    "a-deleted-copy-of-markers-is-made-anew": _history(
        "one-way",
        _publish("b"),
        _subscribe("a"),
        _SETTLE,
        _step("delete_topic", at="b", topic="t0"),
        _step("subscribe", at="a", topic="t0", name="r-failover", earliest=True),
        _SETTLE,
        _publish("b"),
    ),
    "a-copy-is-deleted-and-made-anew-while-a-forwarder-is-down": _history(
        "chain",
        _publish("a"),
        _step("subscribe_at", at="c", topic="t0", name="r-keys", place=0, excluded=False),
        _step("consume", at="c", topic="t0", name="r-keys", count=5, how="each", seed=1),
        _step("kill", at="b"),
        _step("make_anew", at="c", topic="t0"),
    ),
    "a-link-brings-more-partitions": _history(
        "mesh",
        _step("grow", at="c", to=2),
        _step("subscribe", at="c", topic="parts", name="l-exclusive", earliest=False),
        _step("grow", at="a", to=4),
        _step("publish", at="a", topic="parts", how="single", count=4),
        _SETTLE,
        _step("consume", at="c", topic="parts", name="l-exclusive", count=10, how="nothing", seed=1),
    ),
    "a-copy-is-deleted-before-a-failover": _history(
        "pair",
        _publish("a"),
        _subscribe("a"),
        _SETTLE,
        _step("delete_topic", at="b", topic="t0"),
        _step("fail_over", source="a", to="b"),
        _SETTLE,
        _publish("b"),
        _SETTLE,
        _step("fail_back", to="a"),
    ),
    "a-duplicate-comes-back-behind-the-start": _history(
        "pair",
        _step("pause", source="b", to="a"),
        _step("pause", source="a", to="b"),
        _step("publish_named", at="a", producer="bills", first=1, count=4, content="same"),
        _step("subscribe", at="b", topic="named", name="r-shared", earliest=True),
        _step("resume", source="b", to="a"),
        _step("subscribe", at="a", topic="named", name="r-exclusive", earliest=False),
        _step("publish_named", at="a", producer="orders", first=5, count=4, content="same"),
        _step("publish_named", at="b", producer="bills", first=3, count=1, content="same"),
        _step("resume", source="a", to="b"),
        _SETTLE,
        deduplication=True,
    ),
    "a-forwarder-deletes-a-life-that-its-origin-deleted": _history(
        "chain",
        _publish("a", count=1),
        _publish("b", count=1),
        _SETTLE,
        _step("delete_topic", at="a", topic="t0"),
        _publish("a", count=1),
        _SETTLE,
        _step("delete_topic", at="b", topic="t0"),
        _publish("b", count=1),
    ),
    "a-forwarder-deletes-a-topic-whose-markers-are-trimmed": _history(
        "ring",
        _publish("a"),
        _step("retain_nothing", topic="t0"),
        _subscribe("c"),
        _step("consume_all", at="c", topic="t0"),
        _SETTLE,
        _publish("b"),
        _step("delete_topic", at="b", topic="t0"),
        _step("trim", at="a", topic="t0"),
        _publish("b", count=1),
    ),
    "failovers-are-interrupted": _history(
        "mesh",
        _publish("a"),
        _subscribe("a"),
        _SETTLE,
        _step("fail_over", source="a", to="b", meanwhile="source"),
        _step("fail_back", to="a"),
        _step("fail_over_dead", source="a", to="c", meanwhile="target"),
    ),
    "topics-are-deleted-in-the-middle-of-failovers": _history(
        "mesh",
        _publish("a"),
        _publish("b"),
        _subscribe("c"),
        _SETTLE,
        _step("fail_over", source="a", to="b", meanwhile="delete_topic at source", topic="t0"),
        _publish("b"),
        _step("fail_back", to="a"),
        _publish("a"),
        _SETTLE,
        _step("fail_over", source="c", to="b", meanwhile="delete_topic at target", topic="t0"),
        _step("fail_back", to="c"),
        _step("retain_nothing", topic="t0"),
        _publish("a"),
        _step("fail_over", source="a", to="b", meanwhile="trim at source", topic="t0"),
        _step("fail_back", to="a"),
        _publish("a"),
        _step("fail_over_dead", source="a", to="c", meanwhile="delete_topic at target", topic="t0"),
    ),
    "other-clusters-change-in-the-middle-of-reclaims": _history(
        "mesh",
        _publish("a"),
        _subscribe("a"),
        _subscribe("b"),
        _SETTLE,
        _step("lose_disk", at="a", meanwhile="kill_other", other="b"),
        _SETTLE,
        _step("lose_disk", at="a", meanwhile="delete_topic", other="b", topic="t0"),
        _publish("b"),
        _SETTLE,
        _step("last_message", at="a", topic="t0"),
        _step("retain_nothing", topic="t0"),
        _step("lose_disk", at="a", meanwhile="trim", other="c", topic="t0"),
    ),
    "what-only-one-cluster-has-is-deleted-in-the-middle-of-a-reclaim": _history(
        "pair",
        _publish("a"),
        _publish("b"),
        _subscribe("a"),
        _SETTLE,
        _step("lose_disk", at="a", meanwhile="delete_topic", other="b", topic="t0"),
        _publish("a"),
        _SETTLE,
        _step("reclaim_while_trimming", at="a", meanwhile="delete_topic", other="b", topic="t0"),
        _step("reclaim_while_trimming", at="b", meanwhile="kill_other", other="a"),
    ),
}
