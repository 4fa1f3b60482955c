"""The contracts of the bridge (``tests/support/bridge_contract*.py``) where workers of ours play the brokers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from bridge_contract import *  # noqa: F403 - all of its tests
from bridge_contract import LINKS
from bridge_contract_rare import *  # noqa: F403 - all of its tests
from bridge_contract_starts import *  # noqa: F403 - all of its tests
from gateway_broker import gateways_of
from peers.apache_support import Beside, beside


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Beside]:
    """Two workers that play brokers, a worker beside each, linked both ways; behind A a cluster of kind embedded."""
    path = tmp_path_factory.mktemp("pair")
    with gateways_of(path, "A", "B") as brokers, beside(path, "ABC", brokers, LINKS) as made:
        yield made
