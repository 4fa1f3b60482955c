"""Effects of single values: where they appear, what follows from them, and which other values they exclude."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from chart_references import missing, pod_specs
from chart_support import KUBERNETES, OF_OTHERS, HelmRefused, kubernetes_schemas, merged, one, rendered, values_of

OWN = "topology.content.clusters.us-east"


def test_pods_beside_the_worker_find_its_names_inside_the_cluster() -> None:
    """Pods of tests and drills find the worker's names at ``insideAddress``, with the topology's ports.

    The pods of the worker and of the check get no such names.
    """
    objects = rendered("load-balancers", "--set", "insideAddress=10.96.0.77,drill.enabled=true")
    service = one(objects, "Service", "us-east-replicator-inside")["spec"]
    assert service["clusterIP"] == "10.96.0.77"
    # The third port is that of `advertised`, which is that of `pulsar` too.
    found = {port["port"]: port["targetPort"] for port in service["ports"]}
    assert found == {7443: "main", 6650: "pulsar", 6651: "pulsar-tls"}
    alias = {"ip": "10.96.0.77", "hostnames": ["us-east.replicator.example", "clients.us-east.example"]}
    led = {labels["app.kubernetes.io/component"]: spec.get("hostAliases", []) for _, spec, labels in pod_specs(objects)}
    assert led == {"worker": [], "check": [], "test": [alias], "drill": [alias]}


def test_other_regions_reach_the_ports_of_clients_where_these_have_the_name_of_the_address() -> None:
    """A port of clients is left out if its address has another name, or if nodes lead to it by their own ports."""

    def ports(*arguments: str) -> dict[int, str]:
        service = one(rendered("load-balancers", *arguments), "Service", "us-east-replicator-links")["spec"]
        return {port["port"]: port["targetPort"] for port in service["ports"]}

    assert ports() == {7443: "main", 6650: "pulsar", 6651: "pulsar-tls"}
    assert ports("--set", f"{OWN}.pulsar=clients.us-east.example:6650") == {7443: "main", 6651: "pulsar-tls"}
    assert ports("--set", f"{OWN}.advertised=us-east.replicator.example:6660")[6660] == "pulsar"
    assert ports("--set", "service.links.type=NodePort") == {7443: "main"}


@pytest.mark.parametrize(
    ("values", "arguments", "said"),
    [
        ("existing-configmap", "insideAddress=10.96.0.77", "insideAddress needs topology.content"),
        ("minimal", f"insideAddress=10.96.0.77,{OWN}.address=10.0.0.1:7101", "has numbers and no names"),
        ("minimal", "backup.enabled=true", "give backup.existingClaim"),
        ("secure", "extraVolumes[0].name=tls", "extraVolumes: pods have a volume tls already"),
        ("minimal", "extraVolumeMounts[0].mountPath=/tmp/", "containers have something at /tmp/ already"),
        ("minimal", "sidecars[0].name=worker", "sidecars: the worker's pod has a container worker already"),
        ("restore", "initContainers[0].name=restore", "initContainers: the worker's pod has a container restore"),
        ("minimal", "backup.enabled=true,backup.at=/data,backup.existingClaim=c", "mounted at /backups"),
        ("minimal", "backup.at=backups", "at '/backup/at'"),
        ("certificates", "tls.keys.ca=ca", "cert-manager has names of its own"),
        ("minimal", "gateway.enabled=true", "gateway.parentRefs is empty"),
        (
            "minimal",
            "networkPolicy.enabled=true,backup.enabled=true,backup.at=s3://kept",
            "networkPolicy.extraEgress is empty: backups have to reach s3://kept",
        ),
        ("minimal", "backup.restore.enabled=true", "give backup.existingClaim"),
        (
            "minimal",
            "backup.restore.without[0]=nowhere",
            'backup.restore.without: topology.content.clusters has no "now',
        ),
        ("secure", "gateway.enabled=true,gateway.tcp.pulsar[0].name=g", "give gateway.tcp.pulsarTls"),
        ("minimal", "gateway.enabled=true,gateway.tcp.pulsarTls[0].name=g", "gateway.tcp.pulsarTls needs tls.enabled"),
        (
            "minimal",
            "gateway.enabled=true,service.pulsar.enabled=false,gateway.tcp.pulsar[0].name=g",
            "lead to a Service that service.pulsar.enabled makes",
        ),
        ("minimal", "gateway.enabled=true,gateway.parentRefs[0].name=g,gateway.hostnames[0]=x.example", "(421)"),
        ("minimal", "ingress.enabled=true,ingress.hosts[0]=*.example", "(421)"),
        ("minimal", "podMonitor.enabled=true,serviceMonitor.enabled=true", "would be read twice"),
        ("minimal", "prometheusRule.rules.ReplicatorDisk.enabled=false", "there is no alert ReplicatorDisk"),
        (
            "minimal",
            "prometheusRule.enabled=true,prometheusRule.rules.ReplicatorDiskFull.threshold=2",
            "compares with no threshold",
        ),
        ("minimal", "prometheusRule.rules.ReplicatorDiskFull.severty=x", "'severty'"),
        ("minimal", "authorities.existingSecret=a,authorities.existingConfigMap=b", "both given"),
        ("postgres", "database.keys.host=host", "database.keys.user is missing"),
        ("minimal", "driver.pod.affinty.a=b", "'affinty'"),
        ("minimal", "persistence.existingClaim=Data", "at '/persistence/existingClaim'"),
    ],
)
def test_what_does_not_fit_is_refused(values: str, arguments: str, said: str) -> None:
    with pytest.raises(HelmRefused) as refused:
        rendered(values, "--set", arguments)
    assert said in str(refused.value)


def test_a_pods_own_values_win_over_those_of_every_pod_and_never_over_what_finds_it() -> None:
    own = {"nodeSelector": {"disk": "fast"}, "labels": {"app.kubernetes.io/component": "worker", "team": "tests"}}
    objects = rendered(
        "everything",
        *("--set-json", f"test.pod={json.dumps(own)}", "--set", "commonLabels.team=all"),
    )
    specs = {labels["app.kubernetes.io/component"]: (spec, labels) for _, spec, labels in pod_specs(objects)}
    assert specs["test"][0]["nodeSelector"] == {"disk": "fast"}
    assert specs["drill"][0]["nodeSelector"] == {"kubernetes.io/os": "linux"}
    assert specs["test"][1]["team"] == "tests"
    assert specs["check"][1]["team"] == "all"


def test_a_probe_may_be_switched_off_and_its_times_are_all_that_is_left() -> None:
    (worker,) = one(rendered("minimal", "--set", "probes.liveness.enabled=false"), "StatefulSet")["spec"]["template"][
        "spec"
    ]["containers"]
    assert "livenessProbe" not in worker
    assert "enabled" not in worker["readinessProbe"]


def test_an_ingress_has_paths_and_names_with_a_star() -> None:
    hosts = [{"host": "*.replicator.example", "paths": ["/admin", "/ws"]}, "us-east.replicator.example"]
    given = {"enabled": True, "className": "", "tls": [], "hosts": hosts, "pathType": "Exact"}
    rules = one(rendered("everything", "--set-json", f"ingress={json.dumps(given)}"), "Ingress")["spec"]["rules"]
    assert [rule["host"] for rule in rules] == ["*.replicator.example", "us-east.replicator.example"]
    paths = [[(path["path"], path["pathType"]) for path in rule["http"]["paths"]] for rule in rules]
    assert paths == [[("/admin", "Exact"), ("/ws", "Exact")], [("/", "Exact")]]


def test_a_route_leads_to_the_worker_that_ends_tls_or_not() -> None:
    on = ("--set", "gateway.enabled=true,gateway.parentRefs[0].name=outside")
    for kind, more in (("HTTPRoute", ()), ("TLSRoute", ("--set", "gateway.passthrough=true"))):
        (rule,) = one(rendered("minimal", *on, *more), kind)["spec"]["rules"]
        assert rule == {"backendRefs": [{"name": "us-east-replicator", "port": 7101}]}


def test_routes_of_tcp_lead_clients_and_links_to_the_ports_that_they_want() -> None:
    tcp = {"pulsarTls": [{"name": "outside", "sectionName": "tls"}], "links": [{"name": "regions"}]}
    on = ("--set", "gateway.enabled=true", "--set-json", f"gateway.tcp={json.dumps(tcp)}")
    objects = rendered("secure", *on)
    assert not [each for each in objects if each["kind"] == "HTTPRoute"], "no Gateway was named for it"
    leads = {"pulsar-tls": ("us-east-replicator-pulsar", 6651), "links": ("us-east-replicator", 7101)}
    for suffix, (service, port) in leads.items():
        route = one(objects, "TCPRoute", f"us-east-replicator-{suffix}")
        assert route["apiVersion"] == "gateway.networking.k8s.io/v1alpha2"
        assert route["spec"]["rules"] == [{"backendRefs": [{"name": service, "port": port}]}]
        assert port in {each["port"] for each in one(objects, "Service", service)["spec"]["ports"]}
    newest = ("--api-versions", "gateway.networking.k8s.io/v1/TCPRoute")
    routes = [each for each in rendered("secure", *on, *newest) if each["kind"] == "TCPRoute"]
    assert {each["apiVersion"] for each in routes} == {"gateway.networking.k8s.io/v1"}


def test_a_worker_that_begins_with_a_backup_restores_it_before_it_starts() -> None:
    """After containers of one's own, with what the worker itself has; nothing else of the pod changes."""
    restore = {"enabled": True, "backup": "20260101T000000Z-1", "without": ["eu-west"]}
    given = ("--set", "backup.existingClaim=kept", "--set-json", f"backup.restore={json.dumps(restore)}")
    own = ("--set-json", 'initContainers=[{"name": "first", "image": "x"}]')
    objects = rendered("secure", *given, *own)
    spec = one(objects, "StatefulSet")["spec"]["template"]["spec"]
    first, restoring = spec["initContainers"]
    (worker,) = spec["containers"]
    assert first["name"] == "first"
    args = restoring["args"]
    assert [*restoring["command"], *args[:3]] == ["replicator", "backup", "restore", "--if-empty"]
    assert args[args.index("--at") + 1 :] == ["/backups", "--backup", restore["backup"], "--without", "eu-west"]
    mounts = {each["mountPath"]: each for each in restoring["volumeMounts"]}
    assert mounts.pop("/backups")["readOnly"]
    assert mounts == {each["mountPath"]: each for each in worker["volumeMounts"]}
    assert {key: restoring[key] for key in ("image", "securityContext", "resources")} == {
        key: worker[key] for key in ("image", "securityContext", "resources")
    }
    assert missing(objects, merged(values_of("secure"), {"backup": {"existingClaim": "kept"}})) == []
    without = one(rendered("secure", *own), "StatefulSet")["spec"]["template"]["spec"]
    assert [each["name"] for each in without["initContainers"]] == ["first"]
    assert without["containers"] == [worker]


