"""Whatever an object of a release refers to is there: another object of it, or one that the values name."""

from __future__ import annotations

from copy import deepcopy

import pytest
from chart_references import missing
from chart_support import SETS, one, rendered, values_of


@pytest.mark.parametrize("values", SETS)
def test_whatever_is_referred_to_is_there(values: str) -> None:
    assert missing(rendered(values), values_of(values)) == []
    assert missing(rendered(values, install=True), values_of(values)) == []


def test_what_is_not_there_is_found_out() -> None:
    """The test above can fail: it notices each object that is taken away."""
    objects = rendered("everything")
    values = values_of("everything")
    nobody_names = {
        "NetworkPolicy",
        "PodDisruptionBudget",
        "Ingress",
        "ServiceMonitor",
        "PrometheusRule",
        "CronJob",
        "Job",
        "Pod",
    }
    for_others = {"us-east-copies-pulsar", "us-east-more"}
    for gone in objects:
        if gone["kind"] in nobody_names or gone["metadata"]["name"] in for_others:
            continue
        rest = [each for each in objects if each is not gone]
        assert missing(rest, values) != [], f"{gone['kind']} {gone['metadata']['name']}"


def test_a_port_that_pods_do_not_have_is_found_out() -> None:
    objects = deepcopy(rendered("load-balancers"))
    one(objects, "Service", "us-east-replicator-links")["spec"]["ports"][0]["targetPort"] = "links"
    assert missing(objects, values_of("load-balancers")) == [
        "Service us-east-replicator-links: leads to a port links that its pods do not have"
    ]


def test_a_file_that_nobody_mounts_is_found_out() -> None:
    objects = deepcopy(rendered("secure"))
    spec = one(objects, "StatefulSet")["spec"]["template"]["spec"]
    mounts = spec["containers"][0]["volumeMounts"]
    mounts.remove(next(mount for mount in mounts if mount["name"] == "auth"))
    assert any("/etc/replicator/auth/public.pem" in line for line in missing(objects, values_of("secure")))
