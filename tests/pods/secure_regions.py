"""Two releases that speak nothing but TLS, with certificates of one authority."""

from __future__ import annotations

from base64 import b64encode
from pathlib import Path
from typing import Any, Final

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

    def certificate_auth(self, *roles: str) -> dict[str, Any]:
        """Return a topology's ``auth`` in which certificates say who a worker is. Further superusers are ``roles``."""
        workers = [self.address(name).partition(":")[0] for name in self.names]
        return {"certificates": "common-name", "superusers": [*workers, *roles]}

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
        """Install or upgrade the release of a region. ``sections`` are added to the topology."""
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
