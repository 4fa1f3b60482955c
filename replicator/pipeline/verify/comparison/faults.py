"""Faults in the entries of some cells, found by comparing several clusters. Pure; vectorised over all entries.

Copies are the same bytes everywhere, so an entry is compared by its identity and its block's checksums:

1. The pieces of all clusters are cut into intervals (:mod:`~replicator.pipeline.verify.comparison.overlaps`), with cuts
   where a cluster's copy of the origin begins, ends or has a hole
   (:mod:`~replicator.pipeline.verify.comparison.scope`).
2. An interval that one of a pair of clusters has and the other has not is *missing*, unless it is excused; what the
   other is only behind with is told apart: whoever asked waits, and looks again how far it is.
3. What a cluster has twice is *duplicated*. What a block's checksum does not agree with is *corrupted*.
4. Where all that have an interval have it from equal blocks, its content is the same. Else its entries are compared
   byte by byte, and those that differ message by message; these alone are read again.
5. *Acknowledgements* and *mappings* are compared over the same intervals.

So the work is by blocks, whatever the number of messages.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Final

import numpy as np
import pyarrow as pa

from replicator.pipeline.verify.comparison.acked import Acked, Runs, only_acked
from replicator.pipeline.verify.comparison.contents import ReadEntries, differing_messages
from replicator.pipeline.verify.comparison.overlaps import Bools, Int64s, Overlaps, Pieces, messages_in, overlaps
from replicator.pipeline.verify.comparison.rows import BEHIND, COMPARED, MESSAGES, NOTE, PROBE, FindingRow
from replicator.pipeline.verify.comparison.scope import (
    ENTRY_ABOVE_ALL,
    ReplicaState,
    Scope,
    TopicScope,
    home_of,
    within,
)
from snapshots.starts import end_before

EXAMPLES_SHOWN: Final = 10
"""Most examples that one task marks for each kind of fault and topic."""


@dataclass(frozen=True, slots=True)
class _Cells:
    """Cells that are compared at once, as arrays; by piece (``kind`` …) and by group (``topics`` …)."""

    pieces: Pieces
    cut: Overlaps
    kind: Int64s
    checksums: Int64s
    sound: Bools
    parts: tuple[bytes | None, ...]
    topics: Int64s
    origins: tuple[str, ...]
    incarnations: Int64s
    ledgers: Int64s

    @property
    def interval_kind(self) -> Int64s:
        """Kind of each interval, by its first cover."""
        first = np.searchsorted(self.cut.cover_interval, np.arange(len(self.cut)))
        kinds: Int64s = self.kind[self.cut.cover_piece[first]]
        return kinds


def compare(table: pa.Table, scope: Scope, read: ReadEntries) -> Iterator[FindingRow]:
    """Compare the clusters' copies of the same entries; yield the faults, and how much was compared.

    ``table`` has sorted rows of :data:`~replicator.pipeline.verify.comparison.rows.PIECES`, with all rows of each cell
    (a part of an origin's ledger). Its notes, which are findings made while reading, are yielded too. ``read`` reads
    the entries that must be compared byte by byte.
    """
    is_note = table.column("kind").to_numpy() == NOTE
    for note in table.filter(pa.array(is_note)).column("note").to_pylist() if is_note.any() else ():
        yield FindingRow(**json.loads(note))
    if is_note.all():
        return
    cells = _cells_of(table.filter(pa.array(~is_note)) if is_note.any() else table, scope)
    shown: dict[tuple[str, str], int] = {}
    for found in _faults(cells, scope, read):
        number = shown[found.kind, found.topic] = shown.get((found.kind, found.topic), 0) + 1
        yield found if number > EXAMPLES_SHOWN else replace(found, shown=True)


def _faults(cells: _Cells, scope: Scope, read: ReadEntries) -> Iterator[FindingRow]:
    cut = cells.cut
    kind = cells.interval_kind
    weight = np.where(kind == MESSAGES, cut.messages, cut.count)
    topic_of = cells.topics[cut.group]
    text = _Text(cells, scope, weight)
    yield from _missing(cells, scope, weight, text)
    for cluster in range(len(scope.clusters)):
        for index in np.flatnonzero(cut.copies[:, cluster] > 1).tolist():
            yield text.found("duplicated", index, int(weight[index]), cluster=cluster)
    yield from _corrupted(cells, weight, text, read)
    of_messages = np.flatnonzero(kind == MESSAGES)
    of_messages = of_messages[np.argsort(topic_of[of_messages], kind="stable")]
    numbers, starts = np.unique(topic_of[of_messages], return_index=True)
    intervals = dict(zip(numbers.tolist(), np.split(of_messages, starts[1:]), strict=True)) if len(numbers) else {}
    places = [cut.at(cells.pieces, cluster) for cluster in range(len(scope.clusters))]
    gone = cache(lambda cluster: _exempt_intervals(cells, scope, cluster)[0])
    for number in np.unique(topic_of).tolist():
        topic = scope.topics[number]
        of_topic = intervals.get(number, of_messages[:0])
        yield FindingRow(COMPARED, topic.name, int(cut.messages[of_topic].sum()))
        yield from _acknowledged(cells, topic, scope, of_topic, text, places)
        yield from _mismapped(cells, topic, scope, of_topic, places, gone)
        yield from _probes(cells, topic, scope, of_topic)


def _cells_of(table: pa.Table, scope: Scope) -> _Cells:
    columns = {name: table.column(name) for name in table.column_names}

    def numbers(name: str) -> Int64s:
        values: Int64s = columns[name].to_numpy().astype(np.int64)
        return values

    origin = columns["origin"].combine_chunks().dictionary_encode()
    origin = origin.combine_chunks() if isinstance(origin, pa.ChunkedArray) else origin
    keys = [numbers("topic"), origin.indices.to_numpy().astype(np.int64), numbers("incarnation")]
    keys.append(numbers("origin_ledger"))
    rows = np.stack(keys)
    changes = np.flatnonzero((rows[:, 1:] != rows[:, :-1]).any(axis=0)) + 1
    firsts = np.concatenate([[0], changes])
    group = np.zeros(table.num_rows, np.int64)
    group[changes] = 1
    pieces = Pieces(
        np.cumsum(group),
        numbers("start"),
        numbers("count"),
        numbers("cluster"),
        numbers("ledger"),
        numbers("entry"),
        numbers("messages"),
        tuple(columns["sizes"].to_pylist()),
    )
    names = origin.dictionary.to_pylist()
    topics, origins, incarnations, ledgers = (key[firsts] for key in rows)
    of_groups = tuple(names[index] for index in origins.tolist())
    bounds = list(_bounds(scope, topics, of_groups, ledgers))
    edges = np.array(bounds, np.int64).reshape(-1, 2).T
    return _Cells(
        pieces,
        overlaps(pieces, len(scope.clusters), (edges[0], edges[1])),
        numbers("kind"),
        numbers("checksums"),
        columns["sound"].to_numpy(zero_copy_only=False).astype(bool),
        tuple(columns["parts"].to_pylist()),
        topics,
        of_groups,
        incarnations,
        ledgers,
    )


def _bounds(scope: Scope, topics: Int64s, origins: tuple[str, ...], ledgers: Int64s) -> Iterator[tuple[int, int]]:
    """Yield the bounds between entries that a cluster must have, or must have acknowledged, and other entries.

    A bound is the number of a group, and an entry in that group's ledger. Bounds are ends of required copies, edges of
    holes, and starts of subscriptions.
    """
    groups = zip(topics.tolist(), origins, ledgers.tolist(), strict=True)
    for group, (topic, origin, ledger) in enumerate(groups):
        for of_clusters in scope.topics[topic].must.values():
            ends = (end_before(acked.begins, origin) for acked in of_clusters.values())
            yield from ((group, end.entry + 1) for end in ends if end.ledger == ledger)
        for number, standing in scope.topics[topic].standings.items():
            positions = [standing.trimmed_upto(scope.clusters[number], origin)]
            positions += standing.deleted.get(origin, {}).values()
            if standing.high_water is not None and origin in standing.high_water:
                positions.append(standing.high_water[origin][1])
            positions += [edge for hole in standing.left_out.get(origin, ()) for edge in hole]
            yield from ((group, at.entry + 1) for at in positions if at.ledger == ledger)


def _exempt_intervals(cells: _Cells, scope: Scope, cluster: int, *, kept: bool = False) -> tuple[Bools, Bools]:
    """Return which intervals a cluster need not have: those that are gone or left out, and those that are still to
    come. With ``kept``, the cluster must have lives that their origin deleted, because a link forwards them."""
    cut = cells.cut
    groups = len(cells.topics)
    gone_below = np.zeros(groups, np.int64)
    due_below = np.full(groups, ENTRY_ABOVE_ALL, np.int64)
    left_out = np.zeros(len(cut), bool)
    name = scope.clusters[cluster]
    for group in range(groups):
        topic = scope.topics[int(cells.topics[group])]
        standing = topic.standings.get(cluster, ReplicaState())
        origin, ledger = cells.origins[group], int(cells.ledgers[group])
        incarnation = int(cells.incarnations[group])
        trimmed_upto = standing.trimmed_upto(name, origin)
        if not kept:
            trimmed_upto = max(trimmed_upto, topic.deleted_upto(origin, incarnation))
        gone_below[group] = within(ledger, trimmed_upto)
        if standing.is_without(name, origin, incarnation) or topic.deleted_at(cluster, name):
            gone_below[group] = ENTRY_ABOVE_ALL
        reached = standing.reached(name, origin, incarnation)
        if reached is not None:
            due_below[group] = within(ledger, reached)
        for after, upto in standing.left_out.get(origin, ()):
            if after.ledger <= ledger <= upto.ledger:
                here = (cut.group == group) & (cut.start >= within(ledger, after)) & (cut.start < within(ledger, upto))
                left_out |= here
    return (cut.start < gone_below[cut.group]) | left_out, cut.start >= due_below[cut.group]


def _begins(cells: _Cells, acked: Acked) -> Int64s:
    """Return for each group how many entries of its ledger lie before the subscription's start."""
    groups = zip(cells.ledgers.tolist(), cells.origins, strict=True)
    return np.array(
        [within(ledger, end_before(acked.begins, origin)) for ledger, origin in groups],
        np.int64,
    )


def _missing(cells: _Cells, scope: Scope, weight: Int64s, text: _Text) -> Iterator[FindingRow]:
    cut = cells.cut
    excused = [_exempt_intervals(cells, scope, cluster) for cluster in range(len(scope.clusters))]
    here = cut.first_cover >= 0
    topic_of = cells.topics[cut.group]
    ways = {number: scope.topics[number].reachability.messages for number in np.unique(topic_of).tolist()}
    for pair in sorted({pair for pairs in ways.values() for pair in pairs}):
        origin, other = (scope.clusters.index(name) for name in pair)
        of_origin = np.array([home_of(name) == pair[0] for name in cells.origins], bool)
        carried = np.array([pair in ways[number] for number in cells.topics.tolist()], bool)
        compared = (of_origin & carried)[cut.group]
        for lacking, having in ((other, origin), (origin, other)):
            gone, behind = excused[lacking]
            deleted = [number for number in ways if scope.topics[number].has_deleted(scope.clusters[lacking])]
            lacks = compared & here[:, having] & ~here[:, lacking] & ~gone
            # Who makes a topic anew is told whole states. Its neighbor may have trimmed the markers from before.
            lacks &= (cells.interval_kind == MESSAGES) | ~np.isin(topic_of, deleted)
            for index in np.flatnonzero(lacks).tolist():
                kind = BEHIND if behind[index] else "missing"
                yield text.found(kind, index, int(weight[index]), cluster=lacking, other=having)
    yield from _missing_of_kept(cells, scope, weight, text)


def _missing_of_kept(cells: _Cells, scope: Scope, weight: Int64s, text: _Text) -> Iterator[FindingRow]:
    """Yield messages that are missing of lives that their origin does not have any more: a link that forwards carries
    them. Markers of such a life say nothing to anybody."""
    cut = cells.cut
    covered = cut.first_cover >= 0
    here = covered | (cells.interval_kind != MESSAGES)[:, np.newaxis]
    ways = {number: scope.topics[number].reachability.forwarded for number in np.unique(cells.topics).tolist()}
    named: set[tuple[int, int]] = set()
    for way in sorted({way for of_topic in ways.values() for way in of_topic}):
        origin, source, destination = (scope.clusters.index(name) for name in way)
        kept = np.zeros(len(cells.topics), bool)
        held = set(cut.group[covered[:, destination]].tolist())
        for group, number in enumerate(cells.topics.tolist()):
            standing = scope.topics[number].standings.get(origin, ReplicaState())
            of_life = cells.origins[group], int(cells.incarnations[group])
            kept[group] = (
                way in ways[number]
                and home_of(of_life[0]) == way[0]
                and standing.is_without(way[0], *of_life)
                and (group in held or not scope.topics[number].has_deleted(way[2]))  # else it gets later lives alone
            )
        if not kept.any():
            continue
        gone, behind = _exempt_intervals(cells, scope, destination, kept=True)
        lacks = kept[cut.group] & here[:, source] & ~here[:, destination] & ~gone
        for index in np.flatnonzero(lacks).tolist():
            if (index, destination) not in named:
                named.add((index, destination))
                kind = BEHIND if behind[index] else "missing"
                yield text.found(kind, index, int(weight[index]), cluster=destination, other=source)


def _corrupted(cells: _Cells, weight: Int64s, text: _Text, read: ReadEntries) -> Iterator[FindingRow]:
    cut = cells.cut
    of_cover = cells.checksums[cut.cover_piece]
    starts = np.searchsorted(cut.cover_interval, np.arange(len(cut)))
    sound = np.logical_and.reduceat(cells.sound[cut.cover_piece], starts)
    for index in np.flatnonzero(~sound).tolist():
        covers = range(int(starts[index]), int(np.searchsorted(cut.cover_interval, index, side="right")))
        bad = [cover for cover in covers if not cells.sound[cut.cover_piece[cover]]]
        clusters = [int(cells.pieces.cluster[cut.cover_piece[cover]]) for cover in bad]
        remark = f"damaged in {', '.join(text.names(clusters))}"
        yield text.found("corrupted", index, int(weight[index]), cluster=clusters[0], remark=remark)
    partly = np.array([part is not None for part in cells.parts], bool)[cut.cover_piece]
    differ = np.minimum.reduceat(of_cover, starts) != np.maximum.reduceat(of_cover, starts)
    whole = ~np.logical_or.reduceat(partly, starts)
    suspects = [index for index in np.flatnonzero(differ & sound & whole).tolist() if text.comparable(index)]
    for index, offset, count in differing_messages(suspects, text.places, text.counts, read):
        yield text.found("corrupted", index, count, entries=(offset, 1))


_Places = tuple[Bools, Int64s, Int64s]
"""Places of all intervals in a cluster: whether it has the interval, and the interval's ledger and entry there."""


def _acknowledged(
    cells: _Cells, topic: TopicScope, scope: Scope, of_topic: Int64s, text: _Text, places: Sequence[_Places]
) -> Iterator[FindingRow]:
    cut = cells.cut
    if not topic.subscriptions:
        return
    for pair in sorted(topic.reachability.acks):
        source, destination = (scope.clusters.index(name) for name in pair)
        both = of_topic[places[source][0][of_topic] & places[destination][0][of_topic]]
        at_source, at_destination = places[source], places[destination]
        in_both = both
        for name, of_clusters in topic.must.items():
            if (here := of_clusters.get(source)) is None:
                continue
            there = topic.subscriptions.get(name, {}).get(destination)
            if there is None and topic.is_deleted_alone(name, here.generation, pair, destination):
                continue
            both = in_both[cut.start[in_both] >= _begins(cells, here)[cut.group[in_both]]]
            runs = Runs(
                at_source[1][both],
                at_source[2][both],
                at_destination[1][both],
                at_destination[2][both],
                cut.count[both],
            )
            for differing in only_acked(here, there, runs):
                interval = int(both[differing.run])
                piece, offset = text.cover_at(interval, source)
                sizes = text.sizes(piece, offset + differing.offset, differing.count)
                count = differing.messages(sizes, text.absent(piece, offset))
                if count:
                    yield text.found(
                        "ack_mismatch",
                        interval,
                        count,
                        cluster=destination,
                        other=source,
                        subscription=name,
                        entries=(differing.offset, differing.count),
                    )


def _mismapped(
    cells: _Cells,
    topic: TopicScope,
    scope: Scope,
    of_topic: Int64s,
    places: Sequence[_Places],
    gone: Callable[[int], Bools],
) -> Iterator[FindingRow]:
    cut = cells.cut
    for (home, peer), promises in topic.promises.items():
        at_peer, at_home = places[peer], places[home]
        here = of_topic[at_peer[0][of_topic] & (at_home[0][of_topic] | ~gone(home)[of_topic])]
        broken = promises.broken(
            (at_peer[1][here], at_peer[2][here]),
            (at_home[1][here], at_home[2][here]),
            at_home[0][here],
            cut.count[here],
        )
        for index in broken:
            mapping = promises.mappings[index]
            yield FindingRow(
                "mismapped",
                topic.name,
                1,
                cluster=scope.clusters[home],
                other=scope.clusters[peer],
                ledger=mapping.local.ledger,
                entry=mapping.local.entry,
                detail=f"snapshot {mapping.snapshot_id}: {scope.clusters[home]} {mapping.local} ↔ "
                f"{mapping.peer} {mapping.remote}",
            )


def _probes(cells: _Cells, topic: TopicScope, scope: Scope, of_topic: Int64s) -> Iterator[FindingRow]:
    """Yield one copied entry for each origin and cluster, to check its place in the exact mapping."""
    cut = cells.cut
    seen: set[tuple[str, int]] = set()
    for index in (of_topic[0], of_topic[-1]) if len(of_topic) else ():
        group = int(cut.group[index])
        origin = cells.origins[group]
        for cluster, name in enumerate(scope.clusters):
            if name != origin and cut.first_cover[index, cluster] >= 0 and (origin, cluster) not in seen:
                seen.add((origin, cluster))
                cover = int(cut.first_cover[index, cluster])
                yield FindingRow(
                    PROBE,
                    topic.name,
                    0,
                    cluster=name,
                    origin=origin,
                    incarnation=int(cells.incarnations[group]),
                    origin_ledger=int(cells.ledgers[group]),
                    origin_first=int(cut.start[index]),
                    ledger=int(cells.pieces.ledger[cut.cover_piece[cover]]),
                    entry=int(cut.cover_entry[cover]),
                )


class _Text:
    """Descriptions of intervals for findings: their identity, their places, and words."""

    def __init__(self, cells: _Cells, scope: Scope, weight: Int64s) -> None:
        self._cells, self._scope, self._weight = cells, scope, weight
        self._kind = cells.interval_kind

    def found(
        self,
        kind: str,
        index: int,
        count: int,
        *,
        cluster: int | None = None,
        other: int | None = None,
        subscription: str | None = None,
        entries: tuple[int, int] | None = None,
        remark: str = "",
    ) -> FindingRow:
        """Return a finding about an interval. ``entries`` are the offset and the number of the entries meant, if not
        all are."""
        cells, cut, scope = self._cells, self._cells.cut, self._scope
        group = int(cut.group[index])
        offset, length = entries or (0, int(cut.count[index]))
        first = int(cut.start[index]) + offset
        topic = scope.topics[int(cells.topics[group])]
        at = self._place(index, other if other is not None else cluster, offset)
        named = ", ".join(filter(None, (self._places(index, offset), remark)))
        range_text = f"{cells.origins[group]} {cells.ledgers[group]}:{first}"
        if length > 1:
            range_text += f" to {first + length - 1}"
        what = f"{count:,} message{'s' * (count != 1)}" if self._kind[index] == MESSAGES else "marker"
        detail = f"{what} of {range_text} ({named})"
        if subscription is not None and cluster is not None and other is not None:
            detail += f" {subscription}: acknowledged in {scope.clusters[other]}, not in {scope.clusters[cluster]}"
        return FindingRow(
            kind,
            topic.name,
            count,
            cluster=None if cluster is None else scope.clusters[cluster],
            other=None if other is None else scope.clusters[other],
            origin=cells.origins[group],
            incarnation=int(cells.incarnations[group]),
            origin_ledger=int(cells.ledgers[group]),
            origin_first=first,
            origin_last=first + length - 1,
            ledger=None if at is None else at[0],
            entry=None if at is None else at[1],
            subscription=subscription,
            detail=detail,
        )

    def _place(self, index: int, cluster: int | None, offset: int) -> tuple[int, int] | None:
        cut = self._cells.cut
        if cluster is None or (cover := int(cut.first_cover[index, cluster])) < 0:
            return None
        return int(self._cells.pieces.ledger[cut.cover_piece[cover]]), int(cut.cover_entry[cover]) + offset

    def _places(self, index: int, offset: int) -> str:
        return ", ".join(
            f"not in {name}"
            if place is None
            else f"{name} {place[0]}:{place[1]}" + (f" ×{copies}" if copies > 1 else "")
            for number, name in enumerate(self._scope.clusters)
            for place in [self._place(index, number, offset)]
            for copies in [int(self._cells.cut.copies[index, number])]
        )

    def names(self, clusters: Iterable[int]) -> list[str]:
        return sorted({self._scope.clusters[cluster] for cluster in clusters})

    def comparable(self, index: int) -> bool:
        """Return whether an interval must have the same content in all clusters that have it."""
        if not self._scope.rewritten:
            return True
        origin = home_of(self._cells.origins[int(self._cells.cut.group[index])])
        having = np.flatnonzero(self._cells.cut.first_cover[index] >= 0).tolist()
        return not any((origin, self._scope.clusters[cluster]) in self._scope.rewritten for cluster in having)

    def places(self, index: int) -> list[tuple[int, int, int, int]]:
        """Return every cover of an interval: cluster, topic, ledger, entry."""
        cells, cut = self._cells, self._cells.cut
        low, high = np.searchsorted(cut.cover_interval, [index, index + 1]).tolist()
        topic = int(cells.topics[int(cut.group[index])])
        return [
            (int(cells.pieces.cluster[piece]), topic, int(cells.pieces.ledger[piece]), int(entry))
            for piece, entry in zip(cut.cover_piece[low:high], cut.cover_entry[low:high], strict=True)
        ]

    def counts(self, index: int) -> int:
        return int(self._cells.cut.count[index])

    def cover_at(self, index: int, cluster: int) -> tuple[int, int]:
        """Return the first piece in which a cluster has an interval, and the interval's offset in it."""
        cut = self._cells.cut
        cover = int(cut.first_cover[index, cluster])
        piece = int(cut.cover_piece[cover])
        return piece, int(cut.cover_entry[cover] - self._cells.pieces.entry[piece])

    def sizes(self, piece: int, offset: int, count: int) -> list[int]:
        sizes = self._cells.pieces.sizes[piece]
        if sizes is None:
            return [messages_in(self._cells.pieces, piece, 0, 1)] * count
        return [int(size) for size in np.frombuffer(sizes, "<u4", count, 4 * offset)]

    def absent(self, piece: int, offset: int) -> Mapping[int, frozenset[int]]:
        """Return the messages that a link left out of batches, by the entry's offset from ``offset`` in the piece."""
        part = self._cells.parts[piece]
        if part is None:
            return {}
        return {int(entry) - offset: frozenset(indexes) for entry, indexes in json.loads(part).items()}
