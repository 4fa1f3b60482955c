"""Two releases that speak nothing but TLS: with tokens, or with certificates that every client must show. Their probes,
their links and `helm test` work, and renewed certificates and changed topologies are taken by the pods that run."""

from __future__ import annotations

import ssl
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from pods.secure_regions import TLS, SecureRegions
from pods_support import Cluster


@pytest.fixture
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="secure-") as made:
        yield Path(made)


@pytest.mark.timeout(900)
def test_regions_with_tokens_take_renewed_certificates_and_topologies_under_way(
    kubernetes: Cluster, directory: Path
) -> None:
    regions = SecureRegions(kubernetes, "tokens", directory)
    values = {"tls": TLS, "auth": {"existingSecret": "keys"}}
    auth = {"tokens": {"secret_key": "/etc/replicator/auth/secret.key"}, "superusers": ["operator"]}
    for name in regions.names:
        regions.prepare(name)
        regions.upgrade(name, values, auth=auth)
    east = regions.names[0]
    assert "Phase:          Succeeded" in kubernetes.helm("test", east, "--namespace", east)

    uid = kubernetes.pod(east, f"{east}-replicator-0")["metadata"]["uid"]
    renewed = regions.renew(east)
    place = (f"{east}-replicator.{east}.svc", 7101)
    kubernetes.until(lambda: ssl.get_server_certificate(place).split() == renewed.split(), "the renewed certificate")
    regions.upgrade(east, values, auth=auth, policies={"message_ttl": "1h"})
    kubernetes.until(
        lambda: "message_ttl" in regions.log(east).partition("topology reloaded")[2], "the changed topology"
    )
    pod = kubernetes.pod(east, f"{east}-replicator-0")
    assert pod["metadata"]["uid"] == uid
    assert pod["status"]["containerStatuses"][0]["restartCount"] == 0
    assert "Phase:          Succeeded" in kubernetes.helm("test", east, "--namespace", east)
    regions.uninstall()


@pytest.mark.timeout(900)
def test_regions_whose_clients_must_show_certificates_are_probed_and_tested(
    kubernetes: Cluster, directory: Path
) -> None:
    """A probe of Kubernetes has no certificate to show: the pod asks itself."""
    regions = SecureRegions(kubernetes, "certificates", directory)
    auth = regions.certificate_auth()
    for name in regions.names:
        regions.prepare(name)
        regions.upgrade(name, {"tls": {**TLS, "requireClientCertificates": True}}, auth=auth)
    for name in regions.names:
        (worker,) = kubernetes.pod(name, f"{name}-replicator-0")["spec"]["containers"]
        assert worker["readinessProbe"]["exec"]["command"][:2] == ["replicator", "health"]
        assert "Phase:          Succeeded" in kubernetes.helm("test", name, "--namespace", name)
    regions.uninstall()
