"""Epochs as values: who serves whom after which switch."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicator.failover.epochs import (
    FIRST,
    as_json,
    from_json,
    is_fenced,
    precedence,
    served_homes,
    serving,
    switched,
)
from replicator.failover.errors import SwitchImpossible
from snapshots.markers import FailoverEpoch


def move(current: FailoverEpoch, homes: str, target: str, *, keep: bool = False) -> FailoverEpoch:
    return switched(current, kind="planned", homes=homes, target=target, record_id="r", at_ms=5, keep_consumers=keep)


def test_at_first_everybody_serves_himself() -> None:
    assert serving(FIRST, "A") == "A"
    assert served_homes(FIRST, "A") == ("A",)
    assert not is_fenced(FIRST, "A")


def test_who_serves_nobody_is_fenced_until_its_home_comes_back() -> None:
    away = move(FIRST, "A", "B")
    assert (away.epoch, away.writer, away.source) == (1, "B", "A")
    assert is_fenced(away, "A")
    assert served_homes(away, "B") == ("A", "B")
    back = move(away, "A", "A")
    assert back.serving == {}
    assert not is_fenced(back, "A")
    assert not is_fenced(back, "B")


def test_what_a_cluster_serves_for_others_moves_with_its_own() -> None:
    first = move(FIRST, "A", "B")
    second = move(first, "".join(served_homes(first, "B")), "C")
    assert second.serving == {"A": "C", "B": "C"}
    assert is_fenced(second, "A")
    assert is_fenced(second, "B")


def test_consumers_stay_only_at_clusters_that_are_fenced() -> None:
    away = move(FIRST, "A", "B", keep=True)
    assert away.consumers_kept == ("A",)
    assert move(away, "A", "C").consumers_kept == ("A",)
    assert move(away, "A", "A").consumers_kept == ()


def test_a_switch_to_who_serves_already_is_impossible() -> None:
    with pytest.raises(SwitchImpossible, match="A serves A already"):
        move(FIRST, "A", "A")


def test_of_two_with_one_number_the_greater_writer_wins() -> None:
    assert precedence(move(FIRST, "A", "C")) > precedence(move(FIRST, "A", "B")) > precedence(FIRST)


@given(
    st.builds(
        FailoverEpoch,
        st.integers(0, 2**63 - 1),
        st.text(max_size=10),
        st.text(max_size=10),
        st.integers(0, 2**63 - 1),
        st.text(max_size=10),
        st.text(max_size=10),
        st.text(max_size=10),
        st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=4),
        st.lists(st.text(max_size=5), max_size=3).map(tuple),
    )
)
def test_a_record_comes_back_from_json(record: FailoverEpoch) -> None:
    assert from_json(as_json(record)) == record


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"epoch": -1}, "epoch"),
        ({"epoch": True}, "epoch"),
        ({"at_ms": "5"}, "at_ms"),
        ({"writer": None}, "writer"),
        ({"serving": {"A": 1}}, "serving"),
        ({"serving": None}, "serving"),
        ({"consumers_kept": "A"}, "consumers_kept"),
        ({"serving": {str(n): "B" for n in range(1001)}}, "names 1001 clusters, more than 1000"),
    ],
)
def test_what_is_no_record_is_refused_by_its_field(change: dict[str, object], expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        from_json({**as_json(FIRST), **change})
    with pytest.raises(ValueError, match="object"):
        from_json([])
