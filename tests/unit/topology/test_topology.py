"""Contents of a topology file, and the error for each mistake."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from replicator.engine.policies import (
    BacklogQuota,
    KeyAssignment,
    KeyOrdering,
    QuotaPolicy,
    Retention,
    SchemaStrategy,
    TopicPolicies,
)
from replicator.topology import (
    PROBLEMS_SHOWN_MAX,
    TOPOLOGY_FILE_BYTES_MAX,
    Link,
    MetricsSettings,
    PolicySettings,
    Topology,
    TopologyError,
    default_topology,
    dump,
    format_size,
    load_topology,
    mask_password,
    parse_size,
)
from replicator.topology.scalars import format_duration, parse_duration

GOOD = """\
clusters:
  us-east:
    address: 127.0.0.1:7101
    data: ./data/us-east
    database: embedded
  eu-west:
    address: 127.0.0.1:7102
    data: ./data/eu-west
    database: postgresql://me:secret@db.example/replicator
  ap-south:
    address: "[::1]:7103"
    data: /srv/ap-south
links:
  - {between: [us-east, eu-west]}
  - {from: us-east, to: ap-south}
pipeline: {engine: embedded, master: "local[2]"}
sync: {snapshot_interval_ms: 200, snapshot_timeout_ms: 30000, update_interval_ms: 100}
store: {size_max: 1GiB}
policies:
  retention: {age: 7d, size: 10GiB}
  message_ttl: 12h
  backlog_quota: {size: 1GB, age: 90, policy: producer_exception}
