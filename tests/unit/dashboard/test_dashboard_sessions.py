"""Sessions of the dashboard: each user's sign-in, and forms that only its own user may send."""

from __future__ import annotations

from replicator.dashboard import sessions
from replicator.dashboard.sessions import IDLE_SECONDS_MAX, SESSIONS_MAX, Sessions, is_id


def test_signing_in_gives_a_new_id_each_time_and_signing_out_ends_it() -> None:
    made = Sessions()
    first, second = made.sign_in("Bearer one"), made.sign_in("Bearer one")
    assert first != second
    assert is_id(first)
    assert made.authorization(first) == "Bearer one"
    made.sign_out(first)
    assert made.authorization(first) is None
    assert made.authorization(second) == "Bearer one"


def test_who_does_not_come_back_for_hours_is_signed_out() -> None:
    now = [0.0]
    made = Sessions(lambda: now[0])
    session = made.sign_in("Bearer one")
    now[0] = IDLE_SECONDS_MAX
    assert made.authorization(session) == "Bearer one"
    now[0] = 2 * IDLE_SECONDS_MAX + 1
    assert made.authorization(session) is None


def test_who_was_away_for_longest_goes_where_there_are_too_many() -> None:
    made = Sessions()
    ids = [made.sign_in(f"Bearer {number}") for number in range(SESSIONS_MAX)]
    assert made.authorization(ids[0]) is not None  # used last now
    made.sign_in("Bearer one more")
    assert made.authorization(ids[0]) is not None
    assert made.authorization(ids[1]) is None


def test_a_form_is_of_one_browser_and_one_process() -> None:
    made, another = Sessions(), Sessions()
    one, other = Sessions.new_id(), Sessions.new_id()
    assert made.is_form_token(one, made.form_token(one))
    assert not made.is_form_token(other, made.form_token(one))
    assert not made.is_form_token(one, another.form_token(one))
    assert not made.is_form_token(one, "")
    assert not made.is_form_token(one, "\ud800ü")


def test_only_what_looks_like_an_id_is_one() -> None:
    for text in ("", "x", "ü" * sessions.ID_CHARS, "a" * (sessions.ID_CHARS - 1) + " ", "a" * 1000):
        assert not is_id(text)
