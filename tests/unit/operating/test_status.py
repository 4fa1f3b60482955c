"""The tables of ``replicator status`` can be read, however narrow the terminal is."""

from __future__ import annotations

import asyncio
import io
import socket
from typing import Any

import pytest
from rich.console import Console

from replicator.engine.restored import RestoredMark
from replicator.operating.status import fetch_all, render
from replicator.topology import Cluster, Topology

LEDGER = "1838349420526492"


def text_of(answers: dict[str, Any], width: int) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(render(answers))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def answer_with(*topics: str) -> dict[str, Any]:
    subscription = {
        "name": "billing", "type": "Shared", "replicated": True, "mark_delete": f"{LEDGER}:16", "backlog_messages": 2
    }  # fmt: skip
    return {
        "store": {"failed": None, "bytes": 5_000_000},
        "database": {"state": "up"},
        "topics": [
            {"name": name, "messages": 19, "lac": f"{LEDGER}:18", "subscriptions": [subscription]} for name in topics
        ],
        "links": [],
    }


def test_topics_have_the_shortest_name_that_commands_take() -> None:
    shown = text_of({"us-east": answer_with("persistent://public/default/orders", "persistent://acme/eu/orders")}, 120)
    names = {line.split("│")[1].strip() for line in shown.partition("Topics")[2].splitlines() if line.startswith("│")}
    assert names - {""} == {"orders", "acme/eu/orders"}


@pytest.mark.parametrize("width", [80, 100, 120])
def test_no_name_and_no_position_is_cut_off(width: int) -> None:
    name = "a-topic-whose-name-is-quite-long-as-they-are"
    shown = text_of({"us-east": answer_with(f"persistent://public/default/{name}")}, width)
    assert "…" not in shown
    rows = [line.split("│")[1:-1] for line in shown.partition("Topics")[2].splitlines() if line.startswith("│")]
    topic, _, _, lac, *_ = ("".join(cell.strip() for cell in column) for column in zip(*rows, strict=True))
    assert (topic, lac) == (name, f"{LEDGER}:18")


def test_the_topics_with_the_largest_backlogs_are_shown_where_somebody_asks_for_so_many() -> None:
    answer = answer_with("persistent://a/b/one", "persistent://a/b/two", "persistent://a/b/three")
    answer["topics"][1]["subscriptions"] = [{**answer["topics"][1]["subscriptions"][0], "backlog_messages": 9}]
    console = Console(file=io.StringIO(), width=120)
    console.print(render({"us-east": answer}, top=1))
    assert isinstance(console.file, io.StringIO)
    shown = console.file.getvalue()
    assert "Topics with the largest backlogs: 1 of 3" in shown
    assert ("a/b/two" in shown, "a/b/one" in shown, "a/b/three" in shown) == (True, False, False)


def test_columns_say_that_they_count_only_the_topics_that_match() -> None:
    console = Console(file=io.StringIO(), width=160)
    console.print(render({"us-east": answer_with("persistent://a/b/one")}, matching=True))
    assert isinstance(console.file, io.StringIO)
    assert "matching topics" in console.file.getvalue()
    assert "matching topics" not in text_of({"us-east": answer_with("persistent://a/b/one")}, 160)


def test_a_worker_that_is_not_there_refuses_the_connection() -> None:
    with socket.socket() as bound:  # and does not listen
        bound.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{bound.getsockname()[1]}"
        away = Cluster.model_validate({"name": "us-east", "address": address, "data": "/srv/us-east"})
        answers = asyncio.run(fetch_all(Topology((away,), ())))
    assert answers == {"us-east": {"error": f"{address}: connection refused", "status": None}}
    assert "No worker answers; start them" in text_of(answers, 120)


def test_a_worker_that_is_ready_names_its_tasks_that_end_again_and_again() -> None:
    worker = answer_with("orders")
    assert "failing" not in text_of({"us-east": worker}, 200)
    cause = {"name": "link us-east>eu-west", "kind": "link", "ends": 7, "cause": "RuntimeError: a defect"}
    worker["tasks"] = {"restarts": {"link": 7}, "failing": [cause]}
    assert "ready; failing: link us-east>eu-west (RuntimeError: a defect)" in text_of({"us-east": worker}, 200)


