"""Failover between real workers: planned, unplanned, an old primary that returns, failback, promote, roll back.

DESIGN §4.5; invariants 1, 2, 5. The commands are run as a user runs them.
"""

from __future__ import annotations

import asyncio
import json
import time
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import forked_commands
import pytest
from failover_support import TOPIC, Deployment, Traffic, deployment
from postgres_support import databases_of

from replicator.client import Client, ClusterFenced, ConsumerType, InitialPosition, Timeout
from replicator.failover.peers import PATH, Peers
from replicator.failover.report import SwitchReport
from replicator.failover.switch import Switch
from replicator.topology import load_topology

_serial = count()

BOTH_WAYS = "[{between: [A, B]}]"
A_TO_B = "[{from: A, to: B}]"
MESH = "[{between: [A, B]}, {between: [A, C]}, {between: [B, C]}]"


@pytest.fixture
def databases(postgres_server: str) -> Iterator[dict[str, str]]:
    with databases_of("ABC", postgres_server, f"failover_{next(_serial)}") as urls:
        yield urls


STEP_SECONDS_MAX = 60.0
"""Limit for traffic alone. Commands and starting workers have limits of their own: together they may take longer."""


async def with_traffic(deployed: Deployment, act: Callable[[Traffic], Awaitable[None]], *, home: str = "A") -> Traffic:
    """Produce and consume as a client of ``home`` while ``act`` runs; return when all is acknowledged.

    A producer or consumer that fails ends ``act`` at once. Clients run on the event loop: ``act`` must not block it.
    """
    traffic = Traffic()
    async with deployed.following(home) as client, asyncio.TaskGroup() as clients:
        ends = [clients.create_task(traffic.produce(client)), clients.create_task(traffic.consume(client))]
        await act(traffic)
        traffic.stopping = True
        _, late = await asyncio.wait(ends, timeout=STEP_SECONDS_MAX)
        assert not late, f"not all came within {STEP_SECONDS_MAX} s: {progress(traffic)}"
    return traffic


def progress(traffic: Traffic) -> str:
    failed = "".join(f"; {error}" for error in traffic.failed[-3:])
    return f"{len(traffic.confirmed)} confirmed, {len(traffic.acknowledged)} acknowledged{failed}"


async def more(traffic: Traffic, count: int = 100) -> None:
    """Return when ``count`` more messages were confirmed and acknowledged."""
    confirmed, acknowledged = len(traffic.confirmed) + count, len(traffic.acknowledged) + count
    deadline = time.monotonic() + STEP_SECONDS_MAX
    while len(traffic.confirmed) < confirmed or len(traffic.acknowledged) < acknowledged:
        assert time.monotonic() < deadline, f"the traffic stands still: {progress(traffic)}"
        await asyncio.sleep(0.01)


async def publish(url: str, *contents: bytes, topic: str = TOPIC) -> None:
    async with Client(url, reconnect=False) as client:
        producer = await client.create_producer(topic)
        await producer.send_many(contents)


async def drained(url: str, topic: str = TOPIC, subscription: str = "check") -> list[bytes]:
    """Everything that a topic has, as a new subscription gets it."""
    found: list[bytes] = []
    async with Client(url) as client:
        consumer = await client.subscribe(topic, subscription, initial_position=InitialPosition.Earliest)
        while True:
            try:
                found.append((await consumer.receive(timeout_millis=1500)).data())
            except Timeout:
                return found


def messages_in(deployed: Deployment, name: str) -> int:
    return sum(each["messages"] for each in deployed.post(name, "/failover/v1/topics", {})["topics"])


