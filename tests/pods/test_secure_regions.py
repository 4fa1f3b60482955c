"""Two releases that speak nothing but TLS: with tokens, or with certificates that every client must show. Their probes,
their links and `helm test` work, and renewed certificates and changed topologies are taken by the pods that run."""

from __future__ import annotations

import ssl
import tempfile
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from pods_support import REPOSITORY, Cluster
from security_support import Secrets

from replicator.security.certificate_making import Authority

CHART: Final = REPOSITORY / "helm" / "replicator"
TLS: Final = {"enabled": True, "required": True, "existingSecret": "certificate"}


class SecureRegions:
    """A release for each of two regions, in namespaces that begin with ``kind``."""

    def __init__(self, kubernetes: Cluster, kind: str, directory: Path) -> None:
        self.kubernetes, self.directory = kubernetes, directory
        self.names = [f"{kind}-east", f"{kind}-west"]
        self.authority = Authority(directory / "authority")
        self.secrets = Secrets.made(directory / "secrets")

    def address(self, name: str) -> str:
        return f"{name}-replicator.{name}.svc:7101"

    def prepare(self, name: str) -> None:
        self.kubernetes.call("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
        keys = {"secret.key": self.secrets.key, "token": self.secrets.token_file("operator")}
        self._secret("POST", name, "keys", keys)
        self.renew(name, "POST")

    def renew(self, name: str, method: str = "PUT") -> str:
        """Put a new certificate into a region's secret, and return its text."""
        host = self.address(name).partition(":")[0]
        certificate, key = self.authority.give(host, host)
        files = {"tls.crt": certificate, "tls.key": key, "ca.crt": self.authority.file}
        self._secret(method, name, "certificate", files)
        return certificate.read_text()

    def upgrade(self, name: str, values: dict[str, Any], **sections: Any) -> None:
        """Install, too."""
        content = {
            "clusters": {each: {"address": self.address(each)} for each in self.names},
            "links": [{"between": self.names}],
            "pipeline": {"engine": "embedded"},
            **sections,
        }
        file = self.directory / f"{name}.yaml"
        file.write_text(
            yaml.safe_dump({"cluster": name, "topology": {"content": content}, "test": {"links": True}, **values})
        )
        self.kubernetes.helm(
            *("upgrade", "--install", name, CHART, "--namespace", name, "--values", file, "--wait", "--timeout", "4m")
        )

    def log(self, name: str) -> str:
        return self.kubernetes.log(self.kubernetes.pod(name, f"{name}-replicator-0"), "worker")

    def uninstall(self) -> None:
        for name in self.names:
            self.kubernetes.helm("uninstall", name, "--namespace", name, "--wait")

    def _secret(self, method: str, namespace: str, name: str, files: dict[str, Path]) -> None:
        data = {key: b64encode(file.read_bytes()).decode() for key, file in files.items()}
        path = f"/api/v1/namespaces/{namespace}/secrets" + (f"/{name}" if method == "PUT" else "")
        self.kubernetes.call(method, path, {"metadata": {"name": name}, "data": data})


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
    auth = {
        "certificates": "common-name",
        "superusers": [regions.address(name).partition(":")[0] for name in regions.names],
    }
    for name in regions.names:
        regions.prepare(name)
        regions.upgrade(name, {"tls": {**TLS, "requireClientCertificates": True}}, auth=auth)
    for name in regions.names:
        (worker,) = kubernetes.pod(name, f"{name}-replicator-0")["spec"]["containers"]
        assert worker["readinessProbe"]["exec"]["command"][:2] == ["replicator", "health"]
        assert "Phase:          Succeeded" in kubernetes.helm("test", name, "--namespace", name)
    regions.uninstall()