def test_a_worker_whose_database_refused_rows_says_how_many() -> None:
    worker = answer_with("orders")
    assert "refused" not in text_of({"us-east": worker}, 200)
    worker["database"]["rows_refused"] = 3
    shown = text_of({"us-east": worker}, 200)
    assert "ready, but see below" in shown
    assert "Postgres refused 3 rows since the worker's start" in shown


def test_a_worker_that_did_not_take_its_topology_file_says_why() -> None:
    worker = answer_with("orders")
    problems = ["/topology.yaml:3: clusters.a.adress: unknown key", "/topology.yaml:9: links: missing"]
    worker["topology"] = {"refused": {"at_ms": 1_700_000_000_000, "problems": problems}}
    told = text_of({"us-east": worker}, 300)
    assert "refused at 2023-11-14 22:13:20+00:00" in told
    assert f"{problems[0]} (and 1 more)" in told


def test_a_worker_beside_apache_pulsar_says_what_keeps_it_from_copying() -> None:
    topic = {"topic": "orders", "halted": True, "errors": {"reading": "gone"}, "state": {"errors": {"work": "busy"}}}
    well = {"topic": "payments", "halted": False, "errors": {}, "state": {"errors": {}}}
    apache = {"error": "", "refused": {"a-b": "why"}, "topics": [topic, well]}
    shown = text_of({"us-east": {**answer_with("orders"), "apache": apache}}, 200)
    assert "not bridged a-b: why" in shown
    assert "halted orders, reading: gone" in shown
    assert "subscription work of orders: busy" in shown
    assert "payments" not in shown
    compared = {**well, "comparison": {"age_seconds": 61.0, "differences": ["3 entries are not read"]}}
    shown = text_of({"us-east": {**answer_with("orders"), "apache": {**apache, "topics": [compared]}}}, 200)
    assert "payments differs: 3 entries are not read" in shown
    assert "1 topics were not compared with the brokers for 60 s, such as payments" in shown
    many = {**apache, "topics": [compared], "quiet_seconds": 31.0}
    assert "not compared" not in text_of({"us-east": {**answer_with("orders"), "apache": many}}, 200)
    native = {**apache, "native_replication": {"shop/eu": ["a", "b"]}}
    shown = text_of({"us-east": {**answer_with("orders"), "apache": native}}, 200)
    assert "replicate namespace shop/eu themselves, among a, b" in shown
    limited = {**apache, "limited": "the admin API limits requests"}
    assert "Apache Pulsar: the admin API limits" in text_of(
        {"us-east": {**answer_with("orders"), "apache": limited}}, 200
    )
    apache["topics"] = [topic] * 20
    assert "… and 31 more" in text_of({"us-east": {**answer_with("orders"), "apache": apache}}, 200)


def test_brokers_that_were_put_back_and_entries_that_are_left_out_there_are_remarks_and_nothing_wrong() -> None:
    lives = [{"incarnation": 7, "after": "0:-1", "lost": "0:-1"}, {"incarnation": 90, "after": "3:4", "lost": "5:9"}]
    topic = {"topic": "orders", "halted": False, "errors": {}, "state": {"errors": {}}}
    apache = {"error": "", "refused": {}, "topics": [{**topic, "lives": lives, "left_out": [{}, {}]}, topic]}
    shown = text_of({"us-east": {**answer_with("orders"), "apache": apache}}, 200)
    assert "data of orders began anew behind 3:4: what they had up to 5:9 stays in this worker" in shown
    assert "2 entries of orders are left out at the brokers" in shown
    assert "Nothing is wrong." in shown


def restored(backup: str, *lost: str, messages: int = 940) -> dict[str, Any]:
    mark = RestoredMark("1", backup, 0, 0, 86_400_000, messages, 1, lost).as_json()
    return {**answer_with("orders"), "restored": mark}


def test_messages_that_were_taken_back_without_a_backup_are_a_remark_and_nothing_wrong() -> None:
    shown = text_of({"us-east": restored("")}, 200)
    assert "us-east: 940 messages were taken back from other clusters on 1970-01-02 00:00:00+00:00\n" in shown
    assert "Nothing is wrong." in shown
    assert ("see below" in shown, "backup" in shown) == (False, False)
    assert "taken back" not in text_of({"us-east": restored("", messages=0)}, 200)


