"""Random sequences of operations show the same at an Apache Pulsar broker and at ours."""

from __future__ import annotations

import secrets
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

pytest.importorskip("pulsar")

from differential.harness import Program, Side, agrees_in_one, pairs_of_runs
from differential.sequences import SEQUENCES, follow
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

PHASES = (Phase.explicit, Phase.reuse, Phase.generate)
"""A sequence that differs is shown as it is: shrinking it would take minutes."""
SEQUENCES_AT_ONCE = 20
"""Each example is so many sequences, since they wait most of the time."""


def test_random_sequences_show_the_same(sides: tuple[Side, Side]) -> None:
    mine = secrets.token_hex(3)
    numbers = iter(range(1_000_000))

    @given(st.lists(SEQUENCES, min_size=SEQUENCES_AT_ONCE, max_size=SEQUENCES_AT_ONCE))
    @settings(max_examples=5, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), phases=PHASES)
    def same(sequences: list[Any]) -> None:
        programs = [
            Program(f"sequence-{next(numbers)}", lambda at, sequence=sequence: follow(at, *sequence))
            for sequence in sequences
        ]
        with ThreadPoolExecutor(2 * SEQUENCES_AT_ONCE) as pool:
            runs = [pairs_of_runs(program, sides, mine, pool) for program in programs]
        for sequence, program, pairs in zip(sequences, programs, runs, strict=True):
            agrees_in_one(program, pairs, sequence)

    same()
