"""An earlier life of a topic that clusters keep, with ``sync.mode: mark-delete``: only mark-delete positions travel."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import sync_node_support
from asynchronous import asynchronous
from engine_support import TOPIC, eventually
from kept_lives_support import MESSAGES, backlog, decide, make_anew, publish
from sync_node_support import consume_all, mesh

from replicator.sync.service import SubscriptionSync
from snapshots.position import BEFORE_ALL

pytestmark = pytest.mark.usefixtures("shortest_link_pauses")


@pytest.fixture(autouse=True)
def coarse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make synchronization send only mark-delete positions, not exact states."""
    monkeypatch.setattr(sync_node_support, "SubscriptionSync", partial(SubscriptionSync, exact=False))


@asynchronous
async def test_a_mark_delete_position_travels_past_a_kept_life_between_those_who_keep_it(tmp_path: Path) -> None:
    async with mesh(tmp_path, "a", "b", "c") as nodes:
        a, b, c = nodes.values()
        await publish(a.engine, b"old")
        await (await a.engine.topic(TOPIC)).subscriptions.create("sub", BEFORE_ALL, replicated=True)
        await eventually(lambda: backlog(b.engine) == backlog(c.engine) == MESSAGES, "the subscription everywhere")
        await make_anew(a.engine)
        await decide(a)
        await eventually(lambda: backlog(b.engine) == backlog(c.engine) == 2 * MESSAGES, "both lives at b and c")
        await publish(b.engine, b"more", 1)
        await eventually(lambda: backlog(c.engine) == 2 * MESSAGES + 1, "what b published, at c")
        await consume_all(b.topic(), 2 * MESSAGES + 1)
        await eventually(lambda: backlog(c.engine) == 0, "what was consumed at b, at c")


@asynchronous
async def test_invariant_5_who_lacks_a_kept_life_moves_no_cursor_past_it(tmp_path: Path) -> None:
    async with mesh(tmp_path, "a", "b") as nodes:
        a, b = nodes.values()
        await publish(a.engine, b"old")
        await (await a.engine.topic(TOPIC)).subscriptions.create("sub", BEFORE_ALL, replicated=True)
        await eventually(lambda: backlog(b.engine) == MESSAGES, "the subscription at b")
        await make_anew(a.engine)
        await decide(a)
        await eventually(lambda: backlog(b.engine) == 2 * MESSAGES, "both lives at b")
        await consume_all(await a.engine.topic(TOPIC), MESSAGES)
        await publish(b.engine, b"more", 1)
        await eventually(lambda: a.topic().log.messages == MESSAGES + 1, "what was published at b, at a")
        await consume_all(a.topic(), 1)
        await publish(a.engine, b"again", 1)
        await consume_all(a.topic(), 1)
        await eventually(lambda: b.topic().log.messages == 2 * MESSAGES + 2, "all messages at b")
        assert not a.index.mappings, "no answer of b proves anything to a"
        assert backlog(b.engine) == 2 * MESSAGES + 2, "nothing moves, and nothing is passed over"
        (kept,) = b.sync.kept_lives()
        assert (kept["topic"], [life.split("/")[0] for life in kept["lives"]]) == (TOPIC, ["a"])
        assert a.sync.kept_lives() == []
        await consume_all(b.topic(), 2 * MESSAGES + 2)
        await eventually(lambda: backlog(b.engine) == 0)
        assert backlog(a.engine) == 0
