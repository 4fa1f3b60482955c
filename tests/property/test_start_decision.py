"""Decision of a worker at its start, for every combination of its store, its settings, its peers and Postgres.

Invariants (DESIGN §3): 12, nothing that somebody has is lost without a word; 13, an older store never serves.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, product

import pytest

from replicator.engine.lineage import NewestStore, StoreLine
from replicator.peering.known_stores import StoreOf
from replicator.topology.fields import ON_EMPTY_STORE, RECLAIM, REFUSE, START
from replicator.worker.start_decision import (
    Decision,
    IndexRows,
    Refuse,
    Serve,
    StartMode,
    StartState,
    TakeBack,
    Wait,
    decide,
)

OWN, NEWER = "0" * 32, "1" * 32
PEERS = ("B", "C")
KINDS = ("silent", "nothing", "markers", "messages", "newer")


def answer(name: str, kind: str) -> StoreOf:
    newest = NewestStore(StoreLine(NEWER), 1_000, (OWN,)) if kind == "newer" else NewestStore(StoreLine(OWN))
    topics, messages = {"markers": (2, 0), "messages": (3, 2)}.get(kind, (0, 0))
    return StoreOf(name, {}, newest, topics, messages)


def situations() -> Iterator[tuple[StartState, dict[str, str]]]:
    """Yield every situation with what each peer does."""
    for count in range(len(PEERS) + 1):
        for kinds in product(KINDS, repeat=count):
            peers = dict(zip(PEERS, kinds, strict=False))
            answers = {name: answer(name, kind) for name, kind in peers.items() if kind != "silent"}
            silent = {name: "refused" for name, kind in peers.items() if kind == "silent"}
            for had in (each for size in range(count + 1) for each in combinations(peers, size)):
                for new, setting, index, begun, asks in product(
                    (False, True), ON_EMPTY_STORE, IndexRows, (False, True), (False, True)
                ):
                    if (answers and not asks) or (begun and not new):
                        continue
                    yield (
                        StartState(
                            "A",
                            "/data",
                            new,
                            StoreLine(OWN),
                            setting,
                            answers,
                            silent,
                            frozenset(had),
                            begun,
                            index=index,
                            asks=asks,
                        ),
                        peers,
                    )


ALL = [(now, peers, decide(now)) for now, peers in situations()]


def those(kind: type[Decision]) -> list[tuple[StartState, dict[str, str]]]:
    return [(now, peers) for now, peers, decision in ALL if isinstance(decision, kind)]


def test_each_decision_is_taken_in_some_situation() -> None:
    assert {type(decision) for _, _, decision in ALL} == {Serve, TakeBack, Refuse, Wait}


def test_a_store_that_a_peer_knows_to_be_replaced_never_serves() -> None:
    for now, peers, decision in ALL:
        if not now.new and "newer" in peers.values():
            assert isinstance(decision, Refuse)
            assert decision.older
            assert "--from-directory /data" in decision.reason
            assert "--from-directory DIR" in decision.reason
            assert ("B" if peers.get("B") == "newer" else "C") in decision.reason


def test_a_used_store_serves_whatever_peers_have_unless_it_is_older() -> None:
    for now, peers, decision in ALL:
        if not now.new and "newer" not in peers.values():
            silent = tuple(sorted(now.silent))
            assert decision == Serve(StartMode.USUAL, silent, nobody_asked=bool(silent) and not now.answers)


def test_a_new_store_serves_only_if_nobody_who_answers_has_anything_or_an_operator_said_so() -> None:
    for now, peers in those(Serve):
        if now.new and now.on_empty_store != START:
            holding = {"markers", "messages"} if now.on_empty_store == RECLAIM else {"messages"}
            assert not holding & set(peers.values())
            assert not now.begun or now.on_empty_store == REFUSE
            assert not now.had_messages & now.silent.keys(), "they told of messages"


def test_rows_of_an_earlier_store_keep_a_new_one_from_serving_where_an_operator_wants_to_decide() -> None:
    """Also a lone cluster's, whose directory was deleted, and that no other cluster could tell."""
    seen = set()
    for now, peers, decision in ALL:
        if now.new and now.on_empty_store == REFUSE and now.index is IndexRows.EARLIER:
            assert isinstance(decision, Refuse | Wait)
            seen.add((len(peers), type(decision)))
    assert (0, Refuse) in seen


def test_a_worker_takes_back_from_all_that_have_something_and_names_those_that_did_not_answer() -> None:
    for now, peers in those(TakeBack):
        decision = decide(now)
        assert isinstance(decision, TakeBack)
        assert now.on_empty_store == RECLAIM
        assert set(decision.sources) == {name for name, kind in peers.items() if kind in ("markers", "messages")}
        assert decision.unasked == now.silent.keys()


