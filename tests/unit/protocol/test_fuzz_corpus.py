"""What fuzzing began with and what it found, once more; and random changes of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from fuzz import protocol_target
from hypothesis import given
from hypothesis import strategies as st

CORPUS = sorted((Path(protocol_target.__file__).parent / "corpus").iterdir())


@pytest.mark.parametrize("file", CORPUS, ids=lambda file: file.name)
def test_an_input_of_the_corpus_is_taken(file: Path) -> None:
    protocol_target.take(file.read_bytes())


@given(
    file=st.sampled_from(CORPUS),
    changes=st.lists(st.tuples(st.integers(0, 300), st.integers(0, 255)), max_size=5),
    cut=st.integers(0, 20),
)
def test_a_changed_one_is_taken_too(file: Path, changes: list[tuple[int, int]], cut: int) -> None:
    data = bytearray(file.read_bytes())
    for at, byte in changes:
        data[at % len(data)] = byte
    protocol_target.take(bytes(data[: max(1, len(data) - cut)]))
