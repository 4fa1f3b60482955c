"""Order in which clusters are restored that were lost together."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicator.backup.destination import Destination
from replicator.backup.manifest import Manifest, Manifests, TopicMark, new_id
from replicator.backup.restore_order import has_more, order_of, restored_beside
from replicator.engine.restored import SiblingBackup, first_restored, order_advice

TOPIC = "persistent://public/default/orders"
NAMES = ("a", "b", "c")


def backup(cluster: str, at_ms: int, **reached: int) -> Manifest:
    """Return a backup in which the origins had come so far."""
    marks = {origin: f"1:{entry}" for origin, entry in reached.items()}
    return Manifest(new_id(at_ms), cluster, "s", 1, at_ms, "0", [], {TOPIC: TopicMark(1, "1:9", marks)})


def names(backups: list[Manifest]) -> list[str]:
    return [each.cluster for each in backups]


def test_whose_messages_another_backup_has_more_of_is_restored_after_it() -> None:
    older, newer = backup("a", 1_000, a=40, b=40), backup("b", 2_000, a=100, b=40)
    assert has_more(older, newer)
    assert not has_more(newer, older)
    assert names(order_of([older, newer])) == names(order_of([newer, older])) == ["b", "a"]


def test_marks_decide_where_the_clock_of_a_machine_is_wrong() -> None:
    older, newer = backup("a", 9_000, a=40, b=40), backup("b", 2_000, a=100, b=40)
    assert names(order_of([older, newer])) == ["b", "a"]


def test_backups_of_versions_without_marks_are_compared_by_their_time() -> None:
    older, newer = backup("a", 1_000), backup("b", 2_000, a=100)
    assert names(order_of([older, newer])) == ["b", "a"]


def test_a_topic_that_a_backup_does_not_have_counts_as_lacking() -> None:
    older = backup("a", 1_000, a=40)
    newer = replace(backup("b", 2_000, a=40), topics={**older.topics, "other": TopicMark(1, "1:9", {"a": "2:0"})})
    assert has_more(older, newer)


@given(st.lists(st.sampled_from([*NAMES, "back up a", "back up b", "back up c"]), max_size=30), st.permutations(NAMES))
def test_nothing_that_a_backup_has_is_lost_in_the_order_and_it_does_not_depend_on_who_asks(
    steps: list[str], asked: list[str]
) -> None:
    """Clusters publish, all get it at once, and each is backed up at moments of its own, by clocks that are wrong."""
    reached = dict.fromkeys(NAMES, 0)
    backups = {name: backup(name, 5_000, **reached) for name in NAMES}
    for at, step in enumerate(steps):
        if step in reached:
            reached[step] += 1
        else:
            name = step[-1]
            backups[name] = backup(name, 5_000 - at if name == "a" else 5_000 + at, **reached)
    ordered = order_of([backups[name] for name in asked])
    running: dict[str, dict[str, int]] = {}
    for each in ordered:
        has = {origin: position(each, origin) for origin in NAMES}
        has[each.cluster] = max([has[each.cluster], *(there[each.cluster] for there in running.values())])
        running[each.cluster] = has
    for origin in NAMES:
        assert running[origin][origin] == max(position(each, origin) for each in backups.values())


def position(of: Manifest, origin: str) -> int:
    return int(of.topics[TOPIC].marks[origin].partition(":")[2])


def test_backups_of_other_systems_at_a_place_are_left_alone_and_damaged_ones_are_passed_over(tmp_path: Path) -> None:
    place = Destination(str(tmp_path))
    mine, theirs = backup("a", 1_000, a=40, b=40), backup("b", 2_000, a=100, b=40)
    for each in (mine, theirs, backup("elsewhere", 3_000, elsewhere=7)):
        Manifests(place, each.cluster).write(each)
    (tmp_path / "b" / "backups" / f"{new_id(9_000)}.json").write_bytes(b"cut off")
    assert restored_beside(place, mine) == [
        SiblingBackup("b", theirs.id, 2_000),
        SiblingBackup("a", mine.id, 1_000),
    ]


@pytest.mark.parametrize("order", list(permutations(NAMES)))
def test_who_is_first_is_told_to_go_on_and_the_others_whom_to_restore_before(order: tuple[str, ...]) -> None:
    beside = [SiblingBackup(name, f"backup-{name}", 1_000) for name in order]
    first, second, third = order
    assert first_restored(first, beside) == []
    assert f"reclaim -f FILE --cluster {first} --without {second} --without {third}`" in order_advice(first, beside)
    assert f"restore them first ({first}), each" in order_advice(second, beside)
    assert f"restore them first ({first}, then {second}), each" in order_advice(third, beside)
    assert "newest backup first" in order_advice(first, [])