def test_a_claim_that_is_there_is_used_and_none_is_made() -> None:
    stateful = one(rendered("minimal", "--set", "persistence.existingClaim=kept"), "StatefulSet")["spec"]
    assert "volumeClaimTemplates" not in stateful
    data = [each for each in stateful["template"]["spec"]["volumes"] if each["name"] == "data"]
    assert data == [{"name": "data", "persistentVolumeClaim": {"claimName": "kept"}}]


def test_a_database_has_its_parts_and_its_authority_from_secrets() -> None:
    keys = {"host": "host", "port": "port", "user": "username", "password": "password", "name": "dbname"}
    given = ("--set-json", f"database.keys={json.dumps(keys)}", "--set", "database.authority.existingSecret=db-ca")
    objects = rendered("postgres", *given)
    topology = yaml.safe_load(one(objects, "ConfigMap", "us-east-replicator-topology")["data"]["topology.yaml"])
    assert topology["clusters"]["us-east"]["database_file"] == "/etc/replicator/database/parts"
    seen = set()
    for _, spec, labels in pod_specs(objects):
        (container,) = spec["containers"]
        if {"name": "PGSSLMODE", "value": "verify-full"} in container["env"]:
            seen.add(labels["app.kubernetes.io/component"])
            (volume,) = [each["secret"] for each in spec["volumes"] if each["name"] == "database"]
            paths = {item["path"]: item["key"] for item in volume["items"]}
            assert paths == {f"parts/{'dbname' if part == 'name' else part}": key for part, key in keys.items()}
    assert seen == {"worker", "check", "migrate"}


