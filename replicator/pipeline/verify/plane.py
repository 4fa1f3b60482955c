"""Blocking HTTP requests of verify to one worker: those of :class:`DataPlane`, and those that only verify uses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np

from replicator.engine.log.arrow import read_stream
from replicator.engine.log.block_heads import HEADS_SCHEMA
from replicator.engine.topic_digest import DIGEST_FORM
from replicator.links.gaps import policies_for
from replicator.peering.comparing import (
    DIGESTS_ROUTE,
    STATES_ROUTE,
    DigestsAnswer,
    DigestsAsked,
    StatesAnswer,
    StatesAsked,
)
from replicator.pipeline.data_plane import DataPlane, FetchedBlock, JsonObject, _checked_answer, _read_page
from replicator.pipeline.errors import UnexpectedAnswer
from replicator.pipeline.verify.comparison.scope import ReplicaState
from snapshots.position import BEFORE_ALL, Position

_T = TypeVar("_T")

CORRUPT: Final = "BlockCorrupt"
NO_ROUTE: Final = frozenset({403, 404, 405})
"""HTTP statuses of a worker that lacks a route, or (403) does not let this role use it."""


class Head(NamedTuple):
    """A block without its entries; see :mod:`replicator.engine.log.block_heads`."""

    first: Position
    kind: int
    origin: str
    incarnation: int
    origin_first: Position
    entries: int
    messages: int
    publish_time_ms: int
    size_bytes: int
    parts_bytes: int
    checksums: int
    sizes: bytes


@dataclass(frozen=True, slots=True)
class LinkState:
    """A link, as the worker at its source sees it."""

    key: str
    destination: str
    state: str
    detail: str
    paused: bool
    stopped: Mapping[str, str]
    """Topics that the link no longer copies, each with the reason."""
    gaps: Mapping[str, tuple[str, Sequence[str]]]
    """Topics of ``stopped`` that have a gap, each with the kind of the gap and the policies that end it."""


class BlockUnreadable(UnexpectedAnswer):
    """Error for a block that a worker reports as too corrupt to tell which entries it has."""


class VerifyPlane(DataPlane):
    """Client for one worker's routes. Methods raise the same errors as those of :class:`DataPlane`."""

    def standings(self) -> dict[str, ReplicaState]:
        """Return the state of each topic in this cluster, by topic."""
        answer = self._json("cuts")
        with _checked_answer(self.url, "cuts"):
            return {str(name): _standing(row) for name, row in answer["topics"].items()}

    def standing(self, topic: str) -> ReplicaState | None:
        """Return the state of ``topic`` in this cluster; None if the worker's answer does not have the topic.

        A worker of an earlier version answers with all topics.
        """
        answer = self._json("cuts", topic=topic)
        with _checked_answer(self.url, f"cuts of {topic}"):
            row = answer["topics"].get(topic)
            return None if row is None else _standing(row)

    def hidden_duplicates(self, topic: str, upto: Position) -> Iterator[tuple[Position, Position]]:
        """Yield pairs of positions: an entry that is delivered, and a later entry that is hidden as its duplicate.

        Only hidden entries up to ``upto``, included, are yielded.
        """
        after = BEFORE_ALL
        while True:
            answer = self._json("twins", topic=topic, after=str(after), upto=str(upto))
            with _checked_answer(self.url, "twins"):
                pairs = [(Position.parse(one), Position.parse(other)) for one, other in answer["twins"]]
            yield from pairs
            if not pairs or pairs[-1][1] <= after:
                return
            after = pairs[-1][1]

    def link_states(self) -> list[LinkState]:
        """Return the links whose source is this cluster."""
        answer = self._json("links")
        with _checked_answer(self.url, "links"):
            return [
                LinkState(
                    key=str(link["key"]),
                    destination=str(link.get("to", "")),
                    state=str(link.get("state", "")),
                    detail=str(link.get("detail", "")),
                    paused=bool(link.get("paused", False)),
                    stopped={
                        **{str(topic): str(reason) for topic, reason in link["halted"].items()},
                        **{str(gap["topic"]): f"{gap['kind']}: {gap['detail']}" for gap in link["gaps"]},
                    },
                    gaps={
                        str(gap["topic"]): (str(gap["kind"]), gap.get("policies", policies_for(str(gap["kind"]))))
                        for gap in link["gaps"]
                    },
                )
                for link in answer["links"]
            ]

    def states(self, topics: Sequence[str], *, mappings: bool) -> StatesAnswer | None:
        """Return subscriptions and snapshot mappings of many topics; None from a worker that has no such route.

        The worker may answer for some of the topics only; see :attr:`StatesAnswer.left`.
        """
        return self._of_many(STATES_ROUTE, StatesAsked(topics, mappings).as_json(), StatesAnswer.of_json)

    def digests(self, topics: Mapping[str, Sequence[Position]]) -> DigestsAnswer | None:
        """Return digests of many topics; each topic comes with the positions up to which its digest sums up origins.

        Return None if the worker makes no digests, or makes them in another form. The worker may answer for some of the
        topics only; see :attr:`DigestsAnswer.left`.
        """
        asked = DigestsAsked(DIGEST_FORM, topics)
        answer = self._of_many(DIGESTS_ROUTE, asked.as_json(), DigestsAnswer.of_json)
        return None if answer is None or answer.form != DIGEST_FORM else answer

    def _of_many(self, route: str, body: JsonObject, read: Callable[[JsonObject], _T]) -> _T | None:
        try:
            answer = self.call("POST", route, body)
        except UnexpectedAnswer as error:
            if error.status in NO_ROUTE:
                return None
            raise
        with _checked_answer(self.url, route):
            return read(answer)

    def raw_blocks(self, topic: str, after: Position, upto: Position) -> Iterator[FetchedBlock]:
        """Yield the blocks after ``after`` and up to ``upto``, included; corrupt blocks too.

        Raises :class:`BlockUnreadable` if the header of a block is wrong.
        """
        for answer in self._pages("raw-blocks", topic, after, upto):
            with _checked_answer(self.url, f"raw-blocks of {topic}"):
                yield from _read_page(answer)

    def page_of(self, topic: str, after: Position) -> list[FetchedBlock]:
        """Return the first page of raw blocks after a position; empty if there are none, or if they cannot be read."""
        try:
            answer, _ = self._get("raw-blocks", topic=topic, after=str(after))
        except UnexpectedAnswer:
            return []
        with _checked_answer(self.url, f"raw-blocks of {topic}"):
            return list(_read_page(answer))

    def heads(self, topic: str, after: Position, upto: Position) -> Iterator[Head]:
        """Yield the heads of the blocks after ``after`` and up to ``upto``, included.

        Raises :class:`BlockUnreadable` if the header of a block is wrong.
        """
        for answer in self._pages("block-heads", topic, after, upto):
            with _checked_answer(self.url, f"block-heads of {topic}"):
                yield from read_heads(answer)

    def first_head(self, topic: str, after: Position, upto: Position) -> Head | None:
        """Return the head of the first block with entries after ``after`` and up to ``upto``, included; None if there
        is none.

        Raises :class:`BlockUnreadable` if the header of that block is wrong.
        """
        following = min(Position(after.ledger, after.entry + 1), upto)  # one head, where there is one in that ledger
        found = next(self.heads(topic, after, following), None)
        return found or next(self.heads(topic, after, upto), None)

    def mend(self, topic: str, position: Position) -> tuple[str, str]:
        """Ask the worker to replace a damaged block by a good one from another cluster.

        Return the outcome (:class:`replicator.worker.mending.Outcome`), and the reason if the block stays damaged.
        """
        answer = self.call("POST", "/replication/v1/mend", {"topic": topic, "position": str(position)})
        with _checked_answer(self.url, "mend"):
            return str(answer["outcome"]), str(answer["reason"])

    def place(self, topic: str, origin: str, incarnation: int, position: Position) -> Position:
        """Return the local position of an origin's entry in this cluster's log, by the exact mapping."""
        answer = self._json(
            "place", topic=topic, origin=origin, incarnation=str(incarnation), origin_position=str(position)
        )
        with _checked_answer(self.url, "place"):
            return Position.parse(answer["position"])

    def _pages(self, what: str, topic: str, after: Position, upto: Position) -> Iterator[bytes]:
        while after < upto:
            try:
                answer, headers = self._get(what, topic=topic, after=str(after), upto=str(upto))
            except UnexpectedAnswer as error:
                if error.code == CORRUPT:
                    raise BlockUnreadable(str(error)) from error
                raise
            with _checked_answer(self.url, f"{what} of {topic}"):
                yield answer
                if headers["X-Replicator-End"] == "true":
                    return
                following = Position.parse(headers["X-Replicator-Next"])
                if following <= after:
                    raise ValueError(
                        f"the page after {after} says that the next page is after {following}, which is not later"
                    )
            after = following


