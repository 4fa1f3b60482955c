"""The clusters of a drill that run beside brokers."""

from __future__ import annotations

from pathlib import Path

import pytest

from replicator.drills.brokers import OwnBrokers, beside_brokers
from replicator.topology import Cluster, Topology


@pytest.mark.parametrize(("kind", "beside"), [("pulsar", ["a", "b", "c"]), ("mixed", ["a", "c"])])
def test_mixed_is_all_but_the_second_and_only_what_is_tested_travels(
    kind: str, beside: list[str], tmp_path: Path
) -> None:
    clusters = tuple(
        Cluster.model_validate({"name": name, "address": f"127.0.0.1:{7000 + n}", "data": f"/data/{name}"})
        for n, name in enumerate("abc")
    )
    made = OwnBrokers(Topology(clusters, ()), kind, "public/drill", ["drill-shared"], tmp_path).topology()
    assert [each.name for each in made.clusters if beside_brokers(each)] == beside
    for each in made.clusters:
        if each.apache is not None:
            assert each.apache.bridges_subscription("drill-shared")
            assert not each.apache.bridges_subscription("drill-tail")
    assert [made.origin_of_clients(name) for name in "ab"] == ["a.pulsar", "b.pulsar" if kind == "pulsar" else "b"]