"""


def load(tmp_path: Path, text: str | bytes) -> Topology:
    path = tmp_path / "topology.yaml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return load_topology(path)


def problems(tmp_path: Path, text: str | bytes) -> tuple[str, ...]:
    """Return the problems that loading reports, without the directory of the file."""
    with pytest.raises(TopologyError) as caught:
        load(tmp_path, text)
    return tuple(problem.replace(f"{tmp_path}/", "") for problem in caught.value.problems)


def test_a_good_file_gives_clusters_links_and_settings(tmp_path: Path) -> None:
    topology = load(tmp_path, GOOD)
    assert topology.names == ("us-east", "eu-west", "ap-south")
    assert topology.links == (
        Link("us-east", "eu-west"),
        Link("eu-west", "us-east"),
        Link("us-east", "ap-south"),
    )
    assert topology.links_from("us-east") == (Link("us-east", "eu-west"), Link("us-east", "ap-south"))
    assert topology.links_to("us-east") == (Link("eu-west", "us-east"),)
    assert topology.links_between("us-east", "eu-west") == (Link("us-east", "eu-west"),)
    assert topology.links_between("ap-south", "us-east") == ()
    assert topology.store.size_max == 1024**3
    assert topology.sync.update_interval_ms == 100
    assert topology.path == tmp_path / "topology.yaml"


def test_a_data_directory_is_relative_to_the_file_not_to_the_shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "t.yaml").write_text(GOOD)
    monkeypatch.chdir(tmp_path)
    topology = load_topology(Path("sub/t.yaml"))
    assert topology.cluster("us-east").data == tmp_path / "sub" / "data" / "us-east"
    assert topology.cluster("ap-south").data == Path("/srv/ap-south")


def test_an_address_gives_host_port_and_url(tmp_path: Path) -> None:
    cluster = load(tmp_path, GOOD).cluster("ap-south")
    assert (cluster.host, cluster.port, cluster.url) == ("::1", 7103, "http://[::1]:7103")


@pytest.mark.parametrize(
    ("more", "bound"),
    [
        ("", {"address": "127.0.0.1:7102"}),
        ("\n    pulsar: h:6650", {"address": "127.0.0.1:7102", "pulsar": "h:6650"}),
        ("\n    listen: '[::]:7000'\n    pulsar: h:6650", {"listen": "[::]:7000", "pulsar": "[::]:6650"}),
    ],
)
def test_a_worker_binds_where_it_listens_and_its_further_ports_at_the_same_host(
    tmp_path: Path, more: str, bound: dict[str, str]
) -> None:
    topology = load(tmp_path, GOOD.replace("127.0.0.1:7102", f"127.0.0.1:7102{more}"))
    assert topology.cluster("eu-west").bound_at() == bound
    assert topology.cluster("eu-west").address == "127.0.0.1:7102"


@pytest.mark.parametrize(
    ("more", "url"),
    [
        ("", "pulsar://127.0.0.1:7102"),
        ("\n    broker_entry_metadata: true", "pulsar://127.0.0.1:7102"),
        ("\n    namespaces_by_use: false", "pulsar://127.0.0.1:7102"),
        ("\n    pulsar: h:6650", "pulsar://h:6650"),
        ("\n    pulsar: h:6650\n    advertised: outside:30650", "pulsar://outside:30650"),
        ("\n    pulsar: h:6650\n    listen: 0.0.0.0:7000\n    insecure: true", "pulsar://h:6650"),
        ("\n    hosts: [a, B.c]\n    origins: ['https://a:443']", "pulsar://127.0.0.1:7102"),
    ],
)
def test_clients_are_told_the_address_that_is_advertised_or_the_one_of_their_protocol(
    tmp_path: Path, more: str, url: str
) -> None:
    topology = load(tmp_path, GOOD.replace("127.0.0.1:7102", f"127.0.0.1:7102{more}"))
    assert topology.cluster("eu-west").pulsar_url == url
    assert load(tmp_path, dump(topology)).cluster("eu-west") == topology.cluster("eu-west")


def test_the_sections_but_clusters_may_be_left_out_or_left_empty(tmp_path: Path) -> None:
    topology = load(tmp_path, "clusters:\n  a: {address: 'h:1', data: x}\nlinks:\nsync:\nstore:\npipeline:\n")
    assert topology.links == ()
    assert topology.cluster("a").database == "embedded"
    assert topology.sync.snapshot_interval_ms == 200


def test_a_cluster_may_have_a_name_that_yaml_takes_for_something_else(tmp_path: Path) -> None:
    topology = load(
        tmp_path,
        "clusters:\n  no: {address: 'h:1', data: x}\n  007: {address: 'h:2', data: y}\n"
        "links: [{between: ['no', '007']}]\n",
    )
    assert topology.names == ("no", "007")


def test_an_unknown_cluster_is_answered_with_the_names_there_are(tmp_path: Path) -> None:
    with pytest.raises(TopologyError, match=r"no cluster 'mars'; there are: us-east, eu-west, ap-south"):
        load(tmp_path, GOOD).cluster("mars")


APACHE = "{service_url: 'pulsar://b:6650', admin_url: 'http://b:8080'}"


def _beside(apache: str = "", **fields: str) -> str:
    """An address, and a cluster beside Apache Pulsar behind it, with these fields of ``apache`` in place of others."""
    given = {"service_url": "'pulsar://b:6650'", "admin_url": "'http://b:8080'", **fields}
    apache = apache or "{" + ", ".join(f"{name}: {value}" for name, value in given.items()) + "}"
    return f"h:7102\n    kind: pulsar\n    apache: {apache}"


def test_a_cluster_beside_apache_pulsar_says_how_its_brokers_are_reached(tmp_path: Path) -> None:
    becomes = _beside(
        service_url="pulsar+ssl://b",
        topics="[public/default]",
        exclude="['public/default/private-.*']",
        auth="{token_file: token}",
        tls="{ca: ca.pem}",
        cluster_name="europe",
        quiet_requests_per_second="50",
    )
    topology = load(tmp_path, GOOD.replace("127.0.0.1:7102", becomes))
    cluster = topology.cluster("eu-west")
    assert cluster.apache is not None
    assert cluster.apache.service_url == "pulsar+ssl://b:6651"
    assert cluster.apache.admin_url == "http://b:8080"
    assert cluster.apache.quiet_requests_per_second == 50
    assert cluster.apache.auth.token_file == tmp_path / "token"
    assert cluster.pulsar_tls_url == "pulsar+ssl://b:6651"
    assert cluster.broker_origin == "eu-west.pulsar"
    assert topology.cluster("us-east").broker_origin is None
    assert [each.name_at_brokers for each in topology.clusters] == [None, "europe", None]
    assert cluster.apache.bridges("persistent://public/default/orders-partition-3")
    assert not cluster.apache.bridges("persistent://public/default/private-orders")
    assert not cluster.apache.bridges("persistent://public/default/__change_events")
    assert not cluster.apache.bridges("persistent://pulsar/system/anything")
    assert not cluster.apache.bridges("persistent://public/default/orders-work__transaction_pending_ack")
    again = tmp_path / "again.yaml"
    again.write_text(dump(topology))
    assert load_topology(again) == topology


def test_two_clusters_of_brokers_have_two_names_at_the_brokers(tmp_path: Path) -> None:
    """Nobody could tell otherwise where a message came from that they replicated themselves."""
    text = GOOD.replace("127.0.0.1:7102", _beside(cluster_name="ap-south"))
    third = text.replace('"[::1]:7103"', _beside().replace("7102", "7103"))
    assert third != text
    assert "the brokers of eu-west have the same name for their cluster, ap-south" in problems(tmp_path, third)[0]


def test_the_brokers_may_be_named_by_several_hosts_in_one_url(tmp_path: Path) -> None:
    becomes = _beside(service_url="'pulsar://a, b:1,a:6650'", admin_url="'http://a,[::1]:81'")
    topology = load(tmp_path, GOOD.replace("127.0.0.1:7102", becomes))
    cluster = topology.cluster("eu-west")
    assert cluster.apache is not None
    assert cluster.pulsar_url == "pulsar://a:6650,b:1"
    assert cluster.apache.admin_urls == ("http://a:8080", "http://[::1]:81")
    again = tmp_path / "again.yaml"
    again.write_text(dump(topology))
    assert load_topology(again) == topology


def test_links_carry_what_is_published_at_the_brokers_of_their_source(tmp_path: Path) -> None:
    topology = load(tmp_path, GOOD.replace("127.0.0.1:7102", _beside()))
    over = {link.key: topology.origins_over(link) for link in topology.links}
    assert over["eu-west>us-east"] == {"eu-west", "eu-west.pulsar"}
    assert over["us-east>eu-west"] == {"us-east"}


@pytest.mark.parametrize(
    ("was", "becomes", "expected"),
    [
        ("    address: 127.0.0.1:7102\n", "", "6: clusters.eu-west.address: missing; add `address:"),
        ("    data: ./data/eu-west\n", "", "eu-west.data: missing; add `data:"),
        ("    data: ./data/eu-west", "    dtaa: x", "8: clusters.eu-west.dtaa: unknown key; did you mean 'data'?"),
        ("links:", "lnks:", "13: lnks: unknown key; did you mean 'links'?"),
        ("./data/eu-west", "./data/us-east", "8: clusters.eu-west.data: "),
        ("./data/eu-west", "./data/us-east/inner", "overlaps the data directory of us-east"),
        ("./data/eu-west", "x/../data/us-east", "is also the data directory of us-east"),
        ("./data/eu-west", '"a\\0b"', "8: clusters.eu-west.data: must name a directory"),
        ("./data/eu-west", '""', "8: clusters.eu-west.data: must name a directory"),
        ("./data/eu-west", "[x]", "8: clusters.eu-west.data: must be text, not a list"),
        ("127.0.0.1:7102", "127.0.0.1:7101", "7: clusters.eu-west.address: 127.0.0.1:7101 is also the address"),
        ("127.0.0.1:7102", "localhost:7101", "7: clusters.eu-west.address: localhost:7101 is also the address"),
        ("127.0.0.1:7102", "h:7102\n    pulsar: 127.0.0.1:7101", "7101 is also the address of us-east; give"),
        ("127.0.0.1:7102", "h:7102\n    pulsar: h:7102", "7102 is the address already, which serves both"),
        ("127.0.0.1:7102", "h:7102\n    pulsar: 6650", "8: clusters.eu-west.pulsar: must be text, not a number"),
        ("127.0.0.1:7102", "h:7102\n    advertised: x", "8: clusters.eu-west.advertised: 'x' is not HOST:PORT"),
        ("127.0.0.1:7102", "7102", "7: clusters.eu-west.address: must be text, not a number"),
        ("127.0.0.1:7102", "true", "7: clusters.eu-west.address: must be text, not true (put it in quotes"),
        ("127.0.0.1:7102", "localhost", "7: clusters.eu-west.address: 'localhost' is not HOST:PORT"),
        ("127.0.0.1:7102", "h:0", "must be a number from 1 to 65535"),
        ("127.0.0.1:7102", "h:65536", "must be a number from 1 to 65535"),
        ("127.0.0.1:7102", "h:７", "must be a number from 1 to 65535"),
        ("127.0.0.1:7102", "::1:7102", "write an IPv6 address in brackets"),
        ("127.0.0.1:7102", "0.0.0.0:7102", "is no address that other workers can reach"),
        ("127.0.0.1:7102", "h:7102\n    listen: 0.0.0.0:http", "eu-west.listen: the port 'http'"),
        ("127.0.0.1:7102", "h:7102\n    kind: kafka", "8: clusters.eu-west.kind: 'kafka' is not one of"),
        ("127.0.0.1:7102", "h:7102\n    kind: pulsar", "clusters.eu-west.apache: missing; `kind: pulsar` needs"),
        ("127.0.0.1:7102", f"h:7102\n    apache: {APACHE}", "8: clusters.eu-west.apache: is for `kind: pulsar` alone"),
        ("127.0.0.1:7102", f"h:7102\n    kind: pulsar\n    pulsar: h:6\n    apache: {APACHE}", "has no use with `kind"),
        ("127.0.0.1:7102", _beside("{admin_url: http://b}"), "eu-west.apache.service_url: missing; add `service_url:"),
        ("127.0.0.1:7102", _beside(service_url="http://b:1"), "apache.service_url: 'http://b:1' must be pulsar://"),
        ("127.0.0.1:7102", _beside(service_url="'pulsar://a,pulsar://b'"), "hosts of one cluster, no path"),
        ("127.0.0.1:7102", _beside(admin_url="http://u:p@b:1"), "hosts of one cluster, no path"),
        (
            "127.0.0.1:7102",
            _beside(admin_url="http://b:99999"),
            "admin_url: 'http://b:99999' is no URL of brokers: Port out of range",
        ),
        ("127.0.0.1:7102", _beside(topics="['(']"), "eu-west.apache.topics[0]: '(' is not a regex"),
        ("127.0.0.1:7102", _beside(auth="{certificate: x}"), "auth: `certificate` and `key` belong together"),
        ("127.0.0.1:7102", _beside(auth="{certificate: x, key: y}"), "`auth.certificate` is shown by TLS alone"),
        ("127.0.0.1:7102", _beside(auth="{token_file: x, password_file: y}"), "auth: give one of `token_file`"),
        ("127.0.0.1:7102", _beside(topcis="[x]"), "9: clusters.eu-west.apache.topcis: unknown key; did you mean"),
        ("127.0.0.1:7102", _beside(tls="{ca: 7}"), "eu-west.apache.tls.ca: must be text, not a number"),
        ("127.0.0.1:7102", "h:7102\n    listen: here", "eu-west.listen: 'here' is not HOST:PORT"),
        ("127.0.0.1:7102", "h:7102\n    insecure: perhaps", "eu-west.insecure: must be true or false"),
        ("127.0.0.1:7102", "h:7102\n    hosts: a", "eu-west.hosts: must be a list, not text"),
        ("127.0.0.1:7102", "h:7102\n    hosts: [a:1]", "eu-west.hosts[0]: 'a:1' is not a host name"),
        ("127.0.0.1:7102", "h:7102\n    origins: [a]", "eu-west.origins[0]: 'a' is not the site of a page"),
        ("127.0.0.1:7102", "h:7102\n    origins: ['https://a/b']", "'https://a/b' is not the site of a page"),
        ("127.0.0.1:7102", "a/b:7102", "'a/b' is not a host name"),
        ("  eu-west:", "  eu west:", "6: clusters.eu west: a cluster's name has 1 to 64"),
        ("  eu-west:", f"  {'x' * 65}:", "a cluster's name has 1 to 64"),
        ("  eu-west:", "  us-east:", "6: clusters.us-east: given twice; the first is in line 2"),
        ("postgresql:", "mysql:", "9: clusters.eu-west.database: 'mysql' is not a database"),
        ("@db.example/replicator", "@db.example", "it must end in /DATABASE"),
        ("@db.example/replicator", "@/replicator", "it names no host, or port 0"),
        ("@db.example/replicator", "@db:port/replicator", "malformed URL postgresql://"),
        ("[us-east, eu-west]", "[us-east, eu-wst]", "14: links[0].between[1]: there is no cluster 'eu-wst'; did"),
        ("[us-east, eu-west]", "[us-east, us-east]", "14: links[0]: links us-east to itself"),
        ("[us-east, eu-west]", "[us-east]", "14: links[0].between: must be a list of two clusters"),
        ("[us-east, eu-west]", "[us-east, false]", "must be a cluster's name, not false"),
        ("{from: us-east, to: ap-south}", "{from: us-east}", "15: links[1]: has from; write {between"),
        ("{from: us-east, to: ap-south}", "us-east", "15: links[1]: must be a mapping, not text"),
        ("{from: us-east, to: ap-south}", "{from: eu-west, to: us-east}", "is given already in line 14"),
        ("{from: us-east, to: ap-south}", "{form: us-east, to: ap-south}", "did you mean 'from'?"),
        ("engine: embedded", "engine: flink", "16: pipeline.engine: 'flink' is not one of spark, embedded"),
        ("engine: embedded", "driver: 7", "16: pipeline.driver: must be one of worker, external"),
        ("engine: embedded", "batch: 0", "16: pipeline.batch: must be a duration from 1s to 60s"),
        ("engine: embedded", "batch: soon", "16: pipeline.batch: 'soon' is not a duration"),
        ("engine: embedded", "conf: {executor.memory: 1g}", "16: pipeline.conf: 'executor.memory' is not a setting of"),
        (
            "engine: embedded",
            "conf: {spark.cores.max: 4}",
            "pipeline.conf: the value of Spark's setting spark.cores.max must be text",
        ),
        ("to: ap-south}", "to: ap-south, engine: jet}", "15: links[1].engine: 'jet' is not one of spark, embedded"),
        ('"local[2]"', '"local[0]"', "is not a Spark master"),
        ("update_interval_ms: 100", "update_interval_ms: 0", "sync.update_interval_ms: 0 is too small; the least is 1"),
        ("update_interval_ms: 100", "update_interval_ms: 1e9", "17: sync.update_interval_ms: must be a whole number"),
        ("update_interval_ms: 100", "update_interval_ms: yes", "must be a whole number, not true"),
        ("size_max: 1GiB", "size_max: 64G", "18: store.size_max: '64G' is not a size (for example 64GiB"),
        ("size_max: 1GiB", "size_max: 1kB", "1kB is too small"),
        ("size_max: 1GiB", "size_max: 999TiB", "is too large"),
        ("size_max: 1GiB", "message_size_max: 60KiB", "18: store.message_size_max: 60KiB is too small"),
        ("size_max: 1GiB", "message_size_max: 32MiB", "18: store.message_size_max: 32MiB is too large"),
        ("size_max: 1GiB", "message_size_max: ten", "18: store.message_size_max: 'ten' is not a size"),
        ("sync: {", "sync: [", "not YAML"),
        ("age: 7d", "age: 7 days", "20: policies.retention.age: '7 days' is not a duration (for example 7d, 12h, 30m"),
        ("age: 7d", "age: -1", "policies.retention.age: -1 is too small; the least is 0, and without a limit it is"),
        ("age: 7d", "agee: 7d", "20: policies.retention.agee: unknown key; did you mean 'age'?"),
        ("size: 10GiB", "size: 10G", "20: policies.retention.size: '10G' is not a size (for example 64GiB"),
        ("{age: 7d, size: 10GiB}", "7d", "20: policies.retention: must be a mapping, not text"),
        ("message_ttl: 12h", "message_ttl: soon", "21: policies.message_ttl: 'soon' is not a duration"),
        ("message_ttl: 12h", "message_ttl: 1.5", "21: policies.message_ttl: must be a duration"),
        ("message_ttl: 12h", "message_ttl:", "21: policies.message_ttl: must be a duration"),
        ("message_ttl: 12h", "ttl: 12h", "21: policies.ttl: unknown key; the keys here are: retention, message_ttl"),
        ("message_ttl: 12h", "deduplication: 1", "policies.deduplication: must be true or false"),
        ("message_ttl: 12h", "delayed_delivery: no thanks", "policies.delayed_delivery: must be true or false"),
        ("message_ttl: 12h", "max_producers: many", "policies.max_producers: must be a whole number, or `unlimited`"),
        ("message_ttl: 12h", "max_consumers: yes", "policies.max_consumers: must be a whole number, or `unlimited`"),
        ("message_ttl: 12h", "max_message_size: 1GiB", "policies.max_message_size: 1073741824 is too large; the most"),
        ("message_ttl: 12h", "key_assignment: ring", "'ring' is not one of hash-range, consistent-hashing, load-aware"),
        ("message_ttl: 12h", "key_ordering: [x]", "key_ordering: must be one of draining, recently-joined"),
        ("policy: producer_exception", "policy: hold", "22: policies.backlog_quota.policy: 'hold' is not one of produ"),
        (
            "    data: ./data/eu-west",
            "    policies: {message_ttl: never}\n    data: x",
            "8: clusters.eu-west.policies.message_ttl: 'never' is not a duration",
        ),
    ],
)  # fmt: skip
def test_each_mistake_is_one_line_that_names_line_field_and_remedy(
    tmp_path: Path, was: str, becomes: str, expected: str
) -> None:
    assert was in GOOD
    found = problems(tmp_path, GOOD.replace(was, becomes, 1))
    assert any(expected in problem for problem in found), found
    assert all(problem.startswith("topology.yaml:") and "\n" not in problem for problem in found)
    assert "secret" not in "".join(found)


def test_all_problems_of_a_file_are_reported_at_once_in_the_order_of_its_lines(tmp_path: Path) -> None:
    text = GOOD.replace("7101", "0").replace("data: ./data/eu-west", "dta: x").replace("to: ap-south", "to: mars")
    found = problems(tmp_path, text)
    lines = [int(problem.split(":")[1]) for problem in found]
    assert lines == sorted(lines)
    assert {3, 8, 15} <= set(lines)


def test_a_file_with_hundreds_of_problems_shows_the_first_and_counts_the_rest(tmp_path: Path) -> None:
    text = "clusters:\n" + "".join(f"  c{n}: {{address: x, data: d{n}}}\n" for n in range(300))
    with pytest.raises(TopologyError, match=f"and {300 - PROBLEMS_SHOWN_MAX} more problems") as caught:
        load(tmp_path, text)
    assert len(str(caught.value).splitlines()) == PROBLEMS_SHOWN_MAX + 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "the file is empty"),
        ("# only a comment\n", "the file is empty"),
        ("clusters:\n", "topology.yaml:1: clusters: no clusters; name at least one"),
        ("links: []\n", "no clusters; name at least one"),
        ("- a\n", "topology.yaml:1: must be a mapping"),
        ("clusters: [a, b]\n", "topology.yaml:1: clusters: must be a mapping, not a list"),
        ("clusters:\n  a: 7\n", "topology.yaml:2: clusters.a: must be a mapping, not a number"),
        ("a: 1\n\tb: 2\n", "topology.yaml:2: not YAML"),
        ("a:\n    b: 2\n\tc: 3\n", "the line has a tab: indent with spaces"),
        ("a: [1\nb: 2\n", "not YAML"),
        ("a: 1\n--- \nb: 2\n", "topology.yaml:2: not YAML"),
        ("a: 1\nb: \x07\n", "topology.yaml:2: not YAML"),
        (b"a: 1\nb: \xff\n", "topology.yaml:2: not UTF-8"),
        ("a: 1\n? [x]\n: 2\n", "topology.yaml:2: a key must be plain text"),
        ("a: &x 1\nb: *x\n", "topology.yaml:1: anchors (&) and aliases (*) are not accepted"),
        ("a: !!python/object:os.system {}\n", "topology.yaml:1: the tag"),
        ("a: !!int x\n", "topology.yaml:1: 'x' cannot be read as int"),
        ("\n" + "[" * 3000, "topology.yaml:2: nested deeper than"),
    ],
)
def test_a_file_that_is_no_topology_is_refused_with_its_line(tmp_path: Path, text: str | bytes, expected: str) -> None:
    found = problems(tmp_path, text)
    assert any(expected in problem for problem in found), found


def test_a_bomb_of_aliases_is_refused_before_it_expands(tmp_path: Path) -> None:
    rows = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    rows += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 40)]
    assert "aliases" in problems(tmp_path, "\n".join(rows))[0]


@pytest.mark.parametrize(
    ("section", "line"),
    [
        ("tls: {certificate: c.pem}", "clusters.a.tls.key: missing; add `key: FILE`"),
        ("tls: {key: c.pem}", "clusters.a.tls.certificate: missing; add `certificate: FILE`"),
        ("kind: pulsar, apache: {service_url: 'pulsar://b'}", "clusters.a.apache.admin_url: missing; add `admin_url: "),
        ("kind: pulsar, apache: {admin_url: 'http://b'}", "clusters.a.apache.service_url: missing; add `service_url: "),
    ],
)
def test_each_field_that_is_missing_is_named_with_what_to_add(tmp_path: Path, section: str, line: str) -> None:
    file = tmp_path / "topology.yaml"
    file.write_text(f"clusters:\n  a: {{address: '127.0.0.1:7101', data: a, {section}}}\n")
    with pytest.raises(TopologyError) as refused:
        load_topology(file)
    assert line in str(refused.value)


def test_a_missing_unreadable_or_oversized_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(TopologyError, match=r"absent\.yaml: no such file"):
        load_topology(tmp_path / "absent.yaml")
    with pytest.raises(TopologyError, match="cannot be read: Is a directory"):
        load_topology(tmp_path)
    with pytest.raises(TopologyError, match="cannot be read"):
        load_topology(Path("a\0b"))
    large = tmp_path / "large.yaml"
    large.write_bytes(b"#" * (TOPOLOGY_FILE_BYTES_MAX + 1))
    with pytest.raises(TopologyError, match="larger than"):
        load_topology(large)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:secret@h/db",
        "postgresql://me:sec@secret@h/db",
        "postgresql://me:x/secret@h/db",
        "postgresql://me:x#secret@h/db",
        "postgresql://me:12?secret@h/db",
        "postgresql://me:secret",
        "postgresql://h/db?user=me&password=secret&sslmode=require",
        "postgresql://h/db?sslPassword=secret",
        "mysql://me:secret@h/db",
        "postgresql//me:secret@h/db",
        "postgresql://me:secret@[h/db",
        "postgresql://me:se cret-secret@h/db",
    ],
)
def test_no_part_of_a_password_is_ever_shown(tmp_path: Path, url: str) -> None:
    assert "secret" not in mask_password(url)
    text = GOOD.replace("postgresql://me:secret@db.example/replicator", f'"{url}"').replace("7101", "0")
    assert "secret" not in "".join(problems(tmp_path, text))


def test_a_well_formed_url_stays_readable_when_it_is_masked() -> None:
    assert mask_password("postgresql://me:pw@h:5432/db?a=b") == "postgresql://me:***@h:5432/db?a=b"
    assert mask_password("postgresql://me@h/db") == "postgresql://me@h/db"
    assert mask_password("embedded") == "embedded"


def test_the_repr_of_a_topology_holds_no_password(tmp_path: Path) -> None:
    assert "secret" not in repr(load(tmp_path, GOOD))


def test_a_database_on_a_unix_socket_is_accepted(tmp_path: Path) -> None:
    url = "postgresql:///db?host=/run/postgresql"
    topology = load(tmp_path, GOOD.replace("postgresql://me:secret@db.example/replicator", url))
    assert topology.cluster("eu-west").database == url


def test_what_dump_writes_reads_back_as_the_same_topology(tmp_path: Path) -> None:
    topology = load(tmp_path, GOOD)
    (tmp_path / "other").mkdir()
    again = tmp_path / "other" / "again.yaml"
    again.write_text(dump(topology))
    assert load_topology(again) == topology
    assert "between" in dump(topology)


def test_the_default_topology_is_two_clusters_linked_both_ways(tmp_path: Path) -> None:
    topology = default_topology(tmp_path, [7101, 7102])
    assert topology.names == ("us-east", "eu-west")
    assert topology.links == (Link("us-east", "eu-west"), Link("eu-west", "us-east"))
    assert topology.cluster("eu-west").data == tmp_path / "eu-west"
    assert load(tmp_path, dump(topology)) == topology


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [("64GiB", 64 << 30), ("500MB", 500_000_000), ("3 kB", 3000), ("7B", 7), ("2TiB", 2 << 40)],
)
def test_sizes_are_read_with_decimal_and_binary_units(text: str, size_bytes: int) -> None:
    assert parse_size(text) == size_bytes
    assert parse_size(format_size(size_bytes)) == size_bytes


def policies(tmp_path: Path, text: str, cluster: str = "a") -> TopicPolicies:
    clusters = "clusters:\n  a: {address: 'h:1', data: x}\n  b: {address: 'h:2', data: y}\n"
    return load(tmp_path, clusters + text).cluster(cluster).policies.topic_policies()


def test_policies_are_those_of_the_engine_when_none_are_given(tmp_path: Path) -> None:
    for text in ("", "policies:\n", "policies: {retention: , backlog_quota: }\n"):
        assert policies(tmp_path, text) == TopicPolicies()


def test_every_policy_can_be_set(tmp_path: Path) -> None:
    text = """\
