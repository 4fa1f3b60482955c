"""docs/sync.md says what each way in which a mark-delete position moves tells other clusters; each has a test."""

from __future__ import annotations

from named_tests import DOCS, missing, shown_by, unknown, without_tests

from replicator.topology import SyncSettings

PAGE = "sync.md"
SECTION = "Where a subscription starts"
WAYS = (
    *("latest", "acknowledged", "skipped", "cleared", "expired", "evicted", "seek", "reset", "compaction"),
    *("trimmed", "restored", "taken back", "broker's cursor", "migration"),
)


def test_each_way_has_a_test_and_the_tests_are_there() -> None:
    assert not missing(PAGE)
    assert all(isinstance(tests, list) and tests for tests in shown_by(PAGE)[SECTION].values())
    assert not without_tests(PAGE)


def test_the_table_has_each_way_and_no_other_than_those_with_a_test() -> None:
    assert not unknown(PAGE)
    text = (DOCS / PAGE).read_text()
    cases = list(shown_by(PAGE)[SECTION])
    assert [case for case in cases if f"\n| {case} | " not in text] == []
    assert [way for way in WAYS if not any(way in case for case in cases)] == []


def test_an_unsubscribe_waits_five_seconds_for_other_clusters_and_the_page_says_so() -> None:
    assert SyncSettings().in_use_timeout_ms == 5_000
    assert "\n3. After `sync.in_use_timeout_ms` (5 s) at most it deletes" in (DOCS / PAGE).read_text()