def test_a_planned_failover_with_traffic_and_back_loses_and_repeats_nothing(
    tmp_path: Path, databases: dict[str, str]
) -> None:
    async def main(deployed: Deployment) -> None:
        async def act(traffic: Traffic) -> None:
            await more(traffic)
            report = await asyncio.to_thread(deployed.report, "failover", "--from", "A", "--to", "B", "--planned")
            assert report["outcome"] == "done"
            assert report["epoch"] == 1
            assert report["not_received"] == 0
            assert report["may_be_repeated"] == 0
            (topic,) = report["topics"]
            assert topic["missing_messages"] == 0
            assert topic["subscriptions"][0]["equal"] is True
            assert deployed.state("A")["fenced"] is True
            await more(traffic)
            assert "B" in traffic.clusters, "nothing was published at B"
            back = await asyncio.to_thread(deployed.report, "failback", "--to", "A")
            assert (back["outcome"], back["epoch"], back["not_received"], back["may_be_repeated"]) == ("done", 2, 0, 0)
            assert deployed.state("A")["producers"] == "open"
            await publish(deployed.client_url("B"), b"B serves its own clients again", topic="public/default/of-b")
            await more(traffic)
            status = await asyncio.to_thread(deployed.report, "failover-status")
            assert status["stranded"] == [], "what B publishes after the failback was not stranded there"

        traffic = await with_traffic(deployed, act)
        assert traffic.failed == []
        assert traffic.repeated == []
        assert sorted(set(traffic.received)) == traffic.confirmed
        for name in ("A", "B"):
            assert sorted(await drained(deployed.client_url(name))) == traffic.confirmed

    with deployment(tmp_path, "A", "B", links=BOTH_WAYS, databases=databases) as deployed:
        asyncio.run(main(deployed))


def test_what_is_published_at_the_former_server_once_it_takes_clients_again_is_not_missing(
    tmp_path: Path, databases: dict[str, str]
) -> None:
    """The report of a switch counts before the former server's release. Here a client is as fast as one can be."""

    class Released(Peers):
        async def call(self, cluster: str, method: str, path: str, body: Any = None, **how: Any) -> Any:
            answer = await super().call(cluster, method, path, body, **how)
            if path == f"{PATH}/release":
                await publish(deployed.client_url(cluster), b"after its release")
                released.append(cluster)
            return answer

    async def back() -> SwitchReport:
        topology = load_topology(deployed.file)
        async with Released({cluster.name: cluster.address for cluster in topology.clusters}) as peers:
            return await Switch(topology, peers).failback("A")

    released: list[str] = []
    with deployment(tmp_path, "A", "B", links=BOTH_WAYS, databases=databases) as deployed:
        asyncio.run(publish(deployed.client_url("A"), b"before"))
        assert deployed.report("failover", "--from", "A", "--to", "B", "--planned")["outcome"] == "done"
        asyncio.run(publish(deployed.client_url("B"), b"at B"))
        report = asyncio.run(back())
        assert (report.outcome, released) == ("done", ["B"])
        assert [topic.missing_messages for topic in report.topics] == [0]


def test_after_an_unplanned_failover_the_old_primary_learns_before_it_takes_a_write(
    tmp_path: Path, databases: dict[str, str]
) -> None:
    async def main(deployed: Deployment) -> None:
        async def act(traffic: Traffic) -> None:
            await more(traffic)
            deployed.kill("A")
            report = await asyncio.to_thread(deployed.report, "failover", "--from", "A", "--to", "B", "--unplanned")
            assert report["outcome"] == "done"
            assert report["source_answers"] is False
            assert report["not_received"] is None
            assert report["unknown_since_ms"] > 0
            await more(traffic)
            await asyncio.to_thread(deployed.start, "A")
            assert (await asyncio.to_thread(deployed.state, "A"))["fenced"] is True
            with pytest.raises(ClusterFenced, match=r"served by B at pulsar://.* since failover epoch 1"):
                await publish(deployed.client_url("A"), b"late")
            status = await asyncio.to_thread(deployed.report, "failover-status")
            assert status["agreed"] is True
            assert status["stranded"] is not None
            await asyncio.to_thread(
                deployed.until,
                lambda: all(each["flowed"] for each in deployed.report("failover-status")["stranded"]),
                "what was stranded in A has flowed to B",
            )
            await more(traffic)

        traffic = await with_traffic(deployed, act)
        assert set(traffic.confirmed) <= set(traffic.received), "a confirmed message was lost"
        assert set(traffic.confirmed) <= set(await drained(deployed.client_url("B")))

    with deployment(tmp_path, "A", "B", links=BOTH_WAYS, databases=databases) as deployed:
        asyncio.run(main(deployed))


