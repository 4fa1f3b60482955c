"""Starts that lie in an earlier life of a topic, and messages of that life that are put back.

Invariant (DESIGN §3): 5.
"""

from __future__ import annotations

from replicator.engine.subscriptions.cursor_state import CursorState
from replicator.engine.subscriptions.putting_back import PeerState, PutBackLog, follow_put_back
from snapshots.ack_vector import OriginAcks
from snapshots.position import Position
from snapshots.position_set import PositionSet
from snapshots.starts import Start


def test_a_start_at_the_end_of_what_another_cluster_has_of_an_earlier_life_says_nothing_of_the_rest_of_it() -> None:
    """The other cluster knew of life 200 and had messages of life 100 up to 101:5 when the subscription was made."""
    put_back, messages = PositionSet(), PositionSet()
    put_back.add_range(101, 0, 9)
    messages.update(put_back)
    messages.add_range(201, 0, 3)
    log = PutBackLog("us-east", 200, messages, messages, put_back, Position(101, 9))
    state = CursorState(mark_delete=Position(201, 3))
    told = PeerState(state.generation, OriginAcks(200), Start(200, Position(101, 5)))
    follow_put_back(state, log, told.merged(PeerState(state.generation, OriginAcks(100), Start(100, Position(101, 7)))))
    left = messages.after(state.mark_delete)
    left.difference_update(state.individually_deleted)
    assert list(left.runs()) == [(Position(101, 6), Position(101, 9))]
    assert state.starts["us-east"] == Start(200, Position(101, 5))
