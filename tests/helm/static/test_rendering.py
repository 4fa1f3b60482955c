"""Objects that helm makes of each set of values: valid by Kubernetes' schemas, unchanged, with commands that exist.

Wrong values are refused."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import typer
import yaml
from chart_references import pod_specs
from chart_support import (
    CHART,
    KUBERNETES,
    OF_OTHERS,
    RELEASE,
    REPOSITORY,
    SETS,
    VALUES,
    HelmRefused,
    Object,
    helm,
    kubernetes_schemas,
    one,
    rendered,
    rendered_text,
    topology_of,
    values_of,
)

from replicator.cli.main import app
from replicator.topology.diff import diff, refusals
from replicator.topology.reader import parse_topology

GOLDEN: Final = REPOSITORY / "tests" / "helm" / "golden"
WITH_GOLDEN: Final = ("minimal", "secure", "spark-kubernetes", "everything")


@pytest.fixture(scope="module")
def schemas() -> Any:
    return kubernetes_schemas()


def test_a_dozen_sets_of_values_are_there() -> None:
    assert len(SETS) >= 12


@pytest.mark.parametrize("values", SETS)
def test_helm_finds_nothing_to_complain_of(values: str) -> None:
    helm("lint", "--strict", CHART, "--kube-version", KUBERNETES, "--values", VALUES / f"{values}.yaml")


@pytest.mark.parametrize("values", SETS)
def test_every_object_is_valid_by_kubernetes_schemas(values: str, schemas: Any) -> None:
    for each in rendered(values):
        if each["kind"] not in OF_OTHERS:
            schemas.validate(each, KUBERNETES.rpartition(".")[0], strict=True)


def test_an_object_with_a_field_that_there_is_not_is_refused(schemas: Any) -> None:
    service = one(rendered("minimal"), "Service", "us-east-replicator")
    service["spec"]["portz"] = []
    with pytest.raises(schemas.ValidationError, match="portz"):
        schemas.validate(service, KUBERNETES.rpartition(".")[0], strict=True)


@pytest.mark.parametrize("values", WITH_GOLDEN)
def test_what_is_made_is_as_it_was(values: str) -> None:
    """``UPDATE_GOLDEN=1`` writes the files anew; look at the difference."""
    file = GOLDEN / f"{values}.yaml"
    made = re.sub(r"[ \t]+$", "", rendered_text(values), flags=re.MULTILINE)
    if os.environ.get("UPDATE_GOLDEN"):
        file.write_text(made)
    assert made == file.read_text()


@pytest.mark.parametrize("values", SETS)
def test_every_command_is_one_that_the_program_has(values: str) -> None:
    """Arguments of the worker, the driver, hooks and drills are read as the command line reads them."""
    seen = {_parsed(command[1:]) for command in _commands(rendered(values)) if command[0] == "replicator"}
    assert "worker" in seen


@pytest.mark.parametrize("values", [name for name in SETS if values_of(name)["topology"]["content"] != {}])
def test_the_topology_is_one_that_the_worker_takes(values: str) -> None:
    """Read by the same code, with each file where the pod has it."""
    objects = rendered(values)
    topology = topology_of(objects)
    assert topology is not None
    parsed = parse_topology(yaml.safe_dump(topology), Path("/etc/replicator/topology/topology.yaml"))
    worker = one(objects, "StatefulSet")["spec"]["template"]["spec"]["containers"][0]
    name = worker["args"][worker["args"].index("--cluster") + 1]
    cluster = parsed.cluster(name)
    ports = {port["name"]: port["containerPort"] for port in worker["ports"]}
    assert worker["args"][worker["args"].index("--monitoring-at") + 1] == f"[::]:{ports.pop('metrics')}"
    assert {place.rpartition(":")[2] for place in cluster.bound_at().values()} == {str(port) for port in ports.values()}
    assert cluster.bound_at()["listen"] == f"[::]:{ports['main']}"
    assert any(cluster.data.is_relative_to(mount["mountPath"]) for mount in worker["volumeMounts"])
    assert cluster.insecure or parsed.auth.enabled


@pytest.mark.parametrize("values", SETS)
def test_no_pod_may_more_than_it_needs(values: str) -> None:
    for owner, spec, labels in pod_specs(rendered(values)):
        name = f"{owner['kind']} {owner['metadata']['name']}"
        assert spec["securityContext"]["runAsNonRoot"] is True, name
        assert spec["securityContext"]["runAsUser"] > 0, name
        has_token = spec["automountServiceAccountToken"]
        is_driver = labels["app.kubernetes.io/component"] == "driver"
        assert not has_token or is_driver, name
        for container in [*spec["containers"], *(each for each in spec.get("initContainers", ()) if "command" in each)]:
            context = container["securityContext"]
            assert context["readOnlyRootFilesystem"] is True, name
            assert context["allowPrivilegeEscalation"] is False, name
            assert context["capabilities"] == {"drop": ["ALL"]}, name
            assert {"name": "tmp", "mountPath": "/tmp"} in container["volumeMounts"], f"{name}: where would it write?"
            assert {"name": "HOME", "value": "/tmp"} in container["env"], name


def test_a_token_of_kubernetes_is_where_spark_makes_pods_alone() -> None:
    mounted = {
        (values, labels["app.kubernetes.io/component"])
        for values in SETS
        for _, spec, labels in pod_specs(rendered(values))
        if spec["automountServiceAccountToken"]
    }
    assert mounted == {("spark-kubernetes", "driver")}


def test_a_probe_that_starts_a_process_has_the_time_for_it() -> None:
    (worker,) = one(rendered("certificates"), "StatefulSet")["spec"]["template"]["spec"]["containers"]
    for kind in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert worker[kind]["exec"]["command"][:2] == ["replicator", "health"]
        assert worker[kind]["timeoutSeconds"] >= 30
        assert worker[kind]["periodSeconds"] >= 30


# What is taken under way, and what restarts the pod.


def _restart_text(*arguments: str) -> str:
    template = one(rendered("minimal", *arguments), "StatefulSet")["spec"]["template"]
    return str(template["metadata"]["annotations"]["replicator/restart-when-changed"])


def _refused_under_way(*arguments: str) -> bool:
    """Return whether a running worker refuses the change; the chart has to agree with it."""
    before, after = (
        parse_topology(yaml.safe_dump(topology_of(rendered("minimal", *given))), Path("/topology.yaml"))
        for given in ((), arguments)
    )
    return before.auth.enabled != after.auth.enabled or bool(refusals(diff(before, after), "us-east"))


@pytest.mark.parametrize(
    "change",
    [
        "topology.content.clusters.ap-south.address=ap-south.example:7101",
        "topology.content.clusters.us-east.policies.message_ttl=1h",
        "topology.content.links[0].rate=1MiB",
        "topology.content.policies.message_ttl=1h",
        "topology.content.sync.update_interval_ms=50",
        "topology.content.pipeline.batch=5s",
    ],
)
def test_what_a_worker_takes_under_way_does_not_restart_its_pod(change: str) -> None:
    assert not _refused_under_way("--set", change)
    assert _restart_text("--set", change) == _restart_text()
    assert topology_of(rendered("minimal", "--set", change)) != topology_of(rendered("minimal"))


@pytest.mark.parametrize(
    "change",
    [
        "topology.content.clusters.us-east.address=us-east.example:7101",
        "topology.content.clusters.us-east.advertised=us-east.example:6650",
        "topology.content.store.size_max=8GiB",
        "topology.content.sync.mode=mark-delete",
        "database.existingSecret=us-east-database",
        "topology.content.auth.passwords=/etc/replicator/auth/passwords,topology.content.auth.superusers[0]=operator,"
        "auth.existingSecret=keys",
    ],
)
def test_what_needs_a_restart_restarts_the_pod(change: str) -> None:
    assert _refused_under_way("--set", change)
    assert _restart_text("--set", change) != _restart_text()


def test_without_reloads_every_change_restarts_the_pod() -> None:
    off = ("--set", "topology.reloadOnChange=false")
    changed = ("--set", "topology.content.links[0].rate=1MiB")
    assert _restart_text(*off, *changed) != _restart_text(*off)


# Wrong values.


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ("replicas=2", "at '/replicas': value must be 1"),
        ("podDisruptionBudget.maxUnavailable=0", "at '/podDisruptionBudget/maxUnavailable'"),
        ("cluster=", "at '/cluster'"),
        ("persistence.size=lots", "at '/persistence/size'"),
        ("persistence.accessModes[0]=ReadWriteMany", "at '/persistence/accessModes/0'"),
        ("drill.messages=5", "at '/drill/messages'"),
        ("drill.namespace=canary", "at '/drill/namespace'"),
        ("drill.shedule=1", "'shedule'"),
        ("image.digest=latest", "at '/image/digest'"),
        ("terminationGracePeriodSeconds=5", "at '/terminationGracePeriodSeconds'"),
        ("driver.kubernetes.memory=512Mi", "at '/driver/kubernetes/memory'"),
        ("topology.content.cluster=1", "'cluster'"),
        ("service.links.externalTrafficPolicy=None", "at '/service/links/externalTrafficPolicy'"),
        ("cluster=nowhere", 'has no "nowhere"; it has: eu-west, us-east'),
        ("topology.existingSecret=other", "topology.content is given beside"),
        ("topology.content.clusters.us-east.listen=0.0.0.0:9", "ports.main"),
        ("topology.content.clusters.us-east.data=/data", "/var/lib/replicator"),
        ("topology.content.clusters.us-east.insecure=false", "insecure: true"),
        ("topology.content.clusters.us-east.address=", "address is missing"),
        ("topology.content.tls.required=true", "set tls.required"),
        ("tls.enabled=true", "tls.existingSecret"),
        ("tls.required=true", "need tls.enabled"),
        (
            "tls.enabled=true,tls.existingSecret=a,tls.requireClientCertificates=true",
            "topology.content.auth.certificates",
        ),
        ("driver.enabled=true", "topology.content.pipeline.driver"),
        ("topology.content.pipeline.master=k8s://x", "driver.kubernetes.enabled"),
        ("driver.kubernetes.enabled=true", "needs driver.enabled"),
        ("ingress.enabled=true,ingress.hosts[0]=console.example", "clusters.us-east.hosts"),
        ("ingress.enabled=true", "ingress.hosts is empty"),
        ("networkPolicy.enabled=true,database.existingSecret=db", "networkPolicy.database is empty"),
        ("resources.limits.memory=512Mi", "resources.requests.memory is 2Gi and resources.limits.memory 512Mi"),
        ("resources.limits.memory=536870912", "resources.requests.memory is 2Gi"),
        ("resources.limits.cpu=250m", "resources.requests.cpu is 500m and resources.limits.cpu 250m"),
        ("ports.metrics=7101", "ports.metrics: 7101 is another port"),
        ("ports.metrics=0,networkPolicy.enabled=true,networkPolicy.metrics[0].podSelector.a=b", "ports.metrics is 0"),
        ("test.resources.limits.memory=64Mi", "test.resources.requests.memory"),
        ("service.http.nodePort=30101", "service.http.nodePort is for the types NodePort and LoadBalancer"),
        ("topology.content.clusters.us-east.adress=x:1", "'adress'"),
        ("topology.content.links[0].rates=1MiB", "'rates'"),
        ("topology.content.sync.mode=roughly", "at '/topology/content/sync/mode'"),
        ("topology.content.sync.update_interval_ms=0", "at '/topology/content/sync/update_interval_ms'"),
        ("topology.content.store.segments_kept=few", "at '/topology/content/store/segments_kept'"),
        ("topology.content.metrics.topics=-1", "at '/topology/content/metrics/topics'"),
        ("topology.content.traces.samples=1", "'samples'"),
    ],
)
def test_a_wrong_value_is_refused_and_named(arguments: str, named: str) -> None:
    with pytest.raises(HelmRefused) as refused:
        rendered("minimal", "--set", arguments)
    assert named in str(refused.value)


def test_every_section_that_a_topology_file_has_may_be_given() -> None:
    """Also those that the docs describe and the chart has nothing to do with."""
    objects = rendered(
        "minimal",
        *("--set-json", 'topology.content.metrics={"topics": 5}'),
        *("--set-json", 'topology.content.traces={"endpoint": "http://collector:4318", "sample": 0.5}'),
        *("--set-json", 'topology.content.watchdog={"end_after": "30s"}'),
        *("--set-json", 'topology.content.policies={"message_ttl": "unlimited", "max_producers": 7}'),
    )
    parsed = parse_topology(yaml.safe_dump(topology_of(objects)), Path("/topology.yaml"))
    assert (parsed.metrics.topics, parsed.traces.sample, parsed.watchdog.end_after) == (5, 0.5, 30)


def test_without_a_topology_the_message_says_what_to_give() -> None:
    with pytest.raises(HelmRefused, match="give `content`, `existingConfigMap` or `existingSecret`"):
        helm("template", RELEASE, CHART, "--kube-version", KUBERNETES, "--set", "cluster=us-east")


def test_a_driver_that_the_worker_would_not_answer_is_refused() -> None:
    with pytest.raises(HelmRefused, match=r"clusters\.us-east\.hosts"):
        rendered("driver", "--set", "driver.workerUrl=http://elsewhere.example:7101")
    rendered("driver", "--set", "driver.workerUrl=http://10.0.0.7:7101")


def _commands(objects: list[Object]) -> Iterator[list[str]]:
    """Yield the commands of containers and of their probes."""
    for _, spec, _ in pod_specs(objects):
        for container in [*spec["containers"], *spec.get("initContainers", ())]:
            if "command" in container:
                yield [*container["command"], *container.get("args", ())]
            for kind in ("startupProbe", "livenessProbe", "readinessProbe"):
                if "exec" in container.get(kind, {}):
                    yield container[kind]["exec"]["command"]


def _parsed(arguments: list[str]) -> str:
    """Return the command that the arguments name; fail with the command line's error if they are wrong."""
    command: Any = typer.main.get_command(app)
    names: list[str] = []
    while hasattr(command, "commands"):
        names.append(arguments[len(names)])
        command = command.commands[names[-1]]
    command.make_context(" ".join(names), arguments[len(names) :])
    return " ".join(names)
