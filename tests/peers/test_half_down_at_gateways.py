"""One half of a broker away, clocks apart (``tests/support/bridge_contract_halves.py``), where workers of ours play the
brokers, without Java."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from bridge_contract_halves import *  # noqa: F403 - all of its tests
from gateway_broker import gateways_of
from peers.half_down_support import Halved, halved


@pytest.fixture(scope="module")
def halves(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Halved]:
    """Two workers that play brokers, and a worker beside each, linked both ways."""
    path = tmp_path_factory.mktemp("halves")
    with gateways_of(path, "A", "B") as brokers, halved(path, brokers) as made:
        yield made
