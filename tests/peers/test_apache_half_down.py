"""One half of a broker away, clocks apart, with real Pulsar brokers (``tests/support/bridge_contract_halves.py``)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from bridge_contract_halves import *  # noqa: F403 - all of its tests
from peers.apache_support import brokers_of
from peers.half_down_support import Halved, halved


@pytest.fixture(scope="module")
def halves(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Halved]:
    """Two brokers, and a worker beside each, linked both ways."""
    path = tmp_path_factory.mktemp("halves")
    with brokers_of(path, "A", "B") as brokers, halved(path, brokers) as made:
        yield made
