from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from replicator.engine.topics.topic_list import TopicListChange, topic_list_change, topic_list_hash

NAMES = st.sets(st.sampled_from([f"persistent://t/n/{name}" for name in "abcdefgh"]))


def test_the_hash_is_crc32c_with_its_lowest_byte_first() -> None:
    # 0xE3069283 is the check value of CRC32C for these nine digits.
    assert topic_list_hash(["123456789"]) == "839206e3"
    assert topic_list_hash([]) == "00000000"


def test_the_hash_is_over_the_names_with_commas_between_them() -> None:
    assert topic_list_hash(["b", "a"]) == topic_list_hash(["a,b"])
    assert topic_list_hash(["a", "b"]) != topic_list_hash(["ab"])


def test_the_hash_does_not_depend_on_the_order() -> None:
    names = [f"persistent://my-property/my-ns/pattern-topic-{number}" for number in (1, 2, 3)]
    assert topic_list_hash(names) == topic_list_hash(names[::-1])
    assert topic_list_hash(names) != topic_list_hash(names[:2])


def test_a_change_is_what_was_added_and_deleted() -> None:
    assert topic_list_change(["a", "b", "c"], ["d", "b", "e"]) == TopicListChange(("d", "e"), ("a", "c"))
    assert not topic_list_change(["a"], ["a"])


@given(NAMES, NAMES)
def test_a_change_leads_from_one_list_to_the_other(before: set[str], after: set[str]) -> None:
    change = topic_list_change(before, after)
    assert (before - set(change.deleted)) | set(change.added) == after
    assert bool(change) is (before != after)
