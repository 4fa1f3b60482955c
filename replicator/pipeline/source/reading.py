"""Blocking I/O of the data source: the questions of planning to workers, and the reads of tasks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Final, TypeVar

import pyarrow as pa

from replicator.engine.errors import TopicNotFound
from replicator.pipeline.data_plane import DataPlane, FetchedBlock
from replicator.pipeline.errors import TopicChanged, UnexpectedAnswer
from replicator.pipeline.source.decode import Decoder
from replicator.pipeline.source.message_rows import EntryFilter
from replicator.pipeline.source.options import Bound, Mode, SourceOptions
from replicator.pipeline.source.planning import TopicRange, TopicSpan, to_sample, wanted_topics
from replicator.pipeline.source.topic_positions import ClusterTopics, Measured
from snapshots.position import Position

ASKED_AT_ONCE_MAX: Final = 1_000
"""Limit of topics in one request to a worker, which the worker sets."""
SAMPLE_BYTES: Final = 256 * 1024
"""Size of a topic's sample: some blocks of small messages, one of large ones."""


def refresh(standings: Mapping[str, ClusterTopics], options: SourceOptions, *, wait_seconds: float = 0.0) -> None:
    """Update the standings of each worker's topics, all at once.

    Raises :class:`~replicator.pipeline.errors.PeerUnavailable`. Raises :class:`UnexpectedAnswer` for a worker of
    another cluster than the options say, and for two workers of one cluster.
    """

    def ask(url: str) -> None:
        with DataPlane(url, wait_seconds=wait_seconds) as worker:
            standings[url].apply(worker.positions(standings[url].token))

    with ThreadPoolExecutor(max_workers=len(options.urls)) as pool:
        list(pool.map(ask, options.urls))
    for url, name in zip(options.urls, options.clusters, strict=False):
        if standings[url].cluster != name:
            raise UnexpectedAnswer(
                f"worker at {url} is of cluster {standings[url].cluster}, not {name}: correct its address in the "
                "topology"
            )
    clusters = [standings[url].cluster for url in options.urls]
    for cluster in clusters:
        if clusters.count(cluster) > 1:
            raise UnexpectedAnswer(
                f"option 'url': {' and '.join(options.urls)} name cluster {cluster} twice: give each worker once"
            )


def search_times(
    standings: Mapping[str, ClusterTopics], options: SourceOptions, bound: Bound | None, *, wait_seconds: float = 0.0
) -> dict[tuple[str, str], Position]:
    """Return, for a bound that is a time, the last position before it of each wanted topic, by URL and topic."""
    if bound is None or bound.time_ms is None:
        return {}
    found = {}
    for url, topics in wanted_topics(standings, options).items():
        with DataPlane(url, wait_seconds=wait_seconds) as worker:
            for names in _batched([topic.name for topic in topics if topic.runs]):
                found.update({(url, name): at for name, at in worker.positions_at(bound.time_ms, names).items()})
    return found


def sample(spans: Sequence[TopicSpan], *, wait_seconds: float = 0.0) -> dict[tuple[str, str], Measured]:
    """Return the sizes of entries at the beginning of each larger span, by URL and topic."""
    found = {}
    of_worker: dict[str, list[TopicSpan]] = {}
    for span in to_sample(spans):
        of_worker.setdefault(span.url, []).append(span)
    for url, asked in of_worker.items():
        with DataPlane(url, wait_seconds=wait_seconds) as worker:
            for some in _batched(asked):
                rows = [(span.positions.name, span.after, span.upto, SAMPLE_BYTES) for span in some]
                for span, row in zip(some, worker.measure(rows), strict=False):
                    if row is not None:
                        found[span.key] = row
    return found


def read_ranges(
    ranges: Iterable[TopicRange],
    columns: pa.Schema,
    *,
    mode: Mode = "messages",
    entry_filter: EntryFilter | None = None,
    wait_seconds: float = 0.0,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of ranges, in order, over one connection to each worker, which may be away for ``wait_seconds``.

    Raises :class:`~replicator.pipeline.errors.TopicChanged` if a range that must be whole is not any more,
    :class:`~replicator.engine.errors.BlockCorrupt`, :class:`~replicator.pipeline.errors.EntryUnreadable`, and the
    errors of a worker's answers.
    """
    decoder = Decoder(columns, entry_filter, raw=mode == "entries")
    with ExitStack() as open_workers:
        workers: dict[str, DataPlane] = {}
        for part in ranges:
            if part.url not in workers:
                workers[part.url] = open_workers.enter_context(DataPlane(part.url, wait_seconds=wait_seconds))
            for fetched in _blocks(workers[part.url], part):
                yield from decoder.add(fetched, part.cluster, part.topic, part.after, part.upto)
        yield from decoder.finish()


def _blocks(worker: DataPlane, part: TopicRange) -> Iterator[FetchedBlock]:
    try:
        yield from worker.blocks(part.topic, part.after, part.upto, incarnation=part.incarnation)
    except UnexpectedAnswer as error:
        if error.code != TopicNotFound.code:
            raise
        if part.incarnation is not None:
            raise TopicChanged(part.topic, "was deleted since the read was planned") from None


_Asked = TypeVar("_Asked")


def _batched(asked: Sequence[_Asked]) -> Iterator[Sequence[_Asked]]:
    for start in range(0, len(asked), ASKED_AT_ONCE_MAX):
        yield asked[start : start + ASKED_AT_ONCE_MAX]
