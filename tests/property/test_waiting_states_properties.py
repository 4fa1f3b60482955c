"""Nothing goes that a subscription may need whose state was not told, whatever clusters do in whatever order.

Invariant (DESIGN §3): 5.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from replicator.engine.upkeep.waiting_states import SILENT_SECONDS, Kept, WaitingStates

PEERS = ("a", "b", "c")
EVENTS = st.lists(
    st.tuples(st.sampled_from(["heard", "told"]), st.sampled_from(PEERS), st.integers(0, 200_000)), max_size=12
)


@given(EVENTS, st.integers(0, 900), st.integers(0, 1_000_000), st.booleans(), st.integers(-1_000_000, 1_000_000))
def test_all_is_kept_while_an_answering_cluster_has_not_told_and_only_for_so_long(
    events: list[tuple[str, str, int]], seconds_max: int, more_ms: int, restarted: bool, step_ms: int
) -> None:
    """``step_ms`` is by how much the wall clock steps, or for how long the worker is away before its restart."""
    waiting, asking_ms = WaitingStates(PEERS, 0, seconds_max), 0
    heard: set[str] = set()
    told: set[str] = set()
    for what, peer, ms in events:
        asking_ms += ms
        heard.add(peer)
        if what == "told":
            told.add(peer)
            waiting.told(peer)
        else:
            waiting.heard(peer)
    now_ms = asking_ms + more_ms + step_ms
    if restarted:  # who told is remembered; each other one is asked again, and has time to answer
        waiting, heard, asking_ms = WaitingStates(PEERS, 0, seconds_max, waiting.complete_peers), set(told), 0
    asking_ms += more_ms
    asking_seconds = asking_ms / 1000
    awaited = (set(PEERS) if asking_seconds < SILENT_SECONDS else heard) - told
    kept = waiting.kept(now_ms, asking_seconds)
    assert waiting.untold(asking_seconds) == sorted(awaited)
    assert (kept is Kept.NOTHING) == (not awaited)
    if awaited:
        assert kept is (Kept.EVERYTHING if now_ms < 1000 * seconds_max else Kept.UNTOLD)
    for peer in PEERS:
        waiting.told(peer)
    assert waiting.kept(now_ms, asking_seconds) is Kept.NOTHING


def test_a_cluster_that_left_the_topology_is_not_awaited() -> None:
    waiting = WaitingStates(PEERS, 0, 600)
    for peer in PEERS:
        waiting.heard(peer)
    waiting.told("a")
    waiting.told("b")
    assert waiting.kept(500_000, 500) is Kept.EVERYTHING
    assert waiting.kept(700_000, 700) is Kept.UNTOLD
    waiting.change(["a", "b"], 600)
    assert waiting.kept(700_000, 700) is Kept.NOTHING
