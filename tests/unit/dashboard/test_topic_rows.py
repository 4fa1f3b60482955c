"""Pages of topics of several clusters, and the sync lag that backlogs tell."""

from __future__ import annotations

from typing import Any

from replicator.dashboard.fan_out import Answer
from replicator.dashboard.topic_rows import TopicPage, topic_page, topic_row

LIMIT = 3


def topic(name: str, messages: int = 10, **backlogs: int) -> dict[str, Any]:
    subscriptions = [
        {"name": each, "backlog_messages": backlog, "generation": 1, "consumers": 0, "replicated": True}
        for each, backlog in backlogs.items()
    ]
    return {"name": name, "messages": messages, "subscriptions": subscriptions, "subscription_count": len(backlogs)}


def asked(names: str, after: str = "", before: str = "") -> Answer:
    """Return the answer of a worker that has these topics."""
    found = sorted(name for name in names if name > after and (not before or name < before))
    found = found[-LIMIT - 1 :] if before else found[: LIMIT + 1]
    return Answer({"matching": len(names), "topics": [topic(name) for name in found]})


def page_of(a: str, b: str, after: str = "", before: str = "") -> TopicPage:
    answers = {"A": asked(a, after, before), "B": asked(b, after, before)}
    return topic_page(["A", "B"], answers, after=after, before=before, limit=LIMIT)


def names_of(page: TopicPage) -> str:
    return "".join(row.name for row in page.rows)


def test_pages_forth_and_back_show_every_topic_of_every_cluster_once() -> None:
    for a, b in (("abcdefgh", "aceg"), ("abc", ""), ("abcd", "wxyz"), ("aceg", "bdfh"), ("abcdefghi", "i")):
        seen, after, pages = "", "", 0
        while True:
            page = page_of(a, b, after)
            seen += names_of(page)
            pages += 1
            assert pages < 20
            if not page.following:
                break
            after = page.following
        assert seen == "".join(sorted({*a, *b}))
        back = ""
        while page.preceding:
            page = page_of(a, b, before=page.preceding)
            back = names_of(page) + back
        assert seen.startswith(back)
        assert len(back) >= len(seen) - LIMIT


def test_a_cluster_that_does_not_answer_hides_no_topic_of_the_others() -> None:
    answers = {"A": asked("ab"), "B": Answer(error="B is away", status=0)}
    page = topic_page(["A", "B"], answers, after="", before="", limit=LIMIT)
    assert names_of(page) == "ab"
    assert page.silent == ("B is away",)
    assert page.rows[0].messages == (10, None)


def lags(a: dict[str, Any], b: dict[str, Any]) -> list[int | None]:
    row = topic_row("t", ["A", "B"], {"A": {"t": a}, "B": {"t": b}})
    return [None if cell is None else cell.sync_lag for cell in row.subscriptions[0].cells]


def test_what_is_acknowledged_elsewhere_and_not_here_is_sync_lag() -> None:
    assert lags(topic("t", 100, s=10), topic("t", 100, s=40)) == [0, 30]


def test_what_has_not_been_copied_yet_is_no_sync_lag() -> None:
    assert lags(topic("t", 100, s=60), topic("t", 40, s=0)) == [0, 0]


def test_another_generation_is_not_compared() -> None:
    other = topic("t", 100, s=40)
    other["subscriptions"][0]["generation"] = 2
    assert lags(topic("t", 100, s=10), other) == [0, 0]
