"""Judgement of a copy of a cluster's messages, in each possible case: what it means for that cluster.

Invariants (DESIGN §3): 12, data that may be lost is never taken for deleted; 13, lost data is told from deleted data.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicator.engine.lineage import (
    LOST_HERE,
    CopyWriter,
    Deletion,
    Judgement,
    OwnTopic,
    RemoteCopy,
    StoreLine,
    cause,
    judge,
)
from snapshots.position import BEFORE_ALL, Position

OLD, NEW = "0" * 32, "1" * 32
END = Position(110, 5)
"""The end of the log of life 100, which this store has."""


def own(incarnation: int | None = 100, *, store: str = NEW, **more: object) -> OwnTopic:
    """Return the state of a topic in the cluster that published it.

    Its life is ``incarnation`` (None: no such topic), and it has every position up to :data:`END`.
    """
    made = OwnTopic(store, incarnation, lambda position: incarnation is not None and position <= END)
    return replace(made, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("copy", "here", "judgement"),
    [
        pytest.param(RemoteCopy(100, END, NEW), own(), Judgement.SAME, id="the same store, and it is here"),
        pytest.param(RemoteCopy(100, END, OLD), own(), Judgement.SAME, id="an earlier store, and it is here"),
        pytest.param(RemoteCopy(100, END), own(), Judgement.SAME, id="no id, and it is here or was trimmed"),
        pytest.param(
            RemoteCopy(100, Position(95, 3)),
            own(),
            Judgement.SAME,
            id="an earlier life was kept, and nothing of this one came yet",
        ),
        pytest.param(RemoteCopy(100, Position(110, 6), OLD), own(), Judgement.LOST, id="an earlier store had more"),
        pytest.param(RemoteCopy(90, Position(91, 0), OLD), own(), Judgement.LOST, id="an earlier store's older life"),
        pytest.param(RemoteCopy(120, Position(121, 0), OLD), own(), Judgement.LOST, id="an earlier store's later life"),
        pytest.param(RemoteCopy(90, Position(91, 0), OLD), own(None), Judgement.LOST, id="an earlier store's topic"),
        pytest.param(RemoteCopy(90, Position(91, 0)), own(), Judgement.LOST, id="no id, and another life is here"),
        pytest.param(RemoteCopy(90, Position(91, 0)), own(None), Judgement.LOST, id="no id, and no topic is here"),
        pytest.param(
            RemoteCopy(90, Position(91, 0), NEW),
            own(),
            Judgement.DELETED_ON_PURPOSE,
            id="the same store, older life",
        ),
        pytest.param(
            RemoteCopy(90, Position(91, 0), NEW),
            own(None, remembers=False),
            Judgement.DELETED_ON_PURPOSE,
            id="the same store, which has forgotten deletions",
        ),
        pytest.param(
            RemoteCopy(90, Position(91, 0), OLD, deleted=True),
            own(None),
            Judgement.DELETED_ON_PURPOSE,
            id="an earlier store deleted it and told so",
        ),
        pytest.param(
            RemoteCopy(90, Position(91, 0), NEW),
            own(None, deleted={100: END}),
            Judgement.DELETED_ON_PURPOSE,
            id="the same store, and a later life was deleted",
        ),
        pytest.param(
            RemoteCopy(90, Position(91, 0), OLD),
            own(None, deleted={100: END}),
            Judgement.LOST,
            id="an earlier store's life, and a later one was deleted",
        ),
        pytest.param(
            RemoteCopy(100, END, OLD, deleted=True),
            own(),
            Judgement.DELETED_ON_PURPOSE,
            id="an earlier store deleted it, and a backup brought it back",
        ),
        pytest.param(
            RemoteCopy(90, Position(91, 0), OLD),
            own(None, deleted={90: Position(91, 0)}),
            Judgement.DELETED_ON_PURPOSE,
            id="an earlier store deleted it, as the backup remembers",
        ),
        pytest.param(
            RemoteCopy(90, Position(91, 1), OLD),
            own(None, deleted={90: Position(91, 0)}),
            Judgement.LOST,
            id="it went on after it was deleted",
        ),
        pytest.param(
            RemoteCopy(100, Position(110, 6), NEW),
            own(),
            Judgement.ABOVE_THE_END,
            id="the same store and life had more",
        ),
        pytest.param(
            RemoteCopy(120, Position(121, 0), NEW), own(), Judgement.ABOVE_THE_END, id="the same store's later life"
        ),
        pytest.param(
            RemoteCopy(90, Position(91, 0), NEW),
            own(None),
            Judgement.ABOVE_THE_END,
            id="the same store, and it remembers no deletion",
        ),
        pytest.param(
            RemoteCopy(90, END, OLD),
            own(earlier=(90,)),
            Judgement.SAME,
            id="a life that was put back below the new one",
        ),
    ],
)
def test_a_copy_is_judged_by_its_store_its_life_and_its_last_position(
    copy: RemoteCopy, here: OwnTopic, judgement: Judgement
) -> None:
    assert judge(copy, here) is judgement
    said = cause(judgement, copy, here, cluster="a", holder="b")
    assert bool(said) is (judgement is not Judgement.SAME)
    assert "delete the" not in said, "no text advises to delete what may be the last copy"
    assert ("reclaim" in said) is (judgement in LOST_HERE), "what is lost can be taken back, and the text says how"


positions = st.builds(Position, st.integers(1, 200), st.integers(0, 10))
stores = st.sampled_from([OLD, NEW])
copies = st.builds(RemoteCopy, st.integers(1, 200), positions, st.none() | stores, st.booleans())


@given(copies, st.none() | st.integers(1, 200), st.booleans())
def test_only_what_the_own_store_wrote_or_was_told_to_be_deleted_counts_as_deleted(
    copy: RemoteCopy, incarnation: int | None, remembers: bool
) -> None:
    judgement = judge(copy, own(incarnation, remembers=remembers))
    if judgement is Judgement.DELETED_ON_PURPOSE:
        assert copy.deleted or copy.store == NEW
    if copy.deleted:
        assert judgement is Judgement.DELETED_ON_PURPOSE
    if judgement is Judgement.SAME:
        assert copy.incarnation == incarnation
        assert copy.position <= END or copy.position.ledger < copy.incarnation


@dataclass
class Store:
    """State of a cluster's store: one topic, and the lives of it that were deleted."""

    name: str
    incarnation: int | None = None
    entries: int = 0
    deleted: dict[int, Position] = field(default_factory=dict)

    def topic(self) -> OwnTopic:
        end = None if self.incarnation is None else Position(self.incarnation, self.entries)
        return OwnTopic(self.name, self.incarnation, lambda each: end is not None and each <= end, deleted=self.deleted)


