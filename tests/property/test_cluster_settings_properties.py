"""Peers keep, and a new store takes back, one whole version of a cluster's settings, in whatever order they were told.

Invariants (DESIGN §3): 13, nothing is taken back that no version had; permissions are never merged.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from replicator.engine.cluster_settings.state import (
    STORES_MAX,
    KeptState,
    Key,
    Kind,
    Rows,
    SettingsHead,
    SettingsMessage,
    Verdict,
    changed_digest,
    digest_of,
    dropped,
    judge,
    rows_from_json,
    rows_to_json,
    taken_back,
)

KEYS = st.tuples(st.sampled_from([*map(str, Kind), "a kind of later versions"]), st.sampled_from("abc"))
ROWS = st.dictionaries(KEYS, st.sampled_from(["", "{}", "x", "y"]))
CLUSTERS = ["us", "eu"]
STORES = ["one", "two", "three"]


def state(cluster: str, store: str, version: int, rows: Rows, **earlier: int) -> KeptState:
    return KeptState(SettingsHead(cluster, store, version, digest_of(rows), earlier), rows)


@st.composite
def states(draw: st.DrawFn) -> KeptState:
    """Draw the settings of a store: somebody set them in it, or it took them back from an earlier store."""
    made = state(draw(st.sampled_from(CLUSTERS)), draw(st.sampled_from(STORES)), draw(st.integers(1, 9)), draw(ROWS))
    if draw(st.booleans()):
        return made
    at, set_in = draw(st.integers(0, made.head.version)), draw(st.sampled_from(STORES))
    return replace(made, head=replace(made.head, set_at=at, set_in=set_in))


STATES = states()


@given(ROWS, ROWS)
def test_a_digest_that_follows_changes_is_that_of_the_whole(before: Rows, after: Rows) -> None:
    changes = {key: after.get(key) for key in {*before, *after} if before.get(key) != after.get(key)}
    had = {key: before.get(key) for key in changes}
    assert changed_digest(digest_of(before), had, changes) == digest_of(after)
    assert (digest_of(before) == digest_of(after)) == (before == after)


@given(st.dictionaries(KEYS, st.one_of(st.none(), st.text(max_size=3))))
def test_rows_are_read_as_they_were_told(rows: dict[Key, str | None]) -> None:
    assert rows_from_json(rows_to_json(rows)) == rows


@given(st.lists(STATES), ROWS)
def test_a_peer_keeps_the_newest_version_of_a_store_and_never_a_mixture(told: list[KeptState], rows: Rows) -> None:
    kept: dict[str, KeptState] = {}
    for each in told:
        mine = kept.get(each.head.store)
        head = None if mine is None else mine.head
        # changes count only on top of the settings that they were made from
        other = SettingsMessage(each.head, digest_of({**rows, ("policies", "only here"): "x"}), each.rows)
        if head is None or head.version < each.head.version:
            assert judge(head, other) is Verdict.WHOLE
            assert judge(head, SettingsMessage(each.head)) is Verdict.WHOLE
            assert judge(head, SettingsMessage(each.head, None, each.rows)) is None
            kept[each.head.store] = each
        else:
            assert judge(head, SettingsMessage(each.head, None, each.rows)) in (Verdict.KEPT, Verdict.NEWER)
    for store, each in kept.items():
        versions = [other.head.version for other in told if other.head.store == store]
        assert each.whole
        assert each.head.version == max(versions)


@given(st.lists(STATES, max_size=12), st.dictionaries(st.sampled_from(STORES), st.integers(0, 9)))
def test_settings_are_dropped_only_where_a_later_store_knows_them(
    kept: list[KeptState], earlier: dict[str, int]
) -> None:
    heads = list({each.head.store: each.head for each in kept}.values())
    head = SettingsHead("us", "new", 10, digest_of({}), earlier)
    for store in dropped(heads, head):
        version = next(each.version for each in heads if each.store == store)
        assert version <= earlier.get(store, -1)


@given(st.integers(1, 3 * STORES_MAX))
def test_the_number_of_kept_stores_is_limited_and_the_newest_versions_stay(count: int) -> None:
    heads = [SettingsHead("us", f"store-{number}", number + 1, digest_of({})) for number in range(count)]
    head = SettingsHead("us", "new", 1, digest_of({}))
    gone = dropped(heads, head)
    assert len(heads) - len(gone) + 1 <= STORES_MAX or not gone
    assert gone == [each.store for each in heads[: len(gone)]]
    assert count + 1 - len(gone) == min(count + 1, STORES_MAX)


@given(st.dictionaries(st.sampled_from(["a", "b", "c"]), st.one_of(st.none(), st.lists(STATES))), st.booleans())
def test_a_new_store_takes_back_one_whole_version_of_its_own_cluster(
    answers: dict[str, list[KeptState] | None], damage: bool
) -> None:
    if damage:  # what a peer keeps is not all of it
        answers = {
            peer: None if states is None else [replace(each, rows={("grants", "all"): "x"}) for each in states]
            for peer, states in answers.items()
        }
    taken = taken_back("us", answers)
    told = [each for states in answers.values() for each in states or () if each.head.cluster == "us" and each.whole]
    assert taken.silent == tuple(sorted(peer for peer, states in answers.items() if states is None))
    if not told:
        assert taken.state is None
        return
    assert taken.state in told
    assert taken.state in (answers[taken.peer] or ())
    assert taken.state.head.rank == max(each.head.rank for each in told)
    for store, version in taken.earlier.items():
        ranks = [each.head.rank for each in told if (each.head.store, each.head.version) == (store, version)]
        assert all(rank <= taken.state.head.rank for rank in ranks), f"newer settings of {store} are not known"
    for _, head in taken.passed_over:
        assert not taken.state.head.knows(head)
        assert head.rank <= taken.state.head.rank


@given(
    st.dictionaries(st.sampled_from(["a", "b", "c"]), st.one_of(st.none(), st.lists(STATES))),
    STATES,
    st.one_of(st.none(), st.tuples(st.integers(0, 9), st.integers(0, 9))),
)
def test_settings_of_the_store_itself_count_like_those_of_a_peer_and_nothing_unknown_goes_unnamed(
    answers: dict[str, list[KeptState] | None], mine: KeptState, set_since: tuple[int, int] | None
) -> None:
    own = replace(mine, head=replace(mine.head, cluster="us"))
    taken = taken_back("us", answers, own, set_since=set_since)
    told = [(peer, each) for peer, states in answers.items() for each in states or () if each.head.cluster == "us"]
    told.append(("us", own))
    best = taken.state
    assert best is not None
    if set_since is None:
        assert best.head.rank == max(each.head.rank for _, each in told)
    else:
        assert best is own, "somebody set something since"
    limit = best.head.rank if set_since is None else set_since
    unknown = {(peer, each.head.store) for peer, each in told if not best.head.knows(each.head)}
    assert {(peer, head.store) for peer, head in (*taken.passed_over, *taken.newer)} == unknown
    assert all(head.rank <= limit for _, head in taken.passed_over)
    assert all(head.rank > limit for _, head in taken.newer)
    assert (taken.replaced is own) == (not best.head.knows(own.head))
    after = SettingsHead("us", "new", 10, digest_of({}), taken.earlier)
    for peer, head in taken.passed_over:
        assert peer == "us" or head.store not in dropped([head], after), "its peer keeps it"


def nothing_set(store: str, version: int) -> KeptState:
    return KeptState(SettingsHead("us", store, version, digest_of({}), set_at=0), {})


AWAY = st.sampled_from(["nobody", "eu", "ap"])


class LostDisks(RuleBasedStateMachine):
    """Machine in which a cluster sets permissions, tells its peers, and loses its disk, while one peer may be away."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: dict[str, dict[str, KeptState]] = {"eu": {}, "ap": {}}
        self.own = nothing_set("store-0", 1)
        self.changes = 0
        self.clock = 1

    @rule(away=AWAY)
    def set_something(self, away: str) -> None:
        self.changes += 1
        rows = {("grants", "shop"): str(self.changes)}
        self._next(away, rows, set_at=self.clock + 1, set_in=self.own.head.store)

    @rule(away=AWAY, number=st.integers(0, 9))
    def links_make_something(self, away: str, number: int) -> None:
        self._next(away, {**self.own.rows, ("tenants", str(number)): ""})

    @rule(away=AWAY)
    def lose_the_disk(self, away: str) -> None:
        answers = {peer: None if peer == away else list(states.values()) for peer, states in self.kept.items()}
        taken = taken_back("us", answers)
        held = [_number(each) for states in answers.values() for each in states or ()]
        store = f"store-{self.clock}"
        if taken.state is None:
            assert not held
            self.own = nothing_set(store, self.clock)
            return
        assert _number(taken.state) == max(held), "what somebody set last counts, of all that answer"
        head = taken.state.head
        back = replace(head, store=store, earlier=taken.earlier, set_at=head.rank[0], set_in=head.set_in or head.store)
        self.own = KeptState(back, taken.state.rows)
        self._next(away, self.own.rows)

    def _next(self, away: str, rows: Rows, **changed: Any) -> None:
        """Replace the cluster's settings by ``rows``, in their next version, and tell all peers but ``away``."""
        self.clock += 1
        head = replace(self.own.head, version=self.clock, digest=digest_of(rows), **changed)
        self.own = KeptState(head, rows)
        for mine in (self.kept[peer] for peer in self.kept if peer != away):
            known = mine.get(head.store)
            if judge(None if known is None else known.head, SettingsMessage(head, None, rows)) is None:
                for store in dropped([each.head for each in mine.values()], head):
                    del mine[store]
                mine[head.store] = self.own


def _number(settings: KeptState) -> int:
    return int(settings.rows.get(("grants", "shop"), "0"))


TestLostDisks = LostDisks.TestCase