policies:
  retention: {age: 2w, size: 0}
  message_ttl: 30m
  backlog_quota: {size: 5GiB, age: 1d, policy: consumer_backlog_eviction}
  deduplication: true
  compaction_threshold: 100MiB
  max_unacked_messages_per_consumer: 10
  max_unacked_messages_per_subscription: unlimited
  max_producers: 3
  max_consumers: 4
  max_message_size: 1MiB
  delayed_delivery: true
  replicate_subscription_state: true
  key_assignment: load-aware
  key_ordering: recently-joined
  schema_compatibility: BACKWARD
  schema_auto_update: false
  schema_validation_enforced: true
"""
    assert policies(tmp_path, text) == TopicPolicies(
        retention=Retention(age_seconds_max=14 * 86_400, bytes_max=0),
        message_ttl_seconds=1800,
        backlog_quota=BacklogQuota(5 << 30, 86_400, QuotaPolicy.CONSUMER_BACKLOG_EVICTION),
        deduplication=True,
        compaction_threshold_bytes=100 << 20,
        max_unacked_messages_per_consumer=10,
        max_unacked_messages_per_subscription=None,
        max_producers=3,
        max_consumers=4,
        max_message_bytes=1 << 20,
        replicate_subscription_state=True,
        key_assignment=KeyAssignment.LOAD_AWARE,
        key_ordering=KeyOrdering.RECENTLY_JOINED,
        schema_compatibility=SchemaStrategy.BACKWARD,
        schema_auto_update=False,
        schema_validation_enforced=True,
    )


@pytest.mark.parametrize("off", ["0", "unlimited"])
def test_0_is_off_where_brokers_have_it_so_and_unlimited_always_is(tmp_path: Path, off: str) -> None:
    text = """\