def test_a_refusal_names_the_commands_and_the_clusters_that_they_leave_out() -> None:
    for now, _ in those(Refuse):
        decision = decide(now)
        assert isinstance(decision, Refuse)
        if not decision.older:
            assert now.on_empty_store == REFUSE
            assert "replicator backup reclaim -f FILE --cluster A" in decision.reason
            assert all(f" --without {name}" in decision.reason for name in now.silent)
            assert "--on-empty-store start" in decision.reason


def test_a_worker_waits_only_where_something_proves_that_this_is_no_first_start() -> None:
    for now, _ in those(Wait):
        decision = decide(now)
        assert isinstance(decision, Wait)
        gone = now.had_messages & now.silent.keys()
        assert gone or now.begun or (now.index is IndexRows.EARLIER and not now.answers)
        assert all(name in decision.reason for name in decision.peers)
        assert "replicator " in decision.reason


def test_a_worker_that_waits_goes_on_when_its_peers_answer() -> None:
    for now, _ in those(Wait):
        answers = {**now.answers, **{name: answer(name, "messages") for name in now.silent}}
        if answers:
            goes_on = decide(replace(now, answers=answers, silent={}, asks=True))
            assert isinstance(goes_on, TakeBack if now.on_empty_store == RECLAIM else Refuse)
        assert decide(replace(now, on_empty_store=START)) == Serve(StartMode.EMPTY)


def test_after_everything_came_back_the_worker_serves() -> None:
    for now, _ in those(TakeBack):
        decision = decide(replace(now, taken_back=True))
        assert decision == Serve(StartMode.RECLAIMED, tuple(sorted(now.silent)))


def test_a_start_that_asked_nobody_says_so() -> None:
    for now, _, decision in ALL:
        if isinstance(decision, Serve) and now.silent and not now.answers and now.on_empty_store != START:
            assert decision.nobody_asked
        if isinstance(decision, Serve) and now.answers:
            assert not decision.nobody_asked


def test_postgres_that_is_away_counts_as_one_without_rows() -> None:
    for now, _, decision in ALL:
        if now.index is IndexRows.AWAY:
            assert decision == decide(replace(now, index=IndexRows.NONE))


@pytest.mark.parametrize(
    ("newest", "own", "replaced"),
    [
        pytest.param(NewestStore(StoreLine("new"), None, ("own",)), StoreLine("own"), True, id="it was newest before"),
        pytest.param(NewestStore(StoreLine("new", ("own",))), StoreLine("own"), True, id="it was restored from it"),
        pytest.param(NewestStore(StoreLine("new")), StoreLine("own"), False, id="nobody knows which is older"),
        pytest.param(NewestStore(StoreLine("own")), StoreLine("own"), False, id="it is the newest"),
        pytest.param(NewestStore(StoreLine("old")), StoreLine("own", ("old",)), False, id="it was restored from that"),
        pytest.param(
            NewestStore(StoreLine("new"), None, ("own",)),
            StoreLine("back", ("own",), ("new",)),
            False,
            id="an operator went back to it",
        ),
    ],
)
def test_which_store_replaced_which(newest: NewestStore, own: StoreLine, replaced: bool) -> None:
    assert newest.replaces(own) is replaced


def test_the_newest_store_follows_announcements_and_keeps_those_before_it() -> None:
    first = NewestStore(StoreLine("one"), 1)
    second = first.followed_by(StoreLine("two"), 2)
    assert second == NewestStore(StoreLine("two"), 2, ("one",))
    assert second.followed_by(StoreLine("two", ("zero",)), 3) == NewestStore(StoreLine("two", ("zero",)), 2, ("one",))
    back = StoreLine("three", ("one",), ("two",))
    third = second.followed_by(back, 3)
    assert third.earlier == ("two", "one")
    assert third.replaces(StoreLine("one"))
    assert third.replaces(StoreLine("two"))
    assert not second.replaces(back)


def test_the_answer_about_a_store_is_read_as_it_was_written() -> None:
    for told in (
        StoreOf("B", {"epoch": 3}, None),
        StoreOf("B", {}, None, own=StoreLine("own", ("before",), ("replaced",))),
        StoreOf("B", {}, NewestStore(StoreLine("one", ("zero",), ("two",)), 5, ("two", "zero")), 7, 3),
        StoreOf("B", {}, NewestStore(StoreLine("one")), 1, 1),
    ):
        assert StoreOf.of_json(told.as_json()) == told
    with pytest.raises(ValueError, match="store id that is not a text"):
        StoreOf.of_json({**StoreOf("B", {}, NewestStore(StoreLine("one"))).as_json(), "earlier": ["x" * 65]})
