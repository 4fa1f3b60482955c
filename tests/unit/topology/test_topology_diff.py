"""Differences between two topologies: all are listed, nothing else is, and each says whether it needs a restart."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicator.topology import MetricsSettings, SyncSettings, Topology, default_topology
from replicator.topology.diff import diff, digest, portable_text, refusals, words
from replicator.topology.fields import Cluster, PipelineSettings, PolicySettings, StoreSettings, flattened
from replicator.topology.links import Link
from replicator.topology.reader import parse_topology

NAMES = ("us-east", "eu-west", "ap-south")
FILE = Path("/etc/replicator/topology.yaml")


def cluster(name: str, **fields: Any) -> Cluster:
    port = 7101 + NAMES.index(name) if name in NAMES else 7200
    usual = {"name": name, "address": f"127.0.0.1:{port}", "data": f"/etc/replicator/data/{name}"}
    return Cluster.model_validate({**usual, **fields})


def topology(*names: str, links: tuple[Link, ...] = (), **sections: Any) -> Topology:
    return Topology(tuple(cluster(name) for name in names), links, path=FILE, **sections)


TWO = topology("us-east", "eu-west", links=(Link("us-east", "eu-west"), Link("eu-west", "us-east")))

policies = st.fixed_dictionaries(
    {},
    optional={
        "message_ttl": st.sampled_from(["12h", 60, "unlimited"]),
        "deduplication": st.booleans(),
        "retention": st.fixed_dictionaries({}, optional={"age": st.sampled_from(["7d", 0])}),
    },
)


@st.composite
def topologies(draw: st.DrawFn) -> Topology:
    names = draw(st.lists(st.sampled_from(NAMES), min_size=2, unique=True))
    clusters = tuple(
        cluster(
            name,
            address=f"{draw(st.sampled_from(['127.0.0.1', 'host']))}:{7101 + NAMES.index(name)}",
            database=draw(st.sampled_from(["embedded", "postgresql://u:secret@h:5432/d"])),
            **draw(st.fixed_dictionaries({}, optional={"pulsar": st.sampled_from([f"{name}:6650", f"{name}:6651"])})),
            policies=PolicySettings.model_validate(draw(policies)),
        )
        for name in names
    )
    links = {}
    for ends in draw(st.lists(st.permutations(names).map(lambda each: tuple(each[:2])), max_size=6)):
        link = Link(
            *ends,
            name=draw(st.sampled_from(["", "bulk", "small"])),
            forward=draw(st.booleans()),
            topics=draw(st.sampled_from([(), ("public/default",), ("public/.*", "acme/.*")])),
            rate_bytes=draw(st.sampled_from([None, 1024, 1 << 20])),
            compression=draw(st.sampled_from(["none", "zstd"])),
            hold_seconds=draw(st.sampled_from([None, 60])),
        )
        links[link.key] = link
    return Topology(
        clusters,
        tuple(draw(st.permutations(list(links.values())))),
        PipelineSettings(master=draw(st.sampled_from(["local[2]", "yarn"]))),
        SyncSettings(update_interval_ms=draw(st.sampled_from([50, 100]))),
        StoreSettings(
            size_max=draw(st.sampled_from([1 << 30, 1 << 36])),
            message_size_max=draw(st.sampled_from([5 << 20, 20 << 20])),
        ),
        FILE,
    )


def as_plain(topology: Topology) -> dict[str, Any]:
    """Return a topology's parts as plain values, with masked database URLs."""
    pairs: dict[str, list[str]] = {}
    for link in topology.links:
        pairs.setdefault(f"{link.source} → {link.destination}", []).append(link.key)
    return {
        "clusters": {
            each.name: {
                "address": each.address,
                "data": str(each.data),
                "database": each.database_masked,
                "policies": dict(flattened(each.policies.changed())),
                **({} if each.pulsar is None else {"pulsar": each.pulsar}),
            }
            for each in topology.clusters
        },
        "links": {str(link): dict(flattened(link.as_written())) for link in topology.links},
        "order": pairs,
        "sections": {
            "pipeline": topology.pipeline.model_dump(),
            "sync": topology.sync.model_dump(),
            "store": {
                "size_max": {1 << 30: "1GiB", 1 << 36: "64GiB"}[topology.store.size_max],
                "message_size_max": {5 << 20: "5MiB", 20 << 20: "20MiB"}[topology.store.message_size_max],
            },
        },
    }


