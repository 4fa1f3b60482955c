"""A subscription's state in one cluster, as its page shows it."""

from __future__ import annotations

from replicator.dashboard.fan_out import Answer
from replicator.dashboard.states import HOLES_SHOWN_MAX, FoundMapping, state_column

STATE = {
    "name": "billing",
    "type": "Shared",
    "replicated": True,
    "generation": 3,
    "mark_delete": "5:10",
    "individually_deleted": [["5:12", "5:12"], ["5:14", "5:20"]],
    "batch_acks": {"5:22": [0, 3]},
}


def test_the_newest_mapping_at_or_below_the_mark_delete_position_is_found_for_each_peer() -> None:
    mappings = [
        {"peer": peer, "local": local, "remote": remote}
        for peer, local, remote in (
            ("B", "5:2", "9:1"),
            ("B", "5:10", "9:4"),
            ("B", "5:11", "9:5"),
            ("C", "6:0", "1:1"),
        )
    ]
    column = state_column("A", "billing", Answer({"subscriptions": [STATE]}), Answer({"mappings": mappings}))
    assert column.mappings == (FoundMapping("B", "5:10", "9:4"),)
    assert column.acked_beyond == ("5:12", "5:14 to 5:20")
    assert column.batches_in_part == ("5:22: 2 acknowledged",)
    assert (column.generation, column.mark_delete) == (3, "5:10")


def test_a_long_list_is_cut_and_counted() -> None:
    runs = [[f"5:{12 + 2 * number}", f"5:{12 + 2 * number}"] for number in range(1000)]
    state = STATE | {"individually_deleted": runs}
    column = state_column("A", "billing", Answer({"subscriptions": [state]}), Answer(error="Postgres is away"))
    assert (len(column.acked_beyond), column.acked_runs) == (HOLES_SHOWN_MAX, 1000)
    assert column.mappings_error == "Postgres is away"


def test_what_is_not_there_is_said() -> None:
    assert "A does not have" in state_column("A", "x", Answer({"subscriptions": [STATE]}), Answer(error="-")).error
    assert state_column("A", "x", Answer(error="A is away"), Answer(error="-")).error == "A is away"