policies:
  message_ttl: OFF
  backlog_quota: {size: OFF, age: OFF}
  compaction_threshold: OFF
  max_unacked_messages_per_consumer: OFF
  max_unacked_messages_per_subscription: OFF
  max_producers: OFF
  max_consumers: OFF
  max_message_size: OFF
"""
    found = policies(tmp_path, text.replace("OFF", off))
    assert found == TopicPolicies(max_unacked_messages_per_consumer=None, max_unacked_messages_per_subscription=None)


def test_a_retention_of_0_keeps_nothing_and_is_not_off(tmp_path: Path) -> None:
    assert policies(tmp_path, "policies: {retention: {age: 0, size: 0}}\n").retention == Retention(0, 0)
    assert policies(tmp_path, "policies: {retention: {age: unlimited}}\n").retention == Retention(None, None)


def test_a_clusters_own_policies_stand_over_those_of_all_field_by_field(tmp_path: Path) -> None:
    text = GOOD.replace(
        "    data: ./data/us-east\n",
        "    data: ./data/us-east\n    policies: {retention: {size: 1GiB}, message_ttl: 0, deduplication: true}\n",
    )
    topology = load(tmp_path, text)
    ours, theirs = (topology.cluster(name).policies.topic_policies() for name in ("us-east", "eu-west"))
    assert theirs == TopicPolicies(
        retention=Retention(7 * 86_400, 10 << 30),
        message_ttl_seconds=12 * 3600,
        backlog_quota=BacklogQuota(10**9, 90, QuotaPolicy.PRODUCER_EXCEPTION),
    )
    assert ours == TopicPolicies(
        retention=Retention(7 * 86_400, 1 << 30),
        message_ttl_seconds=None,
        backlog_quota=theirs.backlog_quota,
        deduplication=True,
    )
    again = tmp_path / "again.yaml"
    again.write_text(dump(topology))
    assert load_topology(again) == topology


@pytest.mark.parametrize(
    ("text", "seconds"), [("2w", 14 * 86_400), ("7d", 7 * 86_400), ("12h", 43_200), ("90 s", 90), ("30m", 1800)]
)
def test_durations_are_read_with_their_units(text: str, seconds: int) -> None:
    assert parse_duration(text) == seconds
    assert parse_duration(format_duration(seconds)) == seconds


def test_the_example_of_policies_in_the_reference_is_a_topology(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "topology.md").read_text()
    (example,) = re.findall(r"^```yaml\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    found = load(tmp_path, example).cluster("us-east").policies.topic_policies()
    assert found == TopicPolicies(
        retention=Retention(7 * 86_400, 10 << 30),
        backlog_quota=BacklogQuota(50 << 30, 2 * 86_400, QuotaPolicy.PRODUCER_EXCEPTION),
        deduplication=True,
    )


def test_the_reference_names_every_policy() -> None:
    page = (Path(__file__).parents[3] / "docs" / "reference" / "topology.md").read_text()
    for name in PolicySettings.model_fields:
        assert re.search(rf"`(policies)?\.{name}[.`]", page), name


def test_spark_copies_unless_the_file_or_the_link_says_otherwise(tmp_path: Path) -> None:
    topology = load(tmp_path, GOOD.replace("pipeline: {engine: embedded, ", "pipeline: {"))
    assert [topology.engine_of(link) for link in topology.links] == ["spark"] * 3
    text = GOOD.replace("to: ap-south}", "to: ap-south, engine: spark}")
    mixed = load(tmp_path, text)
    assert [topology.engine_of(link) for topology in (mixed,) for link in mixed.links] == ["embedded"] * 2 + ["spark"]
    assert load(tmp_path, dump(mixed)) == mixed


def test_settings_of_spark_are_kept_and_those_that_are_secret_are_not_shown(tmp_path: Path) -> None:
    conf = "conf: {spark.executor.memory: 2g, spark.ssl.keyPassword: hush}"
    topology = load(tmp_path, GOOD.replace("pipeline: {", f"pipeline: {{batch: 5s, driver: external, {conf}, "))
    assert (topology.pipeline.batch, topology.pipeline.driver) == (5, "external")
    assert topology.pipeline.conf["spark.ssl.keyPassword"] == "hush"
    assert topology.pipeline.conf_masked == {"spark.executor.memory": "2g", "spark.ssl.keyPassword": "***"}
    assert "hush" not in repr(topology)
    assert load(tmp_path, dump(topology)) == topology


def test_the_bounds_of_metrics_are_kept_shown_and_documented(tmp_path: Path) -> None:
    topology = load(tmp_path, f"{GOOD}\nmetrics: {{topics: 7, old_names: false}}\n")
    assert (topology.metrics.topics, topology.metrics.subscriptions, topology.metrics.old_names) == (7, 2_000, False)
    assert load(tmp_path, dump(topology)) == topology
    assert "\nmetrics:" not in dump(load(tmp_path, GOOD))  # a worker of the version before reads it
    page = (Path(__file__).parents[3] / "docs" / "reference" / "topology.md").read_text()
    for name in MetricsSettings.model_fields:
        assert f"`metrics.{name}`" in page
