"""Values for pods, names, rights and networks, and nulls: what the chart makes of them beyond the sets of values."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from hashlib import sha256
from typing import Any, Final

import pytest
import yaml
from chart_references import pod_specs
from chart_support import (
    CHART,
    KUBERNETES,
    OF_OTHERS,
    SETS,
    HelmRefused,
    Object,
    kubernetes_schemas,
    one,
    rendered,
    values_of,
)

LONG: Final = "a" * 53
"""The longest name that a release may have."""


@pytest.fixture(scope="module")
def schemas() -> Any:
    return kubernetes_schemas()


# What all pods share.


@pytest.mark.parametrize("values", ["everything", "spark-kubernetes", "topology-secret"])
def test_every_pod_has_the_variables_and_the_volumes_that_are_given_for_all(values: str) -> None:
    """The pods of executors, hooks, tests and drills have them, too."""
    given = (
        *("--set-json", 'extraEnv=[{"name": "PGSERVICEFILE", "value": "/etc/company/services"}]'),
        *("--set-json", 'extraVolumes=[{"name": "company", "configMap": {"name": "company"}}]'),
        *("--set-json", 'extraVolumeMounts=[{"name": "company", "mountPath": "/etc/company"}]'),
    )
    seen = set()
    for owner, spec, labels in pod_specs(rendered(values, *given)):
        name = f"{owner['kind']} {owner['metadata']['name']}"
        (container,) = spec["containers"]
        assert {"name": "PGSERVICEFILE", "value": "/etc/company/services"} in container["env"], name
        assert {"name": "company", "mountPath": "/etc/company"} in container["volumeMounts"], name
        assert {"name": "company", "configMap": {"name": "company"}} in spec["volumes"], name
        seen.add(labels["app.kubernetes.io/component"])
    assert {"worker", "test", "check"} < seen


def test_what_is_given_for_pods_reaches_each_of_them() -> None:
    given = (
        *("--set", "schedulerName=own,runtimeClassName=gvisor,dnsPolicy=None,commonLabels.team=flights"),
        *("--set", "global.imageRegistry=registry.example,driver.master=,driver.kubernetes.enabled=true"),
        *("--set", "drill.enabled=true,auth.existingSecret=keys,database.existingSecret=db"),
        *("--set-json", 'hostAliases=[{"ip": "10.1.2.3", "hostnames": ["here"]}]'),
        *("--set-json", 'dnsConfig={"nameservers": ["10.0.0.1"]}'),
        *("--set-json", 'envFrom=[{"secretRef": {"name": "more"}}]'),
        *("--set-json", 'global.imagePullSecrets=[{"name": "registry"}]'),
    )
    components = set()
    for _owner, spec, labels in pod_specs(rendered("certificates", *given)):
        (container,) = spec["containers"]
        component = labels["app.kubernetes.io/component"]
        assert (spec["schedulerName"], spec["runtimeClassName"], spec["dnsPolicy"]) == ("own", "gvisor", "None"), (
            component
        )
        assert spec["hostAliases"] == [{"ip": "10.1.2.3", "hostnames": ["here"]}], component
        assert spec["dnsConfig"] == {"nameservers": ["10.0.0.1"]}, component
        assert spec["imagePullSecrets"] == [{"name": "registry"}], component
        assert container["envFrom"] == [{"secretRef": {"name": "more"}}], component
        assert labels["team"] == "flights", component
        if component != "executor":  # Spark puts the image there
            assert container["image"].startswith("registry.example/replicator:"), component
        components.add(component)
    assert components == {"worker", "driver", "executor", "drill", "test", "check", "migrate"}


def test_the_workers_pod_has_containers_before_it_and_beside_it() -> None:
    given = (
        *("--set-json", 'initContainers=[{"name": "first", "image": "x"}]'),
        *("--set-json", 'sidecars=[{"name": "beside", "image": "x"}]'),
        *("--set-json", 'lifecycle={"preStop": {"exec": {"command": ["sleep", "1"]}}}'),
        *("--set", "statefulSetAnnotations.reloads=no,updateStrategy=OnDelete"),
    )
    stateful = one(rendered("minimal", *given), "StatefulSet")
    spec = stateful["spec"]["template"]["spec"]
    assert [each["name"] for each in spec["initContainers"]] == ["first"]
    assert [each["name"] for each in spec["containers"]] == ["worker", "beside"]
    assert spec["containers"][0]["lifecycle"]["preStop"]["exec"]["command"] == ["sleep", "1"]
    assert stateful["spec"]["updateStrategy"] == {"type": "OnDelete"}
    assert stateful["metadata"]["annotations"]["reloads"] == "no"


def test_objects_of_ones_own_are_part_of_the_release() -> None:
    more = one(rendered("everything"), "ConfigMap", "us-east-more")
    assert more["data"] == {"cluster": "us-east"}
    assert one(rendered("everything"), "StatefulSet")["metadata"]["labels"]["cost-center"] == "42"


@pytest.mark.parametrize("values", SETS)
def test_no_pod_runs_as_the_account_default_and_hooks_have_one_that_is_there(values: str) -> None:
    created = values_of(values)["serviceAccount"]["create"]
    for install in (False, True):
        objects = rendered(values, install=install)
        accounts = {each["metadata"]["name"]: each for each in objects if each["kind"] == "ServiceAccount"}
        for owner, spec, labels in pod_specs(objects):
            if labels["app.kubernetes.io/component"] == "executor":
                continue  # Spark gives it the worker's
            account = spec["serviceAccountName"]
            assert (account != "default") == created, owner["metadata"]["name"]
            if install and labels["app.kubernetes.io/component"] == "check" and created:
                assert "helm.sh/hook" in accounts[account]["metadata"]["annotations"]


def test_the_worker_is_replaced_although_it_never_got_ready() -> None:
    assert one(rendered("minimal"), "StatefulSet")["spec"]["podManagementPolicy"] == "Parallel"


@pytest.mark.parametrize("path", ["checks", "migrations", "test", "drill", "driver", ""])
def test_resources_of_each_pod_are_values(path: str) -> None:
    component = {"checks": "check", "migrations": "migrate", "": "worker"}.get(path, path)
    values = {"migrations": "postgres", "drill": "everything", "driver": "driver"}.get(path, "minimal")
    key = f"{path}.resources".lstrip(".")
    objects = rendered(values, "--set", f"{key}.limits.cpu=3,{key}.requests.cpu=2")
    (spec,) = [spec for _, spec, labels in pod_specs(objects) if labels["app.kubernetes.io/component"] == component]
    assert spec["containers"][0]["resources"]["limits"]["cpu"] == 3
    assert spec["containers"][0]["resources"]["requests"]["cpu"] == 2


# Names and texts.


@pytest.mark.parametrize(
    ("release", "name"),
    [
        ("us.east", "us-east-replicator"),
        ("1st", "r-1st-replicator"),
        ("123", "r-123-replicator"),
        ("true", "true-replicator"),
        ("replicator", "replicator"),
        (LONG, f"{LONG[:31]}-{sha256(f'{LONG}-replicator'.encode()).hexdigest()[:8]}"),
    ],
)
def test_every_name_that_a_release_may_have_makes_valid_objects(release: str, name: str, schemas: Any) -> None:
    objects = rendered("everything", "--set", "nameOverride=,extraObjects=null", release=release)
    for each in objects:
        if each["kind"] not in OF_OTHERS:
            schemas.validate(each, KUBERNETES.rpartition(".")[0], strict=True)
        assert re.fullmatch(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?", each["metadata"]["name"]), each["metadata"]["name"]
    assert one(objects, "StatefulSet")["metadata"]["name"] == name
    assert one(objects, "StatefulSet")["spec"]["selector"]["matchLabels"]["app.kubernetes.io/instance"] == release


def test_releases_that_begin_alike_have_other_names() -> None:
    names = {one(rendered("minimal", release="a" * 50 + end), "StatefulSet")["metadata"]["name"] for end in "bc"}
    assert len(names) == 2


@pytest.mark.parametrize("text", ["123", "1e3", "true", "y", "null"])
def test_a_text_that_looks_like_something_else_stays_a_text(text: str, schemas: Any) -> None:
    texts = (
        *("persistence.storageClass", "priorityClassName", "ingress.className", "tls.existingSecret"),
        *("auth.existingSecret", "auth.tokenKey", "database.existingSecret", "database.key", "topology.key"),
        *("serviceMonitor.tokenSecret.name", "serviceMonitor.tokenSecret.key", "serviceMonitor.interval"),
        *("serviceMonitor.scrapeTimeout", "serviceAccount.name", "image.tag", "nameOverride", "cluster"),
        *("service.pulsar.loadBalancerClass",),
    )
    given = [each for path in texts for each in ("--set-string", f"{path}={text}")]
    given += ["--set-json", f'topology.content.clusters={{"{text}": {{"address": "us-east.replicator.example:7101"}}}}']
    given += ["--set-json", "topology.content.links=[]", "--set", "ingress.enabled=false,serviceMonitor.enabled=true"]
    objects = rendered("everything", *given)
    for each in objects:
        if each["kind"] not in OF_OTHERS:
            schemas.validate(each, KUBERNETES.rpartition(".")[0], strict=True)
    (endpoint,) = one(objects, "ServiceMonitor")["spec"]["endpoints"]
    assert (endpoint["interval"], endpoint["scrapeTimeout"]) == (text, text)
    assert endpoint["authorization"]["credentials"] == {"name": text, "key": text}


@pytest.mark.parametrize("tag", ["v1-", "a" * 128, "_latest_", "1.0.", "-x"])
def test_every_tag_of_an_image_makes_a_label_or_is_refused(tag: str) -> None:
    if tag.startswith("-"):
        with pytest.raises(HelmRefused, match="at '/image/tag'"):
            rendered("minimal", "--set-string", f"image.tag={tag}")
        return
    stateful = one(rendered("minimal", "--set-string", f"image.tag={tag}"), "StatefulSet")
    label = stateful["metadata"]["labels"]["app.kubernetes.io/version"]
    assert re.fullmatch(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", label)
    assert stateful["spec"]["template"]["spec"]["containers"][0]["image"].endswith(f":{tag}")


def test_a_certificate_names_every_place_of_the_cluster_and_numbers_as_numbers() -> None:
    own = "topology.content.clusters.us-east"
    certificate = one(
        rendered(
            "certificates",
            *("--set", f"{own}.address=203.0.113.7:7101,{own}.pulsar=broker.example:6650"),
            *("--set-string", f"{own}.pulsar_tls=[2001:db8::7]:6651,{own}.listen=0.0.0.0:7101"),
        ),
        "Certificate",
    )["spec"]
    assert certificate["ipAddresses"] == ["203.0.113.7", "2001:db8::7"]
    assert "broker.example" in certificate["dnsNames"]
    assert not any(re.fullmatch(r"[\d.]+|.*:.*", name) for name in certificate["dnsNames"])


def test_a_certificate_for_a_name_that_looks_like_a_number_has_it_as_a_text() -> None:
    own = "topology.content.clusters.us-east"
    objects = rendered("certificates", "--set-string", f"{own}.address=0x1f:7101")
    assert one(objects, "Certificate")["spec"]["commonName"] == "0x1f"


# Who may do and reach what.


def test_the_driver_may_make_pods_alone_and_never_as_the_account_of_all() -> None:
    (rule,) = one(rendered("spark-kubernetes"), "Role")["rules"]
    assert (rule["apiGroups"], rule["resources"]) == ([""], ["pods"])
    assert rule["verbs"] == ["create", "get", "list", "watch", "delete", "deletecollection"]
    for name in ("", "default"):
        with pytest.raises(HelmRefused, match=r"serviceAccount\.driverName"):
            rendered("spark-kubernetes", "--set", f"serviceAccount.create=false,serviceAccount.driverName={name}")
    given = ("--set", "serviceAccount.create=false,serviceAccount.driverName=spark")
    (subject,) = one(rendered("spark-kubernetes", *given), "RoleBinding")["subjects"]
    assert subject["name"] == "spark"


def test_an_account_with_a_name_is_made() -> None:
    objects = rendered("minimal", "--set", "serviceAccount.name=replication")
    assert one(objects, "ServiceAccount")["metadata"]["name"] == "replication"
    assert one(objects, "StatefulSet")["spec"]["template"]["spec"]["serviceAccountName"] == "replication"


def test_executors_have_the_certificates_and_tokens_that_they_show() -> None:
    kubernetes = ("--set", "driver.master=,driver.kubernetes.enabled=true,auth.existingSecret=keys")
    (spec,) = [spec for _, spec, labels in pod_specs(rendered("certificates", *kubernetes))
               if labels["app.kubernetes.io/component"] == "executor"]  # fmt: skip
    mounts = {mount["mountPath"]: mount["name"] for mount in spec["containers"][0]["volumeMounts"]}
    assert (mounts["/etc/replicator/tls"], mounts["/etc/replicator/auth"]) == ("tls", "auth")


def test_a_worker_beside_brokers_reaches_them() -> None:
    own = '{"service_url": "pulsar://b:6650", "admin_url": "http://b:8080"}'
    beside = (
        *("--set", "networkPolicy.enabled=true,topology.content.clusters.us-east.kind=pulsar"),
        *("--set-json", f"topology.content.clusters.us-east.apache={own}"),
    )
    with pytest.raises(HelmRefused, match=r"networkPolicy\.brokers is empty"):
        rendered("minimal", *beside)
    peers = [{"podSelector": {"matchLabels": {"app": "pulsar"}}}]
    objects = rendered("minimal", *beside, "--set-json", f"networkPolicy.brokers={json.dumps(peers)}")
    rules = one(objects, "NetworkPolicy", "us-east-replicator-worker")["spec"]["egress"]
    assert {"to": peers, "ports": [{"port": port} for port in (6650, 6651, 8080, 8443)]} in rules


def test_other_regions_come_in_at_every_port_and_dns_is_asked_where_it_is() -> None:
    objects = rendered("everything", "--set", "networkPolicy.dnsPorts={53,5353}",
                       "--set", "topology.content.clusters.us-east.pulsar=us-east.replicator.example:6650")  # fmt: skip
    policy = one(objects, "NetworkPolicy", "us-east-copies-worker")["spec"]
    (regions,) = [rule for rule in policy["ingress"] if {"ipBlock": {"cidr": "203.0.113.0/24"}} in rule["from"]]
    assert {port["port"] for port in regions["ports"]} == {"main", "pulsar"}
    assert {port["port"] for port in policy["egress"][0]["ports"]} == {53, 5353}


def test_whoever_reads_metrics_reaches_no_other_port() -> None:
    objects = rendered("everything")
    policy = one(objects, "NetworkPolicy", "us-east-copies-worker")["spec"]
    monitoring = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
    assert [rule["ports"] for rule in policy["ingress"] if monitoring in rule["from"]] == [[{"port": "metrics"}]]
    (endpoint,) = one(objects, "ServiceMonitor")["spec"]["endpoints"]
    assert endpoint["port"] == "metrics"
    (service,) = [each for each in objects if each["metadata"]["name"].endswith("-metrics")]
    assert [port["targetPort"] for port in service["spec"]["ports"]] == ["metrics"]
    without = rendered("minimal", "--set", "ports.metrics=0,serviceMonitor.enabled=true")
    assert one(without, "ServiceMonitor")["spec"]["endpoints"][0]["port"] == "main"


def test_all_services_have_the_families_that_are_wanted() -> None:
    objects = rendered("load-balancers", "--set", "ipFamilyPolicy=PreferDualStack,ipFamilies={IPv6,IPv4}")
    services = [each["spec"] for each in objects if each["kind"] == "Service"]
    assert len(services) == 5
    for each in services:
        assert (each["ipFamilyPolicy"], each["ipFamilies"]) == ("PreferDualStack", ["IPv6", "IPv4"])


def test_every_service_has_what_it_is_given() -> None:
    given = {"nodePort": 30101, "loadBalancerIP": "203.0.113.9", "clusterIP": "10.96.0.77", "loadBalancerClass": "own"}
    given |= {"type": "LoadBalancer", "externalTrafficPolicy": "Local", "loadBalancerSourceRanges": ["10.0.0.0/8"]}
    arguments = ["--set", "service.links.enabled=true"]
    for name in ("http", "pulsar", "links"):
        arguments += ["--set-json", f"service.{name}={json.dumps(given)}"]
    objects = rendered("minimal", *arguments)
    for name in ("", "-pulsar", "-links"):
        service = one(objects, "Service", f"us-east-replicator{name}")["spec"]
        assert service["ports"][0]["nodePort"] == 30101
        assert {key: service[key] for key in given.keys() - {"nodePort"}} == {
            key: value for key, value in given.items() if key != "nodePort"
        }


def test_dashboards_of_two_releases_do_not_replace_each_other() -> None:
    on = ("--set", "dashboards.enabled=true")
    found = [one(rendered("minimal", *on, release=name), "ConfigMap", f"{name}-replicator-dashboards") for name in "ab"]
    texts = [json.loads(text) for each in found for text in each["data"].values()]
    assert len({key for each in found for key in each["data"]}) == 2
    assert len({each["uid"] for each in texts}) == len({each["title"] for each in texts}) == 2
    assert all(len(each["uid"]) <= 40 for each in texts), "Grafana takes no longer ones"
    assert len({each["metadata"]["annotations"]["grafana_folder"] for each in found}) == 2


# What a value is that was set to null.


def _paths(values: Object, above: str = "") -> Iterator[str]:
    for key, value in values.items():
        yield f"{above}{key}"
        if isinstance(value, dict):
            yield from _paths(value, f"{above}{key}.")


def test_every_value_may_be_null_or_is_refused_by_name() -> None:
    """Helm takes a value out that is null, before the templates see it."""
    needed = {
        "cluster": "missing property 'cluster'",
        "topology": "topology: give",
        "topology.content": "give `content`",
    }
    for path, said in needed.items():
        with pytest.raises(HelmRefused, match=re.escape(said)):
            rendered("minimal", "--set", f"{path}=null")
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    on = [f"{key}.enabled=true" for key in ("drill", "networkPolicy", "serviceMonitor", "prometheusRule", "dashboards")]
    rendered("minimal", "--set", ",".join(f"{key}=null" for key in values if key not in needed))
    inner = [path for path in _paths(values) if "." in path and path not in needed and not path.endswith(".enabled")]
    for depth in (1, 2):
        these = [f"{path}=null" for path in inner if path.count(".") == depth]
        rendered("minimal", "--set", ",".join([*on, *these]))


def test_a_probe_that_is_null_is_switched_off_and_the_others_stay() -> None:
    (worker,) = one(rendered("minimal", "--set", "probes.liveness=null"), "StatefulSet")["spec"]["template"]["spec"][
        "containers"
    ]
    assert "livenessProbe" not in worker
    assert worker["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert worker["startupProbe"]["failureThreshold"] == 60


def test_a_value_that_is_off_stays_off_beside_what_null_means() -> None:
    services = [each["metadata"]["name"] for each in rendered("minimal", "--set", "service.pulsar.enabled=false")
                if each["kind"] == "Service"]  # fmt: skip
    assert services == [f"us-east-replicator{end}" for end in ("-headless", "-metrics", "")]