def apply(said: dict[str, Any], before: Topology, after: Topology) -> dict[str, Any]:
    """Change ``said``, the plain form of ``before``, by each difference to ``after``, and return it.

    It must become the plain form of ``after``.
    """
    keys = {str(link): link.key for link in (*before.links, *after.links)}

    def setting(fields: dict[str, Any], field: str, value: Any) -> None:
        fields[field] = value
        if value is None:
            del fields[field]

    for change in diff(before, after):
        pair = change.subject.partition(" (")[0]
        match change.kind:
            case "cluster-removed":
                del said["clusters"][change.subject]
            case "cluster-added":
                added = {**change.after, "policies": dict(flattened(change.after["policies"]))}
                said["clusters"][change.subject] = added
            case "cluster-changed":
                setting(said["clusters"][change.subject], change.field, change.after)
            case "policy-changed":
                setting(said["clusters"][change.subject]["policies"], change.field, change.after)
            case "link-removed":
                del said["links"][change.subject]
                said["order"][pair].remove(keys[change.subject])
            case "link-added":
                said["links"][change.subject] = dict(flattened(change.after))
                said["order"].setdefault(pair, []).append(keys[change.subject])
            case "link-changed":
                setting(said["links"][change.subject], change.field, change.after)
            case "links-reordered":
                said["order"][change.subject] = change.after
            case "setting-changed":
                said["sections"][change.subject][change.field] = change.after
    said["order"] = {pair: order for pair, order in said["order"].items() if order}
    return said


@given(topologies())
def test_a_topology_does_not_differ_from_itself_however_it_is_written(one: Topology) -> None:
    assert diff(one, one) == ()
    by_pairs = tuple(sorted(one.links, key=lambda link: (link.source, link.destination)))
    same = replace(one, clusters=one.clusters[::-1], links=by_pairs)
    assert diff(one, same) == ()
    assert digest(one) == digest(same)


@given(topologies(), topologies())
def test_the_changes_are_complete_made_to_the_one_they_give_the_other(before: Topology, after: Topology) -> None:
    assert apply(as_plain(before), before, after) == as_plain(after)


@given(topologies(), topologies())
def test_digests_differ_where_anything_but_a_directory_or_a_password_does(before: Topology, after: Topology) -> None:
    visible = [change for change in diff(before, after) if change.field != "data"]
    assert (digest(before) == digest(after)) is (not visible)


@given(topologies())
def test_what_a_worker_says_it_runs_reads_back_as_the_same(one: Topology) -> None:
    text = portable_text(one)
    assert "secret" not in text
    again = parse_topology(text, FILE)
    assert [change for change in diff(one, again) if change.field != "database"] == []
    assert digest(again) == digest(one)


def test_a_directory_beneath_the_file_is_the_same_on_another_machine() -> None:
    elsewhere = parse_topology(portable_text(TWO), Path("/home/me/topology.yaml"))
    assert [str(each.data) for each in elsewhere.clusters] == ["/home/me/data/us-east", "/home/me/data/eu-west"]
    assert "data: data/us-east" in portable_text(TWO)
    assert digest(elsewhere) == digest(TWO)


def test_a_password_that_differs_is_a_change_and_is_not_shown() -> None:
    secret = [cluster("us-east", database=f"postgresql://u:{word}@h/d") for word in ("old-secret", "new-secret")]
    before, after = (Topology((each,), ()) for each in secret)
    (change,) = diff(before, after)
    assert "secret" not in f"{change} {change.as_json()}"
    assert refusals((change,), "us-east")


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"address": "127.0.0.1:9999"}, "clusters.us-east.address: 127.0.0.1:7101 → 127.0.0.1:9999"),
        ({"data": "/elsewhere"}, "clusters.us-east.data: /etc/replicator/data/us-east → /elsewhere"),
        ({"pulsar": "127.0.0.1:6650"}, "clusters.us-east.pulsar: default → 127.0.0.1:6650"),
        ({"advertised": "outside:6650"}, "clusters.us-east.advertised: default → outside:6650"),
        ({"hosts": ("a", "b")}, "clusters.us-east.hosts: default → a, b"),
        ({"database": "postgresql://h/d"}, "clusters.us-east.database: embedded → postgresql://h/d"),
    ],
)
def test_a_worker_takes_what_it_bound_or_opened_once_only_by_a_restart(fields: dict[str, str], named: str) -> None:
    after = replace(TWO, clusters=(cluster("us-east", **fields), TWO.clusters[1]))
    (problem,) = refusals(diff(TWO, after), "us-east")
    assert problem.startswith(named)
    assert "restart" in problem
    assert refusals(diff(TWO, after), "eu-west") == []


def test_the_largest_message_needs_a_restart_of_every_worker() -> None:
    changes = diff(TWO, replace(TWO, store=StoreSettings(message_size_max=20 << 20)))
    assert words(changes) == ["store.message_size_max: 5MiB → 20MiB"]
    assert [refusals(changes, name) != [] for name in TWO.names] == [True, True]


