"""Two regions in two Kubernetes clusters, by the commands and values of docs/kubernetes.md, to a drill that passes.

The regions reach each other through load balancers alone, which let only the other region's pods in.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from kubelet.network import NAMES, Place
from peers.kubernetes.control_plane import where
from pods_support import MERGE, REPOSITORY, Cluster, cluster, ready

PAGE: Final = (REPOSITORY / "docs" / "kubernetes.md").read_text().partition("## Two Kubernetes clusters")[2]
NAMESPACE: Final = "regions"
DRILL_SECONDS_MAX: Final = 280.0


@dataclass(frozen=True)
class Region:
    """One region: its name, its Kubernetes cluster, and the addresses of its own and of the other region's cluster."""

    name: str
    kubernetes: Cluster
    place: Place
    other: Place

    def own(self, text: str) -> str:
        """Return a text of the page about us-east with the name, the context and the addresses of this region."""
        if self.name != "us-east":
            text = text.replace("us-east", self.name).replace("context east", f"context {self.context}")
        text = text.replace("10.96.0.77", self.place.services.replace("0.0/16", "0.77"))
        return text.replace("203.0.113.0/24", self.other.pods)

    @property
    def context(self) -> str:
        return self.name.partition("-")[2]

    @property
    def worker(self) -> Any:
        return self.kubernetes.pods(NAMESPACE).get(f"{self.name}-replicator-0")


def _step(number: int) -> list[str]:
    """Return the commands of step ``number`` of the page."""
    step = PAGE.partition(f"\n{number}. ")[2].partition(f"\n{number + 1}. ")[0]
    block = re.search(r"```console\n(.*?)```", step, re.DOTALL)
    assert block is not None
    return [line.strip() for line in block[1].splitlines() if line.strip()]


def _values(name: str) -> str:
    block = re.search(rf"```yaml\n# {re.escape(name)}\n(.*?)```", PAGE, re.DOTALL)
    assert block is not None
    return block[1]


@dataclass(frozen=True)
class Shell:
    """Shell for the page's commands in ``directory``: those of kubectl run by the API, all others as they are."""

    directory: Path
    regions: dict[str, Region]
    """By the name of its context."""

    def run(self, *commands: str) -> str:
        """Run ``commands``, and return the output of the last one that is not kubectl's."""
        said = ""
        for command in commands:
            if command.startswith("kubectl "):
                self._kubectl(shlex.split(command))
            else:
                said = self._program(command)
        return said

    def _program(self, command: str) -> str:
        folder = where("helm")
        assert folder is not None
        ran = subprocess.run(
            ["bash", "-ec", command],
            cwd=self.directory,
            capture_output=True,
            text=True,
            timeout=400,
            check=False,
            env={
                **os.environ,
                "PATH": f"{folder}:{Path(sys.prefix) / 'bin'}:{os.environ['PATH']}",
                "KUBECONFIG": str(self.directory / "kubeconfig"),
                "PYTHONPATH": str(REPOSITORY),
            },
        )
        described = "\n".join(each.kubernetes.described() for each in self.regions.values()) if ran.returncode else ""
        assert ran.returncode == 0, f"{command}: {ran.stdout}{ran.stderr}\n{described}"
        return ran.stdout

    def _kubectl(self, words: list[str]) -> None:
        options = dict(word[2:].partition("=")[::2] for word in words if word.startswith("--") and "=" in word)
        region = self.regions[words[words.index("--context") + 1]]
        files = [word.partition("=")[2] for word in words if word.startswith("--from-file=")]
        of = f"/api/v1/namespaces/{NAMESPACE}"
        kubernetes = region.kubernetes
        match [word for word in words[1:] if not word.startswith("--") and word not in (region.context, NAMESPACE)]:
            case ["create", "namespace"]:
                kubernetes.call("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
            case ["create", "secret", "generic", name]:
                pairs = [each.partition("=")[::2] if "=" in each else (each, each) for each in files]
                data = {key: b64encode((self.directory / file).read_bytes()).decode() for key, file in pairs}
                kubernetes.call("POST", f"{of}/secrets", {"metadata": {"name": name}, "data": data})
            case ["create", "job", name]:
                jobs = of.replace("/api/v1", "/apis/batch/v1")
                cron = kubernetes.call("GET", f"{jobs}/{options['from'].replace('cronjob', 'cronjobs')}")
                spec = cron["spec"]["jobTemplate"]["spec"]
                kubernetes.call("POST", f"{jobs}/jobs", {"metadata": {"name": name}, "spec": spec})
            case ["rollout", "status", name]:
                assert name == f"statefulset/{region.name}-replicator"
                kubernetes.until(lambda: region.worker is not None and ready(region.worker), name)
            case ["wait", name]:
                _wait_for_job(kubernetes, name.partition("/")[2])
            case unknown:
                raise AssertionError(f"this test does not know kubectl {unknown}")


def _wait_for_job(kubernetes: Cluster, name: str) -> None:
    def ended() -> Any:
        conditions = kubernetes.jobs(NAMESPACE)[name]["status"].get("conditions", ())
        return [each["type"] for each in conditions if each["type"] in ("Complete", "Failed")]

    outcome = kubernetes.until(ended, f"the end of {name}", DRILL_SECONDS_MAX)
    (pod,) = kubernetes.pods(NAMESPACE, f"batch.kubernetes.io/job-name={name}").values()
    assert outcome == ["Complete"], kubernetes.log(pod, "drill")


@pytest.fixture(scope="module")
def regions(kubernetes: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Region, Region]]:
    east, west = Place(0), Place(1)
    with cluster(tmp_path_factory.mktemp("west"), west.number) as second:
        yield Region("us-east", kubernetes, east, west), Region("eu-west", second, west, east)
    kubernetes.helm("uninstall", "us-east", "--namespace", NAMESPACE, "--wait")


@pytest.mark.timeout(900)
def test_the_page_leads_from_nothing_to_a_drill_that_passes(regions: tuple[Region, Region], tmp_path: Path) -> None:
    shell = Shell(tmp_path, {region.context: region for region in regions})
    (tmp_path / "helm").symlink_to(REPOSITORY / "helm")
    planes = {region.context: region.kubernetes.plane for region in regions}
    (tmp_path / "kubeconfig").touch(mode=0o600)
    (tmp_path / "kubeconfig").write_text(
        yaml.safe_dump(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [
                    {"name": name, "cluster": {"server": each.url, "certificate-authority": str(each.authority)}}
                    for name, each in planes.items()
                ],
                "users": [{"name": name, "user": {"token": each.token}} for name, each in planes.items()],
                "contexts": [{"name": name, "context": {"cluster": name, "user": name}} for name in planes],
            }
        )
    )
    shell.run(*_step(1))
    (tmp_path / "values-secure.yaml").write_text(_values("values-secure.yaml"))
    for region in regions:
        shell.run(*map(region.own, _step(2)))
        (tmp_path / f"values-secure-{region.name}.yaml").write_text(region.own(_values("values-secure-us-east.yaml")))
        assert "Phase:          Succeeded" in shell.run(*map(region.own, _step(4)))
        links = f"/api/v1/namespaces/{NAMESPACE}/services/{region.name}-replicator-links/status"
        balanced = {"status": {"loadBalancer": {"ingress": [{"ip": NAMES[f"{region.name}.replicator.example"]}]}}}
        region.kubernetes.call("PATCH", links, balanced, kind=MERGE)
    east = regions[0]
    upgrade, test, *drill = map(east.own, _step(5))
    shell.run(upgrade)
    assert "Phase:          Succeeded" in shell.run(test)
    shell.run(*drill)
