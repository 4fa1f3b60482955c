"""Single values of a topology file: what is read, what is refused, and that what is shown reads back the same."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicator.topology.scalars import (
    check_address,
    check_database,
    check_master,
    format_duration,
    format_size,
    mask_password,
    parse_duration,
    parse_size,
)


@given(st.integers(0, 10**18 - 1))
def test_what_is_shown_of_a_size_or_a_duration_reads_back_the_same(number: int) -> None:
    assert parse_size(format_size(number)) == number
    if number < 10**12:
        assert parse_duration(format_duration(number)) == number


@pytest.mark.parametrize(
    ("text", "size_bytes"), [("64GiB", 64 * 1024**3), ("500MB", 500 * 1000**2), ("7 kB", 7000), ("12B", 12)]
)
def test_a_size_has_a_unit(text: str, size_bytes: int) -> None:
    assert parse_size(text) == size_bytes
    for wrong in (text[:-1] + "b", f"-{text}", f"{text}s", text.replace("B", ""), "GiB"):
        with pytest.raises(ValueError, match="is not a size"):
            parse_size(wrong)


@pytest.mark.parametrize(
    ("check", "good", "wrong"),
    [
        (check_address, "host:7101", "host"),
        (check_address, "[::1]:7101", "::1:7101"),
        (check_address, "a.b-c:1", "a.b-c:0"),
        (check_address, "127.0.0.1:65535", "0.0.0.0:7101"),
        (check_database, "embedded", "embed"),
        (check_database, "postgresql://u:p%40@h:5432/d", "postgresql://u:p@x@h:5432/d"),
        (check_database, "postgresql:///d?host=/run", "mysql://h/d"),
        (check_master, "local[*]", "local[0]"),
        (check_master, "spark://h:7077", "spark:h"),
    ],
)
def test_a_value_is_taken_as_it_is_or_refused(check: object, good: str, wrong: str) -> None:
    assert callable(check)
    assert check(good) == good
    with pytest.raises(ValueError):
        check(wrong)


@given(st.text(st.characters(codec="ascii", exclude_characters="\0"), min_size=1, max_size=12))
def test_no_part_of_a_password_is_shown(rest: str) -> None:
    for url in (f"postgresql://user:hunter2{rest}@host:5432/db", f"postgresql://user:{rest}hunter2@host/db?password=x"):
        assert "hunter2" not in mask_password(url), url
