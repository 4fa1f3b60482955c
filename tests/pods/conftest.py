"""A Kubernetes cluster of one node, for all tests here."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pods_support import Cluster, cluster


@pytest.fixture(scope="session")
def kubernetes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("kubernetes")) as running:
        yield running