def test_what_a_dead_primary_had_and_nobody_else_is_counted_and_flows_when_it_returns(
    tmp_path: Path, databases: dict[str, str]
) -> None:
    with deployment(tmp_path, "A", "B", links=A_TO_B, databases=databases) as deployed:
        asyncio.run(publish(deployed.client_url("A"), b"received"))
        deployed.until(lambda: messages_in(deployed, "B"), "B has the message")
        deployed.kill("B")
        asyncio.run(publish(deployed.client_url("A"), *(b"stranded %d" % n for n in range(7))))
        deployed.kill("A")
        deployed.start("B")
        refused = deployed.command("failover", "--from", "A", "--to", "B")
        assert refused.returncode == 3
        assert "promote --to B --for A" in refused.stderr
        done = deployed.report("promote", "--to", "B")  # the only home that B does not serve
        assert (done["kind"], done["not_received"]) == ("promote", None)
        waiting = deployed.report("failover-status", status=3)
        assert waiting["stranded"] is None
        assert "A" in waiting["stranded_unknown"]
        deployed.start("A")
        deployed.until(
            lambda: all(each["flowed"] for each in deployed.report("failover-status")["stranded"]), "it has flowed"
        )
        (stranded,) = deployed.report("failover-status")["stranded"]
        assert stranded["messages"] == 7
        assert len(asyncio.run(drained(deployed.client_url("B")))) == 8


def test_an_isolated_old_primary_goes_on_and_what_it_took_is_merged(tmp_path: Path, databases: dict[str, str]) -> None:
    with deployment(tmp_path, "A", "B", links=BOTH_WAYS, databases=databases) as deployed:
        asyncio.run(publish(deployed.client_url("A"), b"one"))
        deployed.kill("A")
        deployed.report("failover", "--from", "A", "--to", "B", "--unplanned")
        deployed.kill("B")  # for A as if the network were cut: nobody answers
        deployed.start("A")
        assert deployed.state("A")["fenced"] is False
        assert "going on with the failover epoch that is stored" in (deployed.path / "A.log").read_text()
        asyncio.run(publish(deployed.client_url("A"), b"two"))
        deployed.start("B")
        deployed.until(lambda: deployed.state("A")["fenced"], "A hears of the epoch")
        deployed.until(lambda: deployed.state("A")["epoch"] == 1, "A knows it")
        assert sorted(asyncio.run(drained(deployed.client_url("B")))) == [b"one", b"two"]


def test_a_planned_failover_that_cannot_drain_is_refused_and_undone(tmp_path: Path, databases: dict[str, str]) -> None:
    with deployment(tmp_path, "A", "B", links="[]", databases=databases) as deployed:
        asyncio.run(publish(deployed.client_url("A"), b"one"))
        linked = deployed.write(BOTH_WAYS, "linked.yaml")  # the operator's file has a link, the workers' has none
        report = deployed.report("failover", "--from", "A", "--to", "B", "--timeout", "1", status=1, file=linked.name)
        assert report["outcome"] == "refused"
        assert "orders" in report["reason"]
        assert report["epoch"] is None
        for name in ("A", "B"):
            assert deployed.state(name)["epoch"] == 0
            assert deployed.state(name)["producers"] == "open"
        asyncio.run(publish(deployed.client_url("A"), b"two"))


