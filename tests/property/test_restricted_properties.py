"""Messages for some clusters only, over links that break, send again, and pass on: what each cluster has, and knows.

Invariants (DESIGN §3): 2, each entry of an origin stands at most once in a cluster, and once in those that may have
it; 3, in order; 4, a link that passes on leaves out what is not for its destination; 5, what a cluster does not have up
to its high-water mark is in its holes, and nothing else is.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from engine_support import message
from hypothesis import given
from hypothesis import strategies as st

from replicator.engine.log.block import BlockKind, build_block, read_header
from replicator.engine.log.commit.new_blocks import select_new
from replicator.engine.log.left_out import Hole, note_of, with_hole
from replicator.engine.log.requests import CopiedBlock, NewHole
from replicator.engine.log.store_tables import HighWater
from replicator.links.copier import Copier, Send, Start
from replicator.links.gaps import Missing
from snapshots.position import BEFORE_ALL, Position

CLUSTERS = ("b", "c")
TOPIC = "t"
ONLY = st.none() | st.frozensets(st.sampled_from(CLUSTERS))
Log = list[tuple[Position, bytes]]
"""Local positions of the last entries of blocks, and the blocks."""


def log_of(published: list[tuple[int, frozenset[str] | None]], ledgers: list[int]) -> Log:
    """Return a log of ``published`` blocks: their number of entries, and their clusters (None for all).

    A new ledger begins before the blocks numbered in ``ledgers``.
    """
    log: Log = []
    ledger, entry = 10, 0
    for number, (count, only) in enumerate(published):
        if number in ledgers:
            ledger, entry = ledger + 10, 0
        block = build_block(
            kind=BlockKind.MESSAGES,
            origin="a",
            incarnation=1,
            origin_first=Position(ledger, entry),
            publish_time_ms=1,
            entries=[message(b"%d" % each) for each in range(count)],
            batch_sizes=[1] * count,
            only=only,
        )
        entry += count
        log.append((Position(ledger, entry - 1), block))
    return log


def positions(block: bytes) -> list[Position]:
    header = read_header(block)
    first = header.origin_first
    return [Position(first.ledger, first.entry + number) for number in range(header.entries)]


@dataclass
class Destination:
    """Store of a cluster for blocks from links, filled by the code that decides what to store."""

    name: str
    mark: HighWater | None = None
    blocks: list[bytes] = field(default_factory=list)
    holes: tuple[Hole, ...] = ()

    def take(self, copied: list[CopiedBlock]) -> None:
        reached = {} if self.mark is None else {"a": self.mark}
        for new in select_new(copied, cluster=self.name, topic=TOPIC, high_water=reached):
            if isinstance(new, NewHole):
                self._hole((new.after, new.note.upto))
                self.mark = HighWater(new.note.incarnation, new.note.upto)
                continue
            if new.hole is not None:
                self._hole(new.hole)
            self.blocks.append(bytes(new.block))
            self.mark = HighWater(1, new.header.origin_last)

    def _hole(self, hole: Hole) -> None:
        self.holes = tuple(with_hole(self.holes, *hole))

    def entries(self) -> list[Position]:
        return [each for block in self.blocks for each in positions(block)]

    def log(self) -> Log:
        return [(positions(block)[-1], block) for block in self.blocks]


def link(log: Log, destination: Destination, draw: st.DataObject, holes: tuple[Hole, ...] = ()) -> None:
    """Copy ``log`` by the copy state machine, with runs that break: what was sent last arrives or not, and the next
    run begins with what the destination has. Some runs send the blocks themselves, as an older source might."""
    last = log[-1][0] if log else BEFORE_ALL
    while True:
        breaks_after = draw.draw(st.integers(0, len(log)), "blocks until the link breaks")
        notes = draw.draw(st.booleans(), "notes are sent in place of blocks")
        copier = Copier()
        copier.topic_moved(TOPIC, last, frozenset({"a"}))
        missing = Missing({}, {"a": holes} if holes else {})
        sent = {} if destination.mark is None else {"a": destination.mark.position}
        passable = {"a": missing.newest("a")} if holes else {}
        copier.on_connected({TOPIC: Start(BEFORE_ALL, sent=sent, passable=passable)})
        frame: list[CopiedBlock] = []
        for number, (_, block) in enumerate(log):
            if number == breaks_after:
                break
            header = read_header(block)
            before = missing.before("a", header.origin_first)
            send = copier.on_block(TOPIC, "a", header.origin_last, before)
            if send is None:
                continue
            assert isinstance(send, Send), send
            if notes and not header.is_for(destination.name):
                frame.append(CopiedBlock(send.previous, note_of(header), True))
            else:
                frame.append(CopiedBlock(send.previous, block, send.left_out))
        arrived = draw.draw(st.integers(0, len(frame)), "of which arrive")
        destination.take(frame[:arrived])
        destination.take(frame[: draw.draw(st.integers(0, arrived), "and these once more")])
        if breaks_after == len(log) and arrived == len(frame):
            return


def check(destination: Destination, published: Log, through: Log) -> None:
    """Check that ``destination`` has what it may have of ``published``. The last link to it read log ``through``."""
    wanted = [each for _, block in through if read_header(block).is_for(destination.name) for each in positions(block)]
    assert destination.entries() == wanted, "invariants 2, 3 and 4"
    reached = BEFORE_ALL if destination.mark is None else destination.mark.position
    have = set(wanted)
    for _, block in published:
        for each in positions(block):
            lies_in_a_hole = any(after < each <= upto for after, upto in destination.holes)
            assert lies_in_a_hole is (each not in have and each <= reached), f"invariant 5: {each}"


PUBLISHED = st.lists(st.tuples(st.integers(1, 3), ONLY), max_size=12)
LEDGERS = st.lists(st.integers(1, 11), max_size=3)


@given(PUBLISHED, LEDGERS, st.data())
def test_a_cluster_has_what_is_for_it_once_in_order_and_knows_what_it_lacks(
    published: list[tuple[int, frozenset[str] | None]], ledgers: list[int], draw: st.DataObject
) -> None:
    log = log_of(published, ledgers)
    for name in CLUSTERS:
        destination = Destination(name)
        link(log, destination, draw)
        check(destination, log, log)
        if log:
            assert destination.mark is not None
            assert destination.mark.position == log[-1][0], "also where nothing that it has follows"


@given(PUBLISHED, LEDGERS, st.data())
def test_what_is_passed_on_later_leaves_out_what_is_not_for_the_next_and_what_never_came(
    published: list[tuple[int, frozenset[str] | None]], ledgers: list[int], draw: st.DataObject
) -> None:
    """A link that forwards may be added when such messages are there already."""
    log = log_of(published, ledgers)
    hub, last = Destination("b"), Destination("c")
    link(log, hub, draw)
    through = hub.log()
    link(through, last, draw, hub.holes)
    check(last, log, through)