def test_the_limit_of_the_store_needs_a_restart_of_every_worker_and_the_paces_of_sync_of_none() -> None:
    store = diff(TWO, replace(TWO, store=StoreSettings(size_max=1 << 30)))
    assert [refusals(store, name) != [] for name in TWO.names] == [True, True]
    mode = diff(TWO, replace(TWO, sync=SyncSettings(mode="mark-delete")))
    assert [refusals(mode, name) != [] for name in TWO.names] == [True, True]
    sync = diff(TWO, replace(TWO, sync=SyncSettings(update_interval_ms=50)))
    assert [refusals(sync, name) for name in TWO.names] == [[], []]
    assert words(sync) == ["sync.update_interval_ms: 5 → 50"]
    metrics = diff(TWO, replace(TWO, metrics=MetricsSettings(topics=50)))
    assert words(metrics) == ["metrics.topics: 1000 → 50"]
    assert refusals(metrics, "us-east") == []


def test_a_worker_does_not_take_a_topology_without_itself() -> None:
    without = topology("us-east")
    assert refusals(diff(TWO, without), "eu-west") == [
        "clusters.eu-west: the file does not name this cluster any more; stop its worker"
    ]
    assert refusals(diff(TWO, without), "us-east") == []


def test_links_of_a_pair_that_change_places_are_a_change_and_links_of_other_pairs_are_none() -> None:
    bulk, rest = Link("us-east", "eu-west", "bulk", topics=("acme/.*",)), Link("us-east", "eu-west")
    back = Link("eu-west", "us-east")
    before = replace(TWO, links=(bulk, rest, back))
    assert diff(before, replace(TWO, links=(back, bulk, rest))) == ()
    (change,) = diff(before, replace(TWO, links=(rest, bulk, back)))
    assert change.kind == "links-reordered"
    assert str(change) == (
        "links us-east → eu-west: asked in the order [us-east>eu-west, us-east>eu-west#bulk], "
        "which was [us-east>eu-west#bulk, us-east>eu-west]"
    )


def test_a_change_names_the_link_and_the_value_before_and_after() -> None:
    slow = Link("us-east", "eu-west", rate_bytes=1 << 20, topics=("acme/.*",))
    three = topology("us-east", "eu-west", "ap-south", links=(slow, Link("us-east", "ap-south", compression="zstd")))
    assert words(diff(TWO, three)) == [
        "cluster ap-south: added, at 127.0.0.1:7103",
        "link eu-west → us-east: removed",
        "link us-east → eu-west: topics: default → [acme/.*]",
        "link us-east → eu-west: rate: default → 1MiB",
        "link us-east → ap-south: added (compression zstd)",
    ]


def test_a_policy_that_changes_everywhere_is_said_once() -> None:
    ttl = PolicySettings.model_validate({"message_ttl": "12h"})
    everywhere = replace(TWO, clusters=tuple(each.model_copy(update={"policies": ttl}) for each in TWO.clusters))
    assert words(diff(TWO, everywhere), TWO.names) == ["policies of all clusters: message_ttl: default → 12h"]
    here = replace(TWO, clusters=(everywhere.clusters[0], TWO.clusters[1]))
    assert words(diff(TWO, here), TWO.names) == ["policies of us-east: message_ttl: default → 12h"]


def test_the_engine_and_how_spark_runs_are_taken_under_way_and_secrets_of_it_are_not_shown(tmp_path: Path) -> None:
    before = default_topology(tmp_path, (7101, 7102))
    settings = {"engine": "embedded", "conf": {"spark.ssl.keyPassword": "hush"}, "batch": 5, "master": "local[4]"}
    after = replace(before, pipeline=PipelineSettings(**settings))
    changes = diff(before, after)
    assert {change.field for change in changes} == set(settings)
    assert refusals(changes, "us-east") == []
    assert "hush" not in " ".join(words(changes)) + portable_text(after)
    assert digest(before) != digest(after)


def test_settings_of_a_start_hold_at_the_next_one_and_their_defaults_are_not_written() -> None:
    after = replace(TWO, store=StoreSettings(on_empty_store="refuse", ask_peers_seconds=0, wait_for_states_seconds=60))
    changes = diff(TWO, after)
    assert sorted(map(str, changes)) == [
        "store.ask_peers_seconds: 5 → 0",
        "store.on_empty_store: reclaim → refuse",
        "store.wait_for_states_seconds: 600 → 60",
    ]
    assert refusals(changes, "us-east") == []
    assert digest(after) != digest(TWO)
    assert TWO.store.written() == {"size_max": "64GiB"}
    written = {"on_empty_store": "refuse", "ask_peers_seconds": 0, "wait_for_states_seconds": 60}
    assert after.store.written() == {"size_max": "64GiB", **written}
    with pytest.raises(ValueError, match="'wait' is not one of reclaim, refuse, start"):
        StoreSettings.model_validate({"on_empty_store": "wait"})