def test_a_planned_switch_with_an_open_gap_is_refused_before_the_fence_and_names_what_ends_it(
    tmp_path: Path, databases: dict[str, str]
) -> None:
    with deployment(tmp_path, "A", "B", links=BOTH_WAYS, databases=databases) as deployed:
        asyncio.run(publish(deployed.client_url("A"), b"one"))
        asyncio.run(publish(deployed.client_url("B"), b"two"))
        deployed.until(lambda: messages_in(deployed, "A") == messages_in(deployed, "B") == 2, "both have all messages")
        deployed.ask("B", "DELETE", f"/admin/v2/persistent/{TOPIC.removeprefix('persistent://')}")
        asyncio.run(publish(deployed.client_url("A"), b"three"))
        deployed.until(lambda: messages_in(deployed, "B"), "B has a copy again")
        assert deployed.report("failover", "--from", "A", "--to", "B")["outcome"] == "done"
        asyncio.run(publish(deployed.client_url("B"), b"four"))
        deployed.until(lambda: deployed.get("B", "/replication/v1/links")["links"][0]["gaps"], "the gap is found")

        ends = f"--from B --to A --topic {TOPIC} --policy keep-both"
        for switch in (("failback", "--to", "A"), ("failover", "--from", "B", "--to", "A")):
            dry_run = deployed.report(*switch, "--dry-run")
            report = deployed.report(*switch, "--timeout", "5", status=1)
            assert [each["step"] for each in report["steps"]] == ["check"], "nothing was fenced"
            for said in (report["reason"], *(note for note in dry_run["notes"] if "planned switch" in note)):
                assert f"link B>A has a gap (made-anew) in {TOPIC}" in said
                assert f"`replicator links resolve -f FILE {ends}`" in said
            assert any("planned switch" in note for note in dry_run["notes"])
        resolved = forked_commands.run("links", "resolve", "-f", deployed.file.name, *ends.split(), cwd=deployed.path)
        assert resolved.returncode == 0, resolved.stderr
        assert deployed.report("failback", "--to", "A")["outcome"] == "done"


@pytest.mark.parametrize(
    ("partitions", "deleted", "made"),
    [
        (0, "", f"create -f FILE --cluster B {TOPIC}"),
        (2, "/partitions", f"create-partitioned --partitions 2 -f FILE --cluster B {TOPIC}"),
        (2, "-partition-1", f"create -f FILE --cluster B {TOPIC}-partition-1"),
    ],
)
def test_a_planned_switch_to_a_cluster_that_deleted_a_topic_is_refused_and_names_what_makes_the_topic_anew(
    tmp_path: Path, databases: dict[str, str], partitions: int, deleted: str, made: str
) -> None:
    path = f"/admin/v2/persistent/{TOPIC.removeprefix('persistent://')}"
    with deployment(tmp_path, "A", "B", links=BOTH_WAYS, databases=databases) as deployed:
        if partitions:
            deployed.ask("A", "PUT", f"{path}/partitions", partitions)
        one, other = (f"{TOPIC}-partition-0", f"{TOPIC}-partition-1") if partitions else (TOPIC, TOPIC)
        asyncio.run(publish(deployed.client_url("A"), b"one", b"two", topic=one))
        asyncio.run(publish(deployed.client_url("A"), b"three", topic=other))
        deployed.until(lambda: messages_in(deployed, "B") == 3, "B has all messages")
        deployed.ask("B", "DELETE", path + deleted)

        dry_run = deployed.report("failover", "--from", "A", "--to", "B", "--dry-run")
        report = deployed.report("failover", "--from", "A", "--to", "B", status=1)
        assert [each["step"] for each in report["steps"]] == ["check"], "nothing was fenced"
        screen = " ".join(deployed.command("failover", "--from", "A", "--to", "B").stdout.split())
        lacks = "1 message" if deleted == "-partition-1" else "3 messages"
        assert screen.startswith(f"Refused: {report['reason']}. Nothing was switched. B lacks {lacks} of A;")
        for said in (report["reason"], *(note for note in dry_run["notes"] if "planned switch" in note)):
            assert said.count(f"`replicator topics {made}`") == 1
        assert any("planned switch" in note for note in dry_run["notes"])
        words = made.replace("FILE", deployed.file.name).split()
        done = forked_commands.run("topics", *words, cwd=deployed.path)
        assert done.returncode == 0, done.stderr
        assert deployed.report("failover", "--from", "A", "--to", "B")["outcome"] == "done"
        assert sorted(asyncio.run(drained(deployed.client_url("B")))) == [b"one", b"three", b"two"]