class History:
    """History of a cluster's store, and of another cluster's copy of its topic."""

    def __init__(self) -> None:
        self.store = Store("store-0")
        self.copy: RemoteCopy | None = None
        self.connected = True
        self.saved = deepcopy(self.store)
        self.stores = self.lives = 0
        self.deleted: dict[int, Position] = {}
        """Lives that were deleted on purpose, whether anybody remembers it or not."""

    def publish(self) -> None:
        store = self.store
        if store.incarnation is None:
            self.lives += 1
            store.incarnation, store.entries = self.lives, 0
        end = Position(store.incarnation, store.entries)
        store.entries += 1
        goes_on = self.copy is None or (self.copy.incarnation == store.incarnation and self.copy.position <= end)
        if self.connected and goes_on:
            self.copy = RemoteCopy(store.incarnation, Position(store.incarnation, store.entries), store.name)

    def delete(self) -> None:
        store = self.store
        if store.incarnation is not None:
            end = Position(store.incarnation, store.entries)
            store.deleted[store.incarnation] = self.deleted[store.incarnation] = end
            store.incarnation = None
            self.tell()

    def tell(self) -> None:
        """Report the store's lineage to the other cluster, as a connected link does."""
        if not self.connected or self.copy is None:
            return
        if self.copy.position <= self.store.deleted.get(self.copy.incarnation, BEFORE_ALL):
            self.copy = replace(self.copy, deleted=True)
        elif judge(self.copy, self.store.topic()) is Judgement.SAME:
            self.copy = replace(self.copy, store=self.store.name)

    def connect(self) -> None:
        self.connected = True
        self.tell()

    def disconnect(self) -> None:
        self.connected = False

    def save(self) -> None:
        self.saved = deepcopy(self.store)

    def restore_backup(self) -> None:
        self.put_back()
        self.stores += 1
        self.store.name = f"store-{self.stores}"

    def put_back(self) -> None:
        """Put a snapshot of the disk back: the store has the id that it had."""
        self.disconnect()
        self.store = deepcopy(self.saved)

    def start_empty(self) -> None:
        self.disconnect()
        self.stores += 1
        self.store = Store(f"store-{self.stores}")

    def check(self) -> None:
        copy, store = self.copy, self.store
        if copy is None:
            return
        judgement = judge(copy, store.topic())
        here = store.incarnation == copy.incarnation and copy.position.entry <= store.entries
        remembered = copy.deleted or copy.position <= store.deleted.get(copy.incarnation, BEFORE_ALL)
        newest = max([0, *store.deleted]) if store.incarnation is None else store.incarnation
        made_anew = store.name == copy.store and newest > copy.incarnation
        if remembered:
            assert judgement is Judgement.DELETED_ON_PURPOSE
            assert copy.position <= self.deleted[copy.incarnation], "it was deleted indeed"
        elif here:
            assert judgement is Judgement.SAME
        elif made_anew:  # also after a snapshot was put back, and the topic made again: nothing tells the two apart
            assert judgement is Judgement.DELETED_ON_PURPOSE
        else:
            assert judgement in LOST_HERE


