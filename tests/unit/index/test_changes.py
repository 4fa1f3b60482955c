"""Reports of services to the index: kept by key, within limits, and never waiting for a database."""

from __future__ import annotations

import pytest

from replicator.index import waiting
from replicator.index.changes import IndexChanges
from snapshots.mapping import SnapshotMapping
from snapshots.position import Position

TOPIC = "persistent://public/default/orders"


def mapping(entry: int) -> SnapshotMapping:
    return SnapshotMapping(str(entry), Position(1, entry), "x", Position(9, entry))


def written(changes: IndexChanges, *, behind: bool = False) -> IndexChanges:
    changes.behind = behind
    return changes


def moved(changes: IndexChanges, count: int) -> None:
    for entry in range(count):
        changes.subscription_moved(TOPIC, "sub", 1, Position(1, entry), replicated=True)


def test_an_index_is_behind_until_somebody_has_written_it() -> None:
    changes = IndexChanges(None, counts_mappings=False)
    assert changes.behind
    assert not changes.noted.is_set()


def test_what_moves_often_waits_once_with_its_newest_state_and_wakes_the_writer() -> None:
    changes = written(IndexChanges(None, counts_mappings=False))
    moved(changes, 1000)
    assert changes.noted.is_set()
    (state,) = changes.waiting.take().states.values()
    assert state is not None
    assert state.mark_delete == Position(1, 999)


@pytest.mark.parametrize("resyncing", [False, True])
def test_invariant_11_past_the_limit_all_is_dropped_and_asked_for_again_but_not_while_it_is_given(
    monkeypatch: pytest.MonkeyPatch, resyncing: bool
) -> None:
    monkeypatch.setattr(waiting, "WAITING_MAX", 3)
    changes = written(IndexChanges(None, counts_mappings=False))
    changes.resyncing = resyncing
    for entry in range(4):
        changes.mapping_recorded(TOPIC, mapping(entry))
    assert changes.behind is not resyncing
    assert len(changes.waiting) == (4 if resyncing else 0)


@pytest.mark.parametrize("behind", [False, True])
def test_deletions_are_noted_only_while_the_index_is_not_behind(behind: bool) -> None:
    changes = written(IndexChanges(None, counts_mappings=False), behind=behind)
    changes.topic_deleted(TOPIC)
    changes.link_gone("a>b")
    assert bool(changes.waiting.deleted_topics) is not behind
    assert bool(changes.waiting.gone_links) is not behind


def test_new_mappings_are_counted_by_topic_and_peer_until_the_topic_is_deleted() -> None:
    changes = written(IndexChanges(None, counts_mappings=True))
    for entry in range(3):
        changes.mapping_recorded(TOPIC, mapping(entry))
    changes.mapping_recorded(f"{TOPIC}-2", mapping(0))
    assert changes.unthinned == {(TOPIC, "x"): 3, (f"{TOPIC}-2", "x"): 1}
    changes.topic_deleted(TOPIC)
    assert changes.unthinned == {(f"{TOPIC}-2", "x"): 1}
