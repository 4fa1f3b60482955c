from __future__ import annotations

import pytest

from replicator.engine.policies import KeyAssignment
from replicator.engine.subscriptions.key_shared.consistent_hash import ConsistentHashSelector
from replicator.engine.subscriptions.key_shared.hash_range import HashRangeSelector
from replicator.engine.subscriptions.key_shared.load_aware import LoadAwareSelector
from replicator.engine.subscriptions.key_shared.selector import make_selector
from replicator.engine.subscriptions.key_shared.sticky import StickySelector


@pytest.mark.parametrize(
    ("assignment", "expected"),
    [
        (KeyAssignment.HASH_RANGE, HashRangeSelector),
        (KeyAssignment.CONSISTENT_HASHING, ConsistentHashSelector),
        (KeyAssignment.LOAD_AWARE, LoadAwareSelector),
    ],
)
def test_the_policy_chooses_the_algorithm(assignment: KeyAssignment, expected: type) -> None:
    assert type(make_selector(assignment, sticky=False)) is expected


@pytest.mark.parametrize("assignment", KeyAssignment)
def test_consumers_with_ranges_of_their_own_are_sticky_whatever_the_policy(assignment: KeyAssignment) -> None:
    assert type(make_selector(assignment, sticky=True)) is StickySelector