def _standing(row: Mapping[str, Any]) -> ReplicaState:
    return ReplicaState(
        runs=tuple((int(ledger), int(first), int(last)) for ledger, first, last in row["runs"]),
        trimmed=Position.parse(row["trimmed"]),
        trimmed_of={str(origin): Position.parse(at) for origin, at in row["trimmed_of"].items()},
        high_water=None
        if row["high_water"] is None
        else {
            str(origin): (int(incarnation), Position.parse(at))
            for origin, (incarnation, at) in row["high_water"].items()
        },
        left_out={
            str(origin): tuple((Position.parse(after), Position.parse(upto)) for after, upto in holes)
            for origin, holes in row["left_out"].items()
        },
        # Workers of earlier versions do not report these two.
        hidden=int(row.get("hidden", 0)),
        deleted={
            str(origin): {int(incarnation): Position.parse(at) for incarnation, at in each["deleted"].items()}
            for origin, each in row.get("lineage", {}).items()
            if each["deleted"]
        },
    )


def read_heads(answer: bytes) -> Iterator[Head]:
    stream = read_stream(answer)
    if not stream.schema.equals(HEADS_SCHEMA):
        raise ValueError(
            f"the heads of blocks have the columns {stream.schema.names}, and this version reads {HEADS_SCHEMA.names}"
        )
    origins = stream.schema.metadata[b"origins"].decode().split(",")
    for batch in stream.batches:
        columns: list[Any] = [column.to_pylist() for column in batch.columns]
        for row in zip(*columns, strict=True):
            ledger, first, kind, origin, incarnation, origin_ledger, origin_first, *rest = row
            yield Head(
                Position(ledger, first),
                kind,
                origins[origin],
                incarnation,
                Position(origin_ledger, origin_first),
                *rest,
            )


def uneven_sizes(sizes: np.ndarray[Any, np.dtype[np.uint32]]) -> bytes | None:
    """Return batch sizes as rows have them: None if all are the same."""
    return sizes.tobytes() if len(sizes) and bool((sizes != sizes[0]).any()) else None
