"""What `replicator backup reclaim` prints of what came back."""

from __future__ import annotations

from replicator.backup.reclaiming import Reclaimed, ReclaimedTopic
from replicator.cli.backup import _reclaimed_lines
from snapshots.position import Position


def topic(name: str, messages: int, *, made_anew: bool = False) -> ReclaimedTopic:
    return ReclaimedTopic(name, messages, Position(1, 0), Position(1, 9), made_anew, 0)


def test_topics_of_which_only_markers_came_back_are_not_named() -> None:
    lines = _reclaimed_lines("a", Reclaimed([topic("markers", 0), topic("orders", 3)]))
    assert lines[0] == "took back 3 messages of orders, after 1:0 up to 1:9"
    assert not any("markers" in line or "nothing of" in line for line in lines)
    assert "nothing of a's messages that it lacks" in _reclaimed_lines("a", Reclaimed([topic("markers", 0)]))[0]


def test_a_topic_that_was_made_since_the_backup_is_named_though_no_message_came_back() -> None:
    (first, *_) = _reclaimed_lines("a", Reclaimed([topic("new", 0, made_anew=True)]))
    assert first == "new was made since the backup: it is back, with no messages of a"
