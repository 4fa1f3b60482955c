"""The alert rules: each fires for what it is about and for nothing else, and has a runbook; and the dashboards."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest
import typer
import yaml
from monitoring_support import ALERTS, DASHBOARDS, OF_PROMETHEUS, RUNBOOKS, exported, expressions, named, program, rules

from replicator.cli.main import app

LINK: Final = '{cluster="a",to="b",link="a>b"}'
HEALTHY: Final = {
    'up{job="replicator",instance="a:7100"}': "1",
    'replicator_ready{cluster="a"}': "1",
    'replicator_failover_fenced{cluster="a"}': "0",
    'replicator_tasks_failing{cluster="a",task="link"}': "0",
    'replicator_topology_refused{cluster="a"}': "0",
    'replicator_event_loop_lag_max_seconds{cluster="a"}': "0.9",
    'replicator_database_up{cluster="a"}': "1",
    'replicator_audit_entries_dropped_total{cluster="a"}': "7",
    'replicator_index_rows_refused_total{cluster="a"}': "3",
    'replicator_metrics_summed_topics{cluster="a"}': "0",
    'replicator_store_failed{cluster="a"}': "0",
    'replicator_store_disk_full{cluster="a"}': "0",
    'replicator_store_full{cluster="a"}': "0",
    'replicator_store_bytes{cluster="a"}': "89",
    'replicator_store_limit_bytes{cluster="a"}': "100",
    'replicator_store_damaged_blocks{cluster="a"}': "0",
    'replicator_store_twins{cluster="a"}': "0",
    'replicator_store_new{cluster="a"}': "0",
    'replicator_peer_store_new{cluster="a",peer="b"}': "0",
    'replicator_store_awaited_clusters{cluster="a"}': "0",
    'replicator_producer_names_in_two_clusters{cluster="a"}': "0",
    'replicator_hidden_duplicates_differing{cluster="a"}': "0",
    f"replicator_link_up{LINK}": "1",
    f"replicator_link_paused{LINK}": "0",
    f"replicator_link_lag_seconds{LINK}": "60",
    f"replicator_link_halted_topics{LINK}": "0",
    f"replicator_link_hold_exceeded_topics{LINK}": "0",
    'replicator_pipeline_driver_up{cluster="a"}': "1",
    'replicator_apache_up{cluster="a"}': "1",
    'replicator_apache_differing_topics{cluster="a"}': "0",
    'replicator_apache_comparison_age_max_seconds{cluster="a"}': "31",
    'replicator_apache_topics{cluster="a"}': "100",
}
FIRES: Final[dict[str, dict[str, str]]] = {
    "ReplicatorWorkerDown": {'up{job="replicator",instance="a:7100"}': "0"},
    "ReplicatorNotReady": {'replicator_ready{cluster="a"}': "0"},
    "ReplicatorTasksFailing": {'replicator_tasks_failing{cluster="a",task="link"}': "1"},
    "ReplicatorTopologyRefused": {'replicator_topology_refused{cluster="a"}': "1"},
    "ReplicatorEventLoopLate": {'replicator_event_loop_lag_max_seconds{cluster="a"}': "1.1"},
    "ReplicatorDatabaseDown": {'replicator_database_up{cluster="a"}': "0"},
    "ReplicatorAuditDropped": {'replicator_audit_entries_dropped_total{cluster="a"}': "0+1"},
    "ReplicatorRowsRefused": {'replicator_index_rows_refused_total{cluster="a"}': "0+1"},
    "ReplicatorSeriesSummed": {'replicator_metrics_summed_topics{cluster="a"}': "5"},
    "ReplicatorStoreFailed": {'replicator_store_failed{cluster="a"}': "1"},
    "ReplicatorDiskFull": {
        'replicator_store_disk_full{cluster="a"}': "1",
        'replicator_store_full{cluster="a"}': "1",
    },
    "ReplicatorStoreFull": {'replicator_store_full{cluster="a"}': "1"},
    "ReplicatorStoreNearlyFull": {'replicator_store_bytes{cluster="a"}': "91"},
    "ReplicatorBlocksDamaged": {'replicator_store_damaged_blocks{cluster="a"}': "1"},
    "ReplicatorStoreTwin": {'replicator_store_twins{cluster="a"}': "1"},
    "ReplicatorStoreNew": {'replicator_store_new{cluster="a"}': "1"},
    "ReplicatorPeerStoreNew": {'replicator_peer_store_new{cluster="a",peer="b"}': "1"},
    "ReplicatorStatesAwaited": {'replicator_store_awaited_clusters{cluster="a"}': "2"},
    "ReplicatorProducerInTwoClusters": {'replicator_producer_names_in_two_clusters{cluster="a"}': "1"},
    "ReplicatorHiddenDuplicatesDiffer": {'replicator_hidden_duplicates_differing{cluster="a"}': "1"},
    "ReplicatorLinkDown": {f"replicator_link_up{LINK}": "0"},
    "ReplicatorLinkBehind": {f"replicator_link_lag_seconds{LINK}": "61"},
    "ReplicatorLinkHalted": {f"replicator_link_halted_topics{LINK}": "1"},
    "ReplicatorLinkPaused": {
        f"replicator_link_paused{LINK}": "1",
        f"replicator_link_up{LINK}": "0",
        f"replicator_link_lag_seconds{LINK}": "9999",
    },
    "ReplicatorLinkHoldExceeded": {f"replicator_link_hold_exceeded_topics{LINK}": "1"},
    "ReplicatorPipelineDriverDown": {'replicator_pipeline_driver_up{cluster="a"}': "0"},
    "ReplicatorApacheUnreachable": {
        'replicator_apache_up{cluster="a"}': "0",
        'replicator_apache_comparison_age_max_seconds{cluster="a"}': "999",
    },
    "ReplicatorApacheTopicsDiffer": {'replicator_apache_differing_topics{cluster="a"}': "1"},
    "ReplicatorApacheNotCompared": {'replicator_apache_comparison_age_max_seconds{cluster="a"}': "121"},
}  # fmt: skip
"""Unhealthy series, by the one alert that must fire: a paused link is not reported as down or behind."""
QUIET: Final[tuple[dict[str, str], ...]] = (
    {},
    {'replicator_ready{cluster="a"}': "0", 'replicator_failover_fenced{cluster="a"}': "1"},
    {
        'replicator_apache_comparison_age_max_seconds{cluster="a"}': "370",
        'replicator_apache_topics{cluster="a"}': "5000",
    },
)
"""Series for which no alert must fire."""
MINUTES: Final = 800


def firing(series: dict[str, str], at_minutes: int, *alerts: str) -> dict[str, Any]:
    """Return a test for promtool: the alert that fires when all is healthy except these series."""
    every = {**HEALTHY, **series}
    return {
        "interval": "1m",
        "input_series": [
            {"series": name, "values": f"{value if '+' in value else value + '+0'}x{MINUTES}"}
            for name, value in every.items()
        ],
        "promql_expr_test": [
            {
                "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
                "eval_time": f"{at_minutes}m",
                "exp_samples": [{"labels": f'{{alertname="{alert}"}}', "value": 1} for alert in alerts],
            }
        ],
    }


def waits_minutes(rule: dict[str, Any]) -> int:
    number, unit = re.fullmatch(r"(\d+)([mh])", rule.get("for", "0m")).groups()  # type: ignore[union-attr]
    return int(number) * {"m": 1, "h": 60}[unit]


def promtool(*arguments: str) -> str:
    done = subprocess.run([program("promtool"), *arguments], capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stdout + done.stderr


def test_each_alert_fires_in_its_time_for_what_it_is_about_and_no_other_does(tmp_path: Path) -> None:
    assert {rule["alert"] for rule in rules()} == set(FIRES)
    tests = [firing(series, MINUTES) for series in QUIET]
    for rule in rules():
        series, waits = FIRES[rule["alert"]], waits_minutes(rule)
        tests.append(firing(series, max(2, waits + 1), rule["alert"]))
        if waits:
            tests.append(firing(series, waits - 1))
    file = tmp_path / "tests.yaml"
    file.write_text(yaml.safe_dump({"rule_files": [str(ALERTS)], "evaluation_interval": "1m", "tests": tests}))
    assert promtool("test", "rules", str(file)) == ""
    tests.append(firing({}, 10, "ReplicatorDiskFull"))
    file.write_text(yaml.safe_dump({"rule_files": [str(ALERTS)], "evaluation_interval": "1m", "tests": tests[-1:]}))
    assert "ReplicatorDiskFull" in promtool("test", "rules", str(file)), "a test that does not hold is found out"


def test_each_alert_says_how_bad_it_is_and_has_a_runbook() -> None:
    for rule in rules():
        assert rule["labels"]["severity"] in ("critical", "warning", "info"), rule["alert"]
        notes = rule["annotations"]
        assert notes["summary"]
        assert notes["description"]
        assert notes["runbook_url"] == f"docs/runbooks.md#{rule['alert'].lower()}"


def test_each_runbook_is_of_an_alert_and_says_what_it_means_and_what_to_do() -> None:
    sections = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", RUNBOOKS.read_text(), re.DOTALL | re.MULTILINE))
    assert list(sections) == [rule["alert"] for rule in rules()]
    for name, text in sections.items():
        parts = re.findall(r"^\*\*(.+?)\.\*\* \S", text, re.MULTILINE)
        assert parts == ["Means", "Users notice", "Look at", "Do"], name


def test_the_commands_of_the_runbooks_are_there_with_their_options() -> None:
    root = typer.main.get_command(app)
    found = re.findall(r"(?:^|`)replicator ([a-z][^`\n|]*)", RUNBOOKS.read_text(), re.MULTILINE)
    assert len(found) > 10
    for line in found:
        command: Any = root
        words = line.split()
        while words and (commands := getattr(command, "commands", None)):
            assert words[0] in commands, line
            command = commands[words.pop(0)]
        options = {name for each in command.params for name in (*each.opts, *each.secondary_opts)}
        assert {word for word in words if word.startswith("-")} <= options, line
        required = [each.opts for each in command.params if each.required]
        if words:  # where a command is named without arguments, it is only spoken of
            assert all(set(names) & set(words) for names in required), line


def test_rules_and_dashboards_name_only_metrics_that_a_worker_exports() -> None:
    for rule in rules():
        assert named(rule["expr"]) <= exported() | OF_PROMETHEUS, rule["alert"]
    for dashboard in DASHBOARDS:
        for title, expression in expressions(dashboard):
            assert named(expression), title
            assert named(expression) <= exported(), title
    assert not named("rate(replicator_link_mesages_total[5m])") <= exported()


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda path: path.stem)
def test_each_expression_of_a_dashboard_is_one_that_prometheus_can_read(dashboard: Path, tmp_path: Path) -> None:
    file = tmp_path / "rules.yaml"

    def judged(every: list[str]) -> str:
        recorded = [{"record": f"panel:{number}", "expr": expression} for number, expression in enumerate(every)]
        file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": recorded}]}))
        return promtool("check", "rules", str(file))

    every = [expression for _, expression in expressions(dashboard)]
    assert len(every) > 20
    assert judged(every) == ""
    assert "parse error" in judged([*every, "rate(replicator_link_messages_total[5m]"])
