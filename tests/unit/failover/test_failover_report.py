"""The report of a switch is a screen of sentences, and its details have every position."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import RenderableType

from replicator.cli.output import SafeConsole
from replicator.failover.report import StatusReport, Stranded, SubscriptionReport, SwitchReport, TopicReport
from replicator.failover.showing import shown_status, shown_switch

LEDGER = "1838349420526492"
DIGEST = "what is left: 3fa94c21 of us-east's messages"


def topic(
    name: str = "orders", missing: int | None = 0, *subscriptions: SubscriptionReport, **more: Any
) -> TopicReport:
    given: dict[str, Any] = {
        "topic": f"persistent://public/default/{name}",
        "carried": True,
        "source_last": f"{LEDGER}:120",
        "target_has": f"{LEDGER}:118",
        "missing_messages": missing,
    }
    return TopicReport(**(given | more), subscriptions=subscriptions or (SubscriptionReport("s", True, DIGEST, 0),))


def report(*topics: TopicReport, **more: Any) -> SwitchReport:
    given: dict[str, Any] = {
        "kind": "unplanned",
        "outcome": "done",
        "epoch": 1,
        "announced": {"us-east": "knows epoch 1"},
    }
    return SwitchReport(
        source="us-east", target="eu-west", homes=("us-east",), epoch_before=0, topics=list(topics), **(given | more)
    )


def lines(shown: RenderableType, width: int = 120) -> list[str]:
    console = SafeConsole(file=io.StringIO(), width=width, highlight=False, markup=False, emoji=False)
    console.print(shown, crop=False)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def test_what_the_source_itself_does_not_know_is_not_said_to_be_there() -> None:
    unknown = "the brokers do not answer: refused"
    shown = lines(shown_switch(report(topic(), outcome="dry run", source_unknown=unknown)))
    assert "is unknown: the brokers do not answer: refused." in " ".join(" ".join(shown).split())
    assert report(topic(), source_unknown=unknown).not_received is None


def test_every_acknowledgement_is_only_said_to_be_there_if_all_subscriptions_are_equal() -> None:
    def first(*subscriptions: SubscriptionReport) -> str:
        return " ".join(lines(shown_switch(report(topic("orders", 0, *subscriptions)))))

    same = SubscriptionReport("s", True, DIGEST, 0)
    assert "and every acknowledgement" in first(same)
    for other in (SubscriptionReport("o", False, "it lags", 0), SubscriptionReport("o", None, "not compared: a", None)):
        assert "every acknowledgement" not in first(same, other)


def test_there_is_one_sentence_for_each_cluster_and_one_for_each_topic_that_needs_attention() -> None:
    billing = SubscriptionReport("billing", False, "acknowledgements of us-east differ", 1_234, 7)
    topics = [topic(f"t{number}") for number in range(497)]
    shown = lines(
        shown_switch(report(*topics, topic("orders", 12), topic("bills", 0, billing), topic("rest", 1, exact=False)))
    )
    assert shown == [
        "eu-west serves us-east since epoch 1. It lacks 13 messages of us-east; at most 1,234 acknowledged ones "
        "may be repeated.",
        "us-east knows epoch 1.",
        "497 topics are the same.",
        "7 entries were delivered at us-east and not acknowledged: they are delivered again, as after any disconnect.",
        "orders: 12 messages are not at eu-west yet; they follow by links from us-east.",
        "rest: at most 1 message is not at eu-west yet; it follows by links from us-east.",
        "bills: subscription billing may repeat at most 1,234 messages (acknowledgements of us-east differ).",
    ]


def test_a_thousand_topics_that_need_attention_are_the_worst_of_them_and_a_count() -> None:
    shown = lines(shown_switch(report(*(topic(f"t{number:04}", number + 1) for number in range(1000)))))
    assert len(shown) == 40
    assert shown[-1].endswith("more: --details")
    named = [line.split(":")[0] for line in shown if " not at eu-west" in line]
    assert named[:2] == ["t0999", "t0998"]
    assert int(shown[-1].split()[2].replace(",", "")) + len(named) == 1000


def test_the_screen_has_no_position_and_no_digest_and_the_details_have_all_of_them() -> None:
    shown = report(topic("orders", 2), *(topic(f"t{number}") for number in range(200)))
    screen, details = "\n".join(lines(shown_switch(shown))), "\n".join(lines(shown_switch(shown, details=True), 300))
    assert LEDGER not in screen
    assert "3fa94c21" not in screen
    assert details.count(f"{LEDGER}:118") == details.count("3fa94c21") == 201


def test_what_a_silent_source_has_is_unknown_in_one_sentence_for_all_topics() -> None:
    unknown = [topic(f"t{number}", None, SubscriptionReport("s", None, "generation 1", None)) for number in range(500)]
    told = {"us-east": "not told yet (refused); it learns when it starts, or by links and polls"}
    shown = lines(shown_switch(report(*unknown, source_answers=False, unknown_since_ms=0, announced=told)))
    assert shown == [
        "eu-west serves us-east since epoch 1. What it lacks of us-east is unknown since 1970-01-01 00:00:00 UTC.",
        "us-east does not answer: not told yet (refused); it learns when it starts, or by links and polls.",
        "What eu-west lacks of 500 topics is unknown until us-east answers.",
    ]


def test_topics_that_no_link_carries_are_one_sentence() -> None:
    shown = lines(shown_switch(report(topic(), *(topic(f"c{number}", 5, carried=False) for number in range(9)))))
    assert "9 topics stay at us-east, because no link carries them to eu-west: c0, c1, c2, and 6 more." in shown


def test_a_dry_run_of_a_planned_switch_says_that_the_switch_would_wait() -> None:
    shown = lines(shown_switch(report(topic("orders", 3), kind="planned", outcome="dry run", announced={})))
    assert "orders: 3 messages are not at eu-west yet; a planned switch waits for them." in shown


def test_a_report_without_topics_does_not_say_that_everything_is_there() -> None:
    assert "every message" not in "".join(lines(shown_switch(report(outcome="refused", reason="it was given up"))))


def test_the_status_names_the_topics_that_wait_the_worst_first() -> None:
    switch = {"kind": "unplanned", "source": "us-east", "target": "eu-west", "at_ms": 0}
    stranded = [Stranded(f"persistent://a/b/t{n:03}", n + 1, True, n % 2 == 0) for n in range(200)]
    status = StatusReport(1, "eu-west", {"us-east": {"error": "away"}}, switch=switch, stranded=stranded)
    shown = lines(shown_status(status))
    assert len(shown) <= 40
    waiting = [line for line in shown if line.startswith("a/b/t")]
    assert waiting[0] == "a/b/t199: 200 messages are not at eu-west yet; they follow by links from us-east."
    assert len([line for line in lines(shown_status(status, details=True)) if line.startswith("a/b/t")]) == 100


@pytest.mark.parametrize("count", [1, 3, 900])
def test_the_report_of_any_number_of_topics_fits_a_screen_and_its_numbers_agree(count: int) -> None:
    """Each third topic is the same, lacks messages, or has a subscription that differs."""
    differs = SubscriptionReport("billing", False, "acknowledgements of us-east differ", 1)
    topics = [
        topic(f"t{n:03}", n % 3, *([differs] if n % 3 == 2 else []), exact=n % 3 != 2) for n in range(1, count + 1)
    ]
    shown = lines(shown_switch(report(*topics)))
    assert len(shown) <= 40
    assert not [line for line in shown if re.search(r"\b1 (messages|topics)\b|\b[2-9]\d* (message|topic)\b", line)]
    acknowledged = {1: "no acknowledged ones", 3: "at most 1 acknowledged one", 900: "at most 300 acknowledged ones"}
    assert acknowledged[count] in " ".join(shown[:2])
    if count == 1:
        assert shown[2:] == ["t001: 1 message is not at eu-west yet; it follows by links from us-east."]
    else:
        assert f"{count // 3} {'topic is' if count == 3 else 'topics are'} the same." in shown
        worst = f"t{2:03}: at most 2 messages are not at eu-west yet; they follow by links from us-east; subscription"
        assert any(line.startswith(worst) for line in shown)
    if count == 900:
        named = [line for line in shown if re.match(r"t\d{3}: ", line)]
        assert shown[-1] == f"… and {600 - len(named)} more: --details"


def test_a_subscription_whose_topic_lacks_messages_has_its_digests_only_in_the_details() -> None:
    evidence = f"{DIGEST}, the same of us-west up to {LEDGER}:7"
    behind = report(topic("orders", 3, SubscriptionReport("billing", False, evidence, 3)))
    shown = lines(shown_switch(behind), 200)
    assert shown[-1].endswith("from us-east; subscription billing may repeat at most 3 messages.")
    assert not [line for line in shown if LEDGER in line or "3fa94c21" in line]
    assert any(evidence in line for line in lines(shown_switch(behind, details=True), 200))
    assert behind.as_json()["topics"][0]["subscriptions"][0]["evidence"] == evidence


@pytest.mark.parametrize("width", [80, 120, 200])
def test_the_reason_of_a_refusal_is_first_and_shown_to_its_end_which_has_the_command(width: int) -> None:
    topics = [f"persistent://a-tenant/a-namespace/a-topic-with-a-long-name-{n}" for n in range(3)]
    command = "`replicator topics create -f FILE --cluster eu-west {}` makes the topic anew"
    reason = "eu-west cannot get everything of us-east until this is ended: " + "; ".join(
        f"{name} (it has nothing of it): eu-west has deleted {name}, and link us-east->eu-west brings only messages "
        f"that come after that: {command.format(name)}"
        for name in topics
    )
    many = [topic(f"t{n}", n) for n in range(1, 900)]
    for more, first in (
        ({"outcome": "refused", "reason": reason}, "Refused: eu-west cannot get"),
        ({"outcome": "dry run", "notes": [f"a planned switch is refused for the moment: {reason}"]}, "Dry run: "),
    ):
        shown = lines(shown_switch(report(*many, kind="planned", announced={}, **more)), width)
        assert len(shown) <= 40
        assert shown[0].startswith(first)
        told = " ".join(" ".join(shown).split())
        assert all(command.format(name) in told for name in topics)
        assert told.index(command.format(topics[2])) < told.index("t899: 899 messages are not at eu-west yet")
        assert "eu-west lacks 404,550 messages of us-east; no acknowledged ones may be repeated." in told


def test_a_reason_that_ends_with_a_full_stop_has_one() -> None:
    refused = report(outcome="refused", reason="it was told so.")
    assert lines(shown_switch(refused))[:2] == [
        "Refused: it was told so.",
        "Nothing was switched. No topic was compared.",
    ]


def test_the_status_says_why_a_cluster_is_silent_in_a_sentence_and_not_in_a_cell() -> None:
    why = "the worker of us-east at us-east.example.com:7000 cannot be asked: Connection refused"
    serving = {"epoch": 1, "record": "r", "serves": ["us-east", "eu-west"], "fenced": False}
    serving |= dict.fromkeys(("served_by", "producers", "consumers"), "eu-west")
    shown = lines(shown_status(StatusReport(1, "eu-west", {"us-east": {"error": why}, "eu-west": serving})), 80)
    assert "".join(shown[-2:]) == f"{why}."
    (row,) = [line for line in shown if line.startswith("│ us-east ")]
    assert [cell.strip() for cell in row.split("│")[1:-1]] == ["us-east", "no answer", "", "", "", ""]


def test_the_example_in_the_docs_is_what_a_failover_prints() -> None:
    topics = [topic(f"t{number}") for number in range(497)]
    shown = lines(shown_switch(report(*topics, topic("orders", 12))))
    text = (Path(__file__).parents[3] / "docs" / "failover.md").read_text()
    assert "\n\n" + "".join(f"    {line}\n" for line in shown) + "\n" in text


NAMES = st.text(min_size=1, max_size=2000)
SUBSCRIPTIONS = st.builds(
    SubscriptionReport, NAMES, st.booleans(), NAMES, st.none() | st.integers(0, 10**9), st.integers(0, 10**9)
)


@given(
    st.lists(st.tuples(NAMES, st.none() | st.integers(0, 10**12), st.lists(SUBSCRIPTIONS, max_size=5)), max_size=60),
    st.lists(NAMES, max_size=60),
    st.lists(NAMES, max_size=9),
    st.sampled_from(["done", "dry run", "refused"]),
    st.integers(20, 200),
)
def test_no_report_is_longer_than_a_screen_or_commands_it(
    topics: list[tuple[str, int | None, list[SubscriptionReport]]],
    differences: list[str],
    notes: list[str],
    outcome: str,
    width: int,
) -> None:
    shown = report(
        *(topic(name, missing, *subscriptions) for name, missing, subscriptions in topics),
        differences=differences,
        notes=notes,
        outcome=outcome,
    )
    printed = lines(shown_switch(shown), width)
    assert len(printed) <= 40
    assert not any(each in "\x1b\x07\x9b\r\u202e" for line in printed for each in line)


@pytest.mark.parametrize("details", [False, True])
def test_a_name_cannot_make_a_line_of_its_own(details: bool) -> None:
    shown = lines(shown_switch(report(topic("a\neu-west serves nobody\x1b[2J", 1)), details=details))
    assert not any(line.startswith("eu-west serves nobody") for line in shown)
    assert not any("\x1b" in line for line in shown)
