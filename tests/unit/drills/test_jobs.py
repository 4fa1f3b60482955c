"""A request for a drill is checked before anything starts."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from replicator.drills import canary, jobs
from replicator.drills.errors import DrillError
from replicator.drills.jobs import DrillOptions, plan_jobs
from replicator.drills.run_store import digest_of, find_place
from replicator.drills.stage import make_topology
from replicator.drills.subscriptions import ALL_KINDS, DeferredAcks, parse_subscriptions
from replicator.index.drill_reports import comparison
from replicator.running import extras as running_extras
from replicator.running.extras import ExtraMissing
from replicator.topology import EMBEDDED, Cluster, Link, Topology, dump

OPTIONS = DrillOptions(messages=1000)


def topology(*links: Link, database: str = EMBEDDED) -> Topology:
    clusters = tuple(
        Cluster.model_validate(
            {"name": name, "address": f"127.0.0.1:{7000 + n}", "data": f"/data/{name}", "database": database}
        )
        for n, name in enumerate("ab")
    )
    return Topology(clusters, links)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "regions.yaml"
    path.write_text(dump(topology(Link("a", "b"), Link("b", "a"))))
    return path


def test_every_kind_of_subscription_is_tested_by_default_and_each_is_left_out_of_order_but_the_cumulative_one() -> None:
    tested = parse_subscriptions("all")
    assert [each.kind for each in tested] == list(ALL_KINDS)
    assert {each.kind for each in tested if each.left_for_later is DeferredAcks.NOTHING} == {"exclusive"}
    assert {each.kind for each in tested if each.batch_index_acks} == {"batch-index"}
    assert [each.kind for each in parse_subscriptions("shared, exclusive")] == ["exclusive", "shared"]
    with pytest.raises(DrillError, match="'durable' is not known; there are: all, exclusive"):
        parse_subscriptions("shared,durable")


def test_several_runs_have_directories_of_their_own() -> None:
    (single,) = plan_jobs(OPTIONS)[0]
    assert single.setting.out_dir == Path("drill-report")
    assert [job.setting.out_dir.name for job in plan_jobs(replace(OPTIONS, sync="both"))[0]] == [
        "kill-primary-exact",
        "kill-primary-mark-delete",
    ]
    every = plan_jobs(replace(OPTIONS, scenario="all"))[0]
    assert len({job.setting.out_dir for job in every}) == len(every) == 13
    assert [len(make_topology(job.setting).clusters) for job in every if job.scenario.name == "mesh-lose-one"] == [3]


@pytest.mark.parametrize("extras", [{"spark"}, set()])
def test_a_drill_of_its_own_clusters_does_without_spark_where_it_is_not_installed_and_nobody_asks_for_it(
    extras: set[str], file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (jobs, running_extras):
        monkeypatch.setattr(module, "is_installed", extras.__contains__)
    full = replace(OPTIONS, messages=100_000)  # as many as by default
    (plain,), _ = plan_jobs(full)
    carried = {make_topology(plain.setting).engine_of(link) for link in make_topology(plain.setting).links}
    assert carried == ({"spark"} if extras else {"embedded"})
    assert jobs.falls_back_to_embedded(full) is (not extras)
    for asked in ({"engine": "spark"}, {"topology_file": file}):
        wanted = replace(OPTIONS, **asked)
        assert not jobs.falls_back_to_embedded(wanted)
        if extras:
            plan_jobs(wanted)
        else:
            with pytest.raises(ExtraMissing, match=r"needs the extra spark.*whl\[spark\]"):
                plan_jobs(wanted)


def test_the_mode_of_sync_is_in_the_topology_of_the_run() -> None:
    exact, mark_delete = plan_jobs(replace(OPTIONS, sync="both"))[0]
    assert make_topology(exact.setting).sync.mode == "exact"
    assert make_topology(mark_delete.setting).sync.mode == "mark-delete"


def test_of_all_scenarios_those_that_the_topology_cannot_have_are_left_out_and_named(file: Path) -> None:
    jobs, left_out = plan_jobs(replace(OPTIONS, scenario="all", links="one-way"))
    names = {job.scenario.name for job in jobs}
    assert {"kill-primary", "partition", "move"} <= names
    assert {line.partition(":")[0] for line in left_out} == {
        "kill-each",
        "lost-disk",
        "planned",
        "failback",
        "mesh-lose-one",
    }
    _, left_out = plan_jobs(replace(OPTIONS, scenario="all", topology_file=file))
    assert len(left_out) == 2
    assert left_out[0].startswith("lost-disk: --scenario lost-disk removes a data directory")
    assert left_out[1].startswith(f"mesh-lose-one: {file}: links: the drill cannot use these links: no three clusters")


def test_a_database_that_is_not_the_drills_is_not_stopped(tmp_path: Path) -> None:
    path = tmp_path / "regions.yaml"
    path.write_text(dump(topology(Link("a", "b"), Link("b", "a"), database="postgresql://u:secret@db/x")))
    with pytest.raises(DrillError, match=r"clusters.a.database: --scenario postgres-down stops the database"):
        plan_jobs(replace(OPTIONS, scenario="postgres-down", topology_file=path))


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"links": "sideways"}, "--links must be both-ways or one-way"),
        ({"sync": "some"}, "--sync must be exact, mark-delete or both"),
        ({"scenario": "kill-each", "links": "one-way"}, "linked both ways"),
        ({"topology_file": "FILE", "links": "one-way"}, "--links goes with the drill's own clusters"),
        ({"topology_file": "FILE", "scenario": "mesh-lose-one"}, "no three clusters"),
        ({"topology_file": "FILE", "against_file": "FILE"}, "give one of them"),
        ({"against_file": "FILE", "scenario": "kill-primary"}, "starts, stops or kills workers"),
        ({"against_file": "FILE", "scenario": "planned"}, "add --all-clients"),
        ({"against_file": "FILE", "sync": "exact"}, "sync as they were started"),
        ({"against_file": "FILE", "namespace": "public"}, "--namespace: namespace 'public'"),
        ({"against_file": "FILE", "namespace": "public/../x"}, "--namespace"),
    ],
)
def test_what_does_not_go_together_is_refused_in_one_line(changes: dict[str, str], problem: str, file: Path) -> None:
    given = {name: file if value == "FILE" else value for name, value in changes.items()}
    with pytest.raises(DrillError, match=problem) as refused:
        plan_jobs(replace(OPTIONS, **given))  # type: ignore[arg-type]
    assert "\n" not in str(refused.value)


def test_against_a_running_topology_clients_move_by_default_and_topics_are_in_the_canary_namespace(file: Path) -> None:
    (job,) = plan_jobs(replace(OPTIONS, against_file=file))[0]
    assert job.scenario.name == "move"
    assert job.setting.is_running
    assert job.topics[0].startswith("persistent://public/canary/replicator-drill-move-")
    names = [each.scenario.name for each in plan_jobs(replace(OPTIONS, against_file=file, scenario="all"))[0]]
    assert names == ["move"]
    everybody = replace(OPTIONS, against_file=file, scenario="all", all_clients=True)
    assert [each.scenario.name for each in plan_jobs(everybody)[0]] == ["planned", "failback", "move"]


def test_topics_of_others_in_the_canary_namespace_are_told_from_drills() -> None:
    ours = canary.canary_topic("public/canary", "move-1")
    assert canary.foreign_topics([ours, "persistent://public/canary/orders"]) == ["persistent://public/canary/orders"]


def test_runs_are_kept_where_it_is_said_else_with_the_first_cluster_else_beside_the_report() -> None:
    own = topology(Link("a", "b"), database="postgresql://u:secret@db/x")
    out = Path("out")
    assert find_place(None, out, None).data == out / "runs"
    assert find_place("there", out, own).data == Path("there/runs")
    assert find_place("postgresql://u:secret@db/y", out, own).setting.endswith("/y")
    assert find_place(None, out, own).setting == "postgresql://u:secret@db/x"
    assert "secret" not in find_place(None, out, own).shown


def test_the_digest_of_a_topology_is_of_its_shape() -> None:
    both = topology(Link("a", "b"), Link("b", "a"))
    elsewhere = replace(
        both, clusters=tuple(each.model_copy(update={"address": "127.0.0.1:9"}) for each in both.clusters)
    )
    assert digest_of(both) == digest_of(elsewhere)
    assert digest_of(both) != digest_of(topology(Link("a", "b")))


def test_two_reports_are_compared_figure_by_figure_and_subscription_by_subscription() -> None:
    one = {"passed": True, "repeated": 1, "sync_lag_ms": {"p99": 1.5}, "subscriptions": [{"name": "s", "repeated": 1}]}
    other = {"passed": True, "repeated": 9, "subscriptions": [{"name": "s", "repeated": 9}, {"name": "t"}]}
    rows = {name: (first, second) for name, first, second in comparison((one, other))}
    assert rows["repeated"] == (1, 9)
    assert rows["sync_lag_ms.p99"] == (1.5, None)
    assert rows["s: repeated"] == (1, 9)
    assert not any(name.startswith("t:") for name in rows)


def test_order_is_judged_for_every_kind_but_shared() -> None:
    assert [each.kind for each in parse_subscriptions("all") if not each.observed.ordered] == ["shared", "batch-index"]


def test_the_client_is_our_own_but_where_the_scenario_or_the_options_say_otherwise() -> None:
    pytest.importorskip("pulsar")
    assert [job.client for job in plan_jobs(OPTIONS)[0]] == ["own"]
    assert [job.client for job in plan_jobs(replace(OPTIONS, client="pulsar"))[0]] == ["pulsar"]
    clients = {job.scenario.name: job.client for job in plan_jobs(replace(OPTIONS, scenario="all"))[0]}
    assert {name for name, client in clients.items() if client == "pulsar"} == {"official-clients"}


def test_without_the_official_client_its_scenario_is_left_out_of_all_and_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "pulsar", None)
    jobs, left_out = plan_jobs(replace(OPTIONS, scenario="all"))
    assert "official-clients" not in {job.scenario.name for job in jobs}
    assert any(
        "official-clients: --client pulsar: the package pulsar-client is not installed" in each for each in left_out
    )
    for asked in (replace(OPTIONS, client="pulsar"), replace(OPTIONS, scenario="official-clients")):
        with pytest.raises(DrillError, match="the package pulsar-client is not installed: pip install pulsar-client"):
            plan_jobs(asked)
    with pytest.raises(DrillError, match="--client must be own or pulsar, not 'kafka'"):
        plan_jobs(replace(OPTIONS, client="kafka"))


@pytest.mark.parametrize("kind", ["pulsar", "mixed"])
def test_beside_brokers_parts_of_batches_are_not_tested_and_links_are_carried_by_workers(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pulsar")
    monkeypatch.setattr(jobs, "check_brokers", lambda kind: None)  # they are not started here
    (job,) = plan_jobs(replace(OPTIONS, kind=kind))[0]
    assert [each.kind for each in job.subscriptions] == ["exclusive", "shared", "key-shared", "failover"]
    assert make_topology(job.setting).pipeline.engine == EMBEDDED
    assert job.client == "pulsar"
    assert job.digest not in {each.digest for each in plan_jobs(OPTIONS)[0]}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"kind": "kafka"}, "--kind must be embedded, pulsar or mixed, not 'kafka'"),
        ({"kind": "mixed", "subscriptions": "batch-index"}, "--subscriptions batch-index goes with --kind embedded"),
        ({"kind": "pulsar", "secure": True}, "--secure does not go with --kind pulsar"),
        ({"kind": "pulsar", "client": "own"}, "--client own does not go with --kind pulsar"),
        ({"kind": "pulsar", "engine": "spark"}, "--engine spark does not go with --kind pulsar"),
    ],
)
def test_what_does_not_go_with_brokers_is_refused_before_anything_starts(
    change: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "check_brokers", lambda kind: None)  # they may be missing here
    with pytest.raises(DrillError, match=said):
        plan_jobs(replace(OPTIONS, **change))


def beside_brokers(tmp_path: Path, of_a: str = "") -> Path:
    """Write a topology of clusters a and b, with a's worker beside brokers."""
    file = tmp_path / "beside.yaml"
    file.write_text(
        "clusters:\n"
        "  a: {address: '127.0.0.1:7001', data: a, kind: pulsar, apache: {service_url: 'pulsar://a:6650', "
        f"admin_url: 'http://a:8080'{of_a}}}}}\n"
        "  b: {address: '127.0.0.1:7002', data: b}\n"
        "links: [{between: [a, b]}]\npipeline: {engine: embedded}\n"
    )
    return file