def test_over_a_one_way_link_a_planned_failover_works_also_where_the_target_consumed_more(
    tmp_path: Path, databases: dict[str, str]
) -> None:
    async def consume(url: str, *numbers: int) -> None:
        async with Client(url) as client:
            consumer = await client.subscribe(
                TOPIC,
                "sub",
                consumer_type=ConsumerType.Shared,
                initial_position=InitialPosition.Earliest,
                replicate_subscription_state_enabled=True,
            )
            for _ in range(6):
                message = await consumer.receive(timeout_millis=5000)
                if int(message.data()) in numbers:
                    await consumer.acknowledge(message)
            await consumer.flush_acknowledgements()

    with deployment(tmp_path, "A", "B", links=A_TO_B, databases=databases) as deployed:
        asyncio.run(publish(deployed.client_url("A"), *(b"%d" % number for number in range(6))))
        deployed.until(lambda: messages_in(deployed, "B"), "B has the message")
        asyncio.run(consume(deployed.client_url("B"), 4))  # of which A never hears
        asyncio.run(consume(deployed.client_url("A"), 0, 2))
        report = deployed.report("failover", "--from", "A", "--to", "B", "--timeout", "10")
        assert (report["outcome"], report["not_received"], report["may_be_repeated"]) == ("done", 0, 0)
        assert sorted(asyncio.run(drained(deployed.client_url("B"), subscription="sub"))) == [b"1", b"3", b"5"]


def test_a_dry_run_reports_and_changes_nothing(tmp_path: Path, databases: dict[str, str]) -> None:
    with deployment(tmp_path, "A", "B", links=BOTH_WAYS, databases=databases) as deployed:
        asyncio.run(publish(deployed.client_url("A"), b"one"))
        deployed.until(lambda: messages_in(deployed, "B"), "B has the message")
        deployed.kill("B")
        asyncio.run(publish(deployed.client_url("A"), b"two", b"three"))
        done = deployed.command("failover", "--from", "A", "--to", "B", "--dry-run")
        assert done.returncode == 3
        assert "B at 127.0.0.1" in done.stderr
        deployed.kill("A")
        deployed.start("B")
        report = deployed.report("failover", "--from", "A", "--to", "B", "--unplanned", "--dry-run")
        assert (report["outcome"], report["not_received"]) == ("dry run", None)
        deployed.start("A")
        deployed.until(
            lambda: deployed.report("failover", "--from", "A", "--to", "B", "--dry-run")["not_received"] == 0, "drained"
        )
        assert deployed.state("B")["epoch"] == 0
        assert deployed.state("A")["producers"] == "open"


def test_a_dry_run_and_the_policies_page_name_a_namespace_that_one_cluster_lacks(
    tmp_path: Path, databases: dict[str, str]
) -> None:
    with deployment(tmp_path, "A", "B", links=BOTH_WAYS, databases=databases) as deployed:
        done = deployed.command("failover", "--from", "A", "--to", "B", "--dry-run")
        assert "partitions: the same" in done.stdout, done.stderr
        made = urllib.request.Request(deployed.url("A", "/admin/v2/namespaces/acme/orders"), b"", method="PUT")
        with urllib.request.urlopen(made) as answer:
            assert answer.status == 204
        for source, target in (("A", "B"), ("B", "A")):
            report = deployed.report("failover", "--from", source, "--to", target, "--unplanned", "--dry-run")
            assert "namespace acme/orders is in A, and not in B" in report["differences"]
            assert "tenant acme is in A, and not in B" in report["differences"]
        with urllib.request.urlopen(deployed.url("B", "/dashboard/policies?search=acme")) as answer:
            page = answer.read().decode()
        assert "not in B" in page
        assert "agree" not in page


def test_with_three_clusters_two_switches_at_once_end_in_one_assignment(
    tmp_path: Path, databases: dict[str, str]
) -> None:
    async def both(deployed: Deployment) -> list[int]:
        done = await asyncio.gather(
            asyncio.to_thread(deployed.command, "promote", "--to", "B", "--for", "A"),
            asyncio.to_thread(deployed.command, "promote", "--to", "C", "--for", "A"),
        )
        return [each.returncode for each in done]

    with deployment(tmp_path, "A", "B", "C", links=MESH, databases=databases) as deployed:
        asyncio.run(publish(deployed.client_url("A"), b"one"))
        deployed.kill("A")
        statuses = asyncio.run(both(deployed))
        assert 0 in statuses
        deployed.until(lambda: deployed.state("B")["record"] == deployed.state("C")["record"], "B and C agree")
        deployed.start("A")
        record = deployed.state("B")["record"]
        assert deployed.state("A")["record"] == record
        serving = record["serving"]["A"]
        assert deployed.state(serving)["serves"] == sorted(["A", serving])
        for name in ("A", "B", "C"):
            answer = deployed.get(name, "/failover/v1/service-url?cluster=A")
            assert answer["serviceUrl"] == deployed.client_url(serving)


