"""The report of a switch can be read in a usual terminal."""

from __future__ import annotations

import io

from rich.console import Console

from replicator.failover.report import SubscriptionReport, SwitchReport, TopicReport

LEDGER = "1838349420526492"


def test_the_topics_of_a_dry_run_fit_into_100_columns_without_folding() -> None:
    subscriptions = (
        SubscriptionReport("billing", True, "digests", 0),
        SubscriptionReport("audit", False, "", 1_234, 7),
    )
    topics = [
        TopicReport(
            f"persistent://acme/eu-west/orders-partition-{number}",
            True,
            f"{LEDGER}:120",
            f"{LEDGER}:118",
            2,
            False,
            subscriptions,
        )
        for number in range(3)
    ]
    report = SwitchReport("failover", "us-east", "eu-west", ("us-east",), 0, outcome="dry run", topics=topics)
    console = Console(file=io.StringIO(), width=100)
    console.print(report.render())
    assert isinstance(console.file, io.StringIO)
    rows = [line for line in console.file.getvalue().splitlines() if line.startswith("│")]
    assert len(rows) == 6, "a row for each topic and subscription"
    assert rows[0].split("│")[1].strip() == "acme/eu-west/orders-partition-0"
    assert [cell.strip() for cell in rows[1].split("│")[1:-1]] == ["", "", "audit", "differs", "1234", "7"]