def test_a_running_topology_says_itself_that_its_clusters_are_beside_brokers(tmp_path: Path) -> None:
    pytest.importorskip("pulsar")
    file = beside_brokers(tmp_path)
    for options in (OPTIONS, replace(OPTIONS, kind="mixed")):
        (job,) = plan_jobs(replace(options, against_file=file))[0]
        assert (job.setting.kind, job.client, job.scenario.name) == ("mixed", "pulsar", "move")
        assert [each.kind for each in job.subscriptions] == ["exclusive", "shared", "key-shared", "failover"]


@pytest.mark.parametrize(
    ("of_a", "change", "said"),
    [
        ("", {"kind": "pulsar"}, "--kind pulsar: the clusters of .*beside.yaml are mixed"),
        ("", {"client": "own"}, "--client own does not go with --against .*beside.yaml, whose clusters are mixed"),
        (", topics: [shop/orders]", {}, r"clusters.a.apache: the worker does not copy persistent://public/canary/"),
        (", subscriptions: [billing]", {}, "clusters.a.apache.subscriptions leaves out drill-exclusive"),
    ],
)
def test_a_running_topology_whose_brokers_a_drill_cannot_use_is_refused_by_its_field(
    of_a: str, change: dict[str, Any], said: str, tmp_path: Path
) -> None:
    pytest.importorskip("pulsar")
    with pytest.raises(DrillError, match=said):
        plan_jobs(replace(OPTIONS, against_file=beside_brokers(tmp_path, of_a), **change))


def test_brokers_of_a_topology_are_not_started_by_a_drill(tmp_path: Path) -> None:
    with pytest.raises(DrillError, match=r"--topology .*beside.yaml: its workers run beside brokers"):
        plan_jobs(replace(OPTIONS, topology_file=beside_brokers(tmp_path)))