STEPS = ("publish", "delete", "connect", "disconnect", "save", "restore_backup", "put_back", "start_empty")


@given(st.lists(st.sampled_from(STEPS), max_size=40))
def test_whatever_becomes_of_a_store_lost_data_is_not_taken_for_deleted_nor_deleted_data_for_lost(
    steps: list[str],
) -> None:
    history = History()
    for step in steps:
        getattr(history, step)()
        history.check()


@given(st.lists(st.text("0123456789abcdef", min_size=1, max_size=32), min_size=1, max_size=8, unique=True))
def test_a_store_is_later_than_those_that_it_names_and_than_no_other(ids: list[str]) -> None:
    line = StoreLine.of_json(StoreLine(ids[0], tuple(ids[1:])).as_json())
    for at, store in enumerate(ids):
        assert [line.is_later(store, than) for than in ids] == [False] * (at + 1) + [True] * (len(ids) - at - 1)
    assert not line.is_later("unknown", ids[-1])
    assert not line.is_later(ids[0], "unknown")


@given(st.text(max_size=20), st.integers(0, 2**53), positions | st.just(BEFORE_ALL))
def test_what_is_told_of_copies_and_deletions_survives_its_form(
    topic: str, incarnation: int, position: Position
) -> None:
    deletion = Deletion(topic, "a", incarnation, position, 1)
    assert Deletion.of_json(deletion.as_json()) == deletion
    writer = CopyWriter(topic, "a", incarnation, NEW)
    assert CopyWriter.of_json(writer.as_json()) == writer


@pytest.mark.parametrize(
    "row", [{}, {"store": ""}, {"store": 3}, {"store": "x" * 65}, {"store": NEW, "predecessors": [1]}]
)
def test_an_id_that_is_none_is_refused(row: dict[str, object]) -> None:
    with pytest.raises((ValueError, KeyError, TypeError)):
        StoreLine.of_json(row)
