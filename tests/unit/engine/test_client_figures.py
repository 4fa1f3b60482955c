"""Figures of one client: counts since it connected, and rates over the last half minute to minute."""

from __future__ import annotations

from replicator.engine.client_figures import WINDOW_SECONDS, ClientFigures, Counts, total


def test_a_rate_is_of_the_time_since_it_was_asked_for_before_the_last_half_minute() -> None:
    figures = ClientFigures(100.0)
    figures.messages, figures.bytes = 600, 6_000
    assert figures.rates(160.0) == Counts(10, 100)
    assert figures.rates(161.0).messages == 600 / 61  # asked again at once it is no other
    figures.messages += 60
    assert figures.rates(160.0 + WINDOW_SECONDS) == Counts(60 / WINDOW_SECONDS)
    for minute in range(2, 5):  # and nothing more comes
        rates = figures.rates(100.0 + 60.0 * minute)
    assert rates == Counts()
    assert figures.counts == Counts(660, 6_000)


def test_what_came_in_the_first_second_is_no_more_a_second_than_came() -> None:
    figures = ClientFigures(0.0)
    figures.messages = 5
    assert figures.rates(0.001).messages == 5


def test_counts_are_added_one_by_one() -> None:
    assert total([Counts(1, 2, 3, 4), Counts(10, 20, 30, 40)]) == Counts(11, 22, 33, 44)
    assert total([]) == Counts()