def test_after_a_lost_disk_the_status_says_where_it_names_what_was_lost() -> None:
    start = {"state": "serving", "how": "usual", "database": "none", "lost": [], "unasked": {}, "nobody_asked": False}
    shown = text_of({"us-east": {**answer_with("orders"), "start": {**start, "topics_taken_back": 2}}}, 300)
    assert (
        "us-east: its disk was lost, and 2 topics came back: no cluster that was asked had what it confirmed" in shown
    )
    assert "Nothing is wrong." in shown


def test_a_restored_backup_and_a_loss_are_warnings() -> None:
    shown = text_of({"us-east": restored("b1")}, 200)
    assert "Wrong:\nus-east: restored to 1970-01-01 00:00:00+00:00 (backup b1); 940 messages came back" in shown
    shown = text_of({"us-east": restored("", "eu-west was not asked")}, 200)
    assert "Wrong:\nus-east: 940 messages were taken back from other clusters on 1970-01-02" in shown
    assert shown.count("lost: eu-west was not asked") == 1


def test_a_topic_that_keeps_an_earlier_life_is_named_where_only_mark_delete_positions_travel() -> None:
    kept = [{"topic": "orders", "lives": ["eu-west/17"]}]
    shown = text_of({"us-east": {**answer_with("orders"), "kept_lives": kept}}, 300)
    assert "us-east: orders keeps messages that other clusters can lack (eu-west/17): with `sync.mode:" in shown
    assert "Nothing is wrong." in text_of({"us-east": {**answer_with("orders"), "kept_lives": []}}, 300)


def test_what_links_have_still_to_copy_is_said_although_nothing_is_wrong() -> None:
    figures = {"backlog_entries": 3, "lag_ms": 0, "messages": 0, "bytes": 0, "reconnects": 0}
    link = {"to": "b", "name": "", "state": "idle", "detail": "", "halted": {}, "hold_exceeded": [], **figures}
    shown = text_of({"us-east": {**answer_with("orders"), "links": [link]}}, 200)
    assert "Nothing is wrong. Links have 3 entries to copy." in shown
    assert "to copy" not in text_of(
        {"us-east": {**answer_with("orders"), "links": [{**link, "backlog_entries": 0}]}}, 200
    )


def test_settings_that_were_taken_back_are_shown_as_long_as_somebody_has_to_look_at_them() -> None:
    back = {"peer": "eu", "version": 7, "permissions": ["shop"], "silent": ["ap"], "missing": []}
    newer = [{"peer": "ap", "store": "s", "version": 8}]

    def shown(**changed: Any) -> str:
        settings = {"taken_back": {**back, **changed}}
        return text_of({"us": {**answer_with("orders"), "cluster": "us", "settings": settings}}, 400)

    text = (
        "permissions were taken back from eu, and ap may know newer ones and has not answered. There are permissions in"
    )
    assert f"{text}: shop" in shown()
    assert "Nothing is wrong." in shown(silent=[])
    assert "Nothing is wrong." in shown(version=0), "a first start took nothing back"
    assert "ap keeps newer policies and permissions than those here" in shown(silent=[], newer=newer)
    assert "ap keeps policies and permissions that those here never knew" in shown(silent=[], passed_over=newer)
    own = [{"peer": "us", "store": "s", "version": 8}]
    assert "replaced some that they never knew" in shown(silent=[], passed_over=own)
    assert "nobody kept policies and permissions of: shop/a" in shown(silent=[], missing=["shop/a"])


def test_clients_that_use_much_of_the_event_loop_are_named_with_their_role() -> None:
    """Clients below a hundredth are not named. A role is shown as it is, because somebody else chose its text."""
    answer = answer_with()
    answer["clients"] = {
        "busiest": [
            {"address": "10.0.0.7:4711", "role": "[red]reports", "seconds": 31.42},
            {"address": "10.0.0.8:4712", "role": "", "seconds": 2.0},
            {"address": "10.0.0.9:4713", "role": "billing", "seconds": 0.2},
        ]
    }
    shown = text_of({"us-east": answer}, 250)
    assert "in the last minute: 10.0.0.7:4711 ([red]reports) 31.4 s, 10.0.0.8:4712 (no role) 2.0 s" in shown
    assert "10.0.0.9" not in shown
