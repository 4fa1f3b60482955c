"""The contracts of the bridge (``tests/bridge_contract*.py``) with real Apache Pulsar brokers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from bridge_contract import *  # noqa: F403 - all of its tests
from bridge_contract import LINKS
from bridge_contract_rare import *  # noqa: F403 - all of its tests
from peers.apache_support import Beside, beside, brokers_of


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Beside]:
    """Two brokers, a worker beside each, linked both ways; and behind A a cluster of kind embedded."""
    path = tmp_path_factory.mktemp("pair")
    with (
        brokers_of(path, "A", "B", backlogQuotaCheckIntervalInSeconds="1") as brokers,
        beside(path, "ABC", brokers, LINKS) as made,
    ):
        yield made
