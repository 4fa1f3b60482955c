"""A client chooses among answers, when several workers say where it belongs."""

from __future__ import annotations

from replicator.client.wire.following import Answer, best_answer

OLD = Answer("pulsar://a", (1, "A", "x"))
NEW = Answer("pulsar://b", (2, "B", "y"))
FOREIGN = Answer("pulsar://c", None)


def test_the_newest_epoch_counts_whatever_the_order() -> None:
    assert best_answer([OLD, NEW], None) is NEW
    assert best_answer([NEW, OLD], None) is NEW


def test_of_one_number_the_greater_writer_counts() -> None:
    other = Answer("pulsar://c", (2, "C", "a"))
    assert best_answer([other, NEW], None) is other


def test_an_old_primary_that_nobody_told_yet_cannot_call_its_clients_back() -> None:
    assert best_answer([OLD], NEW) is None
    assert best_answer([NEW], NEW) is NEW


def test_a_provider_without_epochs_is_believed_unless_one_with_epochs_was_heard() -> None:
    assert best_answer([FOREIGN], None) is FOREIGN
    assert best_answer([FOREIGN, OLD], None) is OLD
    assert best_answer([FOREIGN], OLD) is None


def test_without_answers_the_client_stays() -> None:
    assert best_answer([], NEW) is None
    assert best_answer([], None) is None