def test_the_address_that_clients_poll_has_the_form_that_pulsar_clients_read(
    tmp_path: Path, databases: dict[str, str]
) -> None:
    with deployment(tmp_path, "A", links="[]", databases=databases) as deployed:
        path = "/failover/v1/service-url?cluster=A"
        with urllib.request.urlopen(deployed.url("A", path), timeout=5) as response:
            answer = json.load(response)
            assert response.headers["X-Replicator-Epoch"] == "0"
        assert answer == {
            "serviceUrl": deployed.client_url("A"),
            "tlsTrustCertsFilePath": "",
            "authPluginClassName": "",
            "authParamsString": "",
        }
        with pytest.raises(HTTPError) as refused:
            deployed.get("A", "/failover/v1/service-url?cluster=nowhere")
        assert refused.value.code == 404
        assert json.loads(refused.value.read())["error"] == "UnknownCluster"


def test_wrong_usage_names_what_is_wrong_and_ends_with_2(tmp_path: Path, databases: dict[str, str]) -> None:
    with deployment(tmp_path, "A", "B", links=BOTH_WAYS, databases=databases) as deployed:
        for arguments, expected in (
            (("failover", "--from", "A", "--to", "nowhere"), "there is no cluster 'nowhere'"),
            (("failover", "--from", "A", "--to", "A"), "A serves A already"),
            (("failback", "--to", "A"), "A serves its own clients already"),
        ):
            done = deployed.command(*arguments)
            assert done.returncode == 2, done.stderr
            assert expected in done.stderr
        deployed.report("failover", "--from", "A", "--to", "B")
        again = deployed.command("failover", "--from", "A", "--to", "B")
        assert again.returncode == 2
        assert "A serves nobody" in again.stderr


def test_a_coordinator_that_dies_leaves_the_source_serving_when_its_lease_is_over(
    tmp_path: Path, databases: dict[str, str]
) -> None:
    with deployment(tmp_path, "A", "B", links=BOTH_WAYS, databases=databases) as deployed:
        body = {"operation": "dead", "target": "B", "expected": [0, "", ""], "lease_ms": 1500}
        deployed.post("A", "/failover/v1/hold", body)
        assert deployed.state("A")["producers"] == "switching"
        with pytest.raises(HTTPError) as refused:
            deployed.post("A", "/failover/v1/hold", {**body, "operation": "another"})
        assert refused.value.code == 409
        deployed.until(lambda: deployed.state("A")["producers"] == "open", "A takes producers again")


def test_consumers_may_stay_at_a_fenced_cluster(tmp_path: Path, databases: dict[str, str]) -> None:
    async def consume(url: str) -> bytes:
        async with Client(url, reconnect=False) as client:
            consumer = await client.subscribe(TOPIC, "stays", initial_position=InitialPosition.Earliest)
            message = await consumer.receive(timeout_millis=5000)
            await consumer.acknowledge(message)
            return message.data()

    with deployment(tmp_path, "A", "B", links=BOTH_WAYS, databases=databases) as deployed:
        asyncio.run(publish(deployed.client_url("A"), b"one"))
        report = deployed.report("failover", "--from", "A", "--to", "B", "--keep-consumers")
        assert report["outcome"] == "done"
        state = deployed.state("A")
        assert (state["producers"], state["consumers"]) == ("fenced", "open")
        assert asyncio.run(consume(deployed.client_url("A"))) == b"one"
        with suppress(ClusterFenced):
            asyncio.run(publish(deployed.client_url("A"), b"two"))
            pytest.fail("a fenced cluster took a message")