def _rules(*arguments: str) -> dict[str, Any]:
    made = one(rendered("minimal", "--set", "prometheusRule.enabled=true", *arguments), "PrometheusRule")
    return {rule["alert"]: rule for group in made["spec"]["groups"] for rule in group["rules"]}


def test_an_alert_may_be_left_out_or_changed() -> None:
    changes = {
        "ReplicatorSeriesSummed": {"enabled": False},
        "ReplicatorApacheUnreachable": {"enabled": False},  # the only one of its group
        "ReplicatorStoreNearlyFull": {"threshold": 0.8, "severity": "page", "for": "5m"},
    }
    before, after = _rules(), _rules("--set-json", f"prometheusRule.rules={json.dumps(changes)}")
    assert before.keys() - after.keys() == {"ReplicatorSeriesSummed", "ReplicatorApacheUnreachable"}
    full = after.pop("ReplicatorStoreNearlyFull")
    assert full["expr"].endswith("> 0.8")
    assert (full["labels"]["severity"], full["for"]) == ("page", "5m")
    assert all(before[name] == rule for name, rule in after.items())


def test_a_pod_monitor_asks_what_a_service_monitor_would() -> None:
    objects = rendered("certificates", "--set", "podMonitor.enabled=true,serviceMonitor.enabled=false")
    of_pods = one(objects, "PodMonitor")["spec"]
    (endpoint,) = of_pods["podMetricsEndpoints"]
    assert endpoint == one(rendered("certificates"), "ServiceMonitor")["spec"]["endpoints"][0]
    labels = one(objects, "StatefulSet")["spec"]["template"]["metadata"]["labels"]
    assert of_pods["selector"]["matchLabels"].items() <= labels.items()
    assert labels[of_pods["jobLabel"]] == "us-east-replicator"  # alerts go by it


