"""The inputs that fuzzing began with and found, run once more, and random changes of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from fuzz import data_plane_target, protocol_target
from hypothesis import given
from hypothesis import strategies as st

FOLDER = Path(protocol_target.__file__).parent
TARGETS = {"corpus": protocol_target.take, "data_plane_corpus": data_plane_target.take}
INPUTS = [file for name in TARGETS for file in sorted((FOLDER / name).iterdir())]


@pytest.mark.parametrize("file", INPUTS, ids=lambda file: f"{file.parent.name}-{file.name}")
def test_an_input_of_the_corpus_is_taken(file: Path) -> None:
    TARGETS[file.parent.name](file.read_bytes())


@given(
    file=st.sampled_from(INPUTS),
    changes=st.lists(st.tuples(st.integers(0, 600), st.integers(0, 255)), max_size=5),
    cut=st.integers(0, 20),
)
def test_a_changed_one_is_taken_too(file: Path, changes: list[tuple[int, int]], cut: int) -> None:
    data = bytearray(file.read_bytes())
    for at, byte in changes:
        data[at % len(data)] = byte
    TARGETS[file.parent.name](bytes(data[: max(1, len(data) - cut)]))


def test_each_reader_of_the_data_plane_has_an_input() -> None:
    chosen = {file.read_bytes()[0] for file in INPUTS if file.parent.name == "data_plane_corpus"}
    assert chosen == set(range(len(data_plane_target.READERS)))