def test_what_all_these_make_is_valid_and_refers_to_what_is_there() -> None:
    schemas = kubernetes_schemas()
    given: dict[str, Any] = {
        "tls": {"keys": {"certificate": "crt", "key": "key", "ca": "ca"}},
        "authorities": {"existingConfigMap": "company"},
        "database": {"authority": {"existingSecret": "db-ca"}},
        "persistence": {"selector": {"matchLabels": {"a": "b"}}, "dataSource": {"kind": "VolumeSnapshot", "name": "s"}},
        "commonAnnotations": {"a": "b"},
        "namespaceOverride": "elsewhere",
        "insideAddress": "10.96.0.77",
        "backup": {"enabled": True, "existingClaim": "kept", "timeZone": "Europe/Paris"},
        "drill": {"timeZone": "Europe/Paris", "suspend": True, "ttlSecondsAfterFinished": 60},
        "checks": {"pod": {"annotations": {"a": "1"}, "priorityClassName": "high", "lifecycle": {}}},
    }
    arguments = [part for key, value in given.items() for part in ("--set-json", f"{key}={json.dumps(value)}")]
    objects = rendered("everything", *arguments)
    for each in objects:
        if each["kind"] not in OF_OTHERS:
            schemas.validate(each, KUBERNETES.rpartition(".")[0], strict=True)
        if each["metadata"]["name"] != "us-east-more":  # an object of one's own
            assert each["metadata"]["namespace"] == "elsewhere", each["metadata"]["name"]
            assert each["metadata"]["annotations"]["a"] in ("b", "1"), each["metadata"]["name"]
    assert missing(objects, merged(values_of("everything"), given)) == []
