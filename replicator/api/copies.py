"""Actions of a link's destination on its copy of a topic, if the source has a later life of it: keep or delete.

A life is a topic from when it is made until it is deleted. Invariant (DESIGN §3): 2. :func:`keep_both` deletes nothing.
:func:`delete_copy` deletes the copy, so that the link copies the topic anew. It refuses if messages would be lost. The
source must have every message of other origins that is in the copy. No message may have been published here, because no
link brings such a message back.
"""

from __future__ import annotations

from collections.abc import Mapping

import structlog
from aiohttp import web

from replicator.api.errors import BadRequest
from replicator.engine.engine import Engine
from replicator.engine.errors import NotAllowedError
from replicator.engine.log.extent_rows import ledgers_of
from replicator.engine.log.left_out import Hole
from replicator.engine.log.store_tables import HighWater
from replicator.engine.topic import Topic
from replicator.peering.lives import OriginMarks
from snapshots.position import BEFORE_ALL, Position

log = structlog.get_logger(__name__)


async def delete_copy(engine: Engine, source: str, topic: Topic, there: Mapping[str, HighWater]) -> None:
    """Delete ``topic`` and disconnect its clients. ``source`` has everything up to the marks ``there``. Raise
    :class:`NotAllowedError`, which says what would be lost, if messages would be lost. That includes messages that
    arrive while the deletion waits.
    """

    def check(found: Topic) -> None:
        if (reason := would_lose(found, source, there)) is not None:
            raise NotAllowedError(
                f"the copy of {found.name!r} at {engine.cluster!r} is not deleted, because messages could be lost: "
                f"{reason}"
            )

    await engine.deleting.delete(topic.name, force=True, keeps_grants=True, check=check)
    log.warning("the copy of a topic was deleted, to be copied anew", topic=topic.name, source=source)


def would_lose(topic: Topic, source: str, there: Mapping[str, HighWater]) -> str | None:
    """Return in words which messages a copy from ``source`` would not bring back; None if there are none."""
    kept = {name.rpartition("/")[0] for name in topic.origins.earlier_lives()}
    for origin, newest in topic.origins.message_vector().items():
        if origin == source:
            continue
        if origin == topic.cluster:
            if newest > topic.log.trimmed:
                return f"it has messages that were published here, up to {newest}, and no link brings those back"
            continue
        if origin in kept:  # marks say only how far the newest life is there
            return f"it keeps an earlier life of the topic of {origin!r}, and nobody knows whether {source!r} has it"
        here, mark = topic.origins.high_water(origin), there.get(origin)
        incarnation = None if here is None else here.incarnation
        if mark is None or mark.incarnation != incarnation or mark.position < newest:
            return f"it has messages of {origin!r} up to {newest}, and {source!r} does not have all of them"
    return None


async def read_marks(request: web.Request) -> Mapping[str, HighWater]:
    """Read the body of a request as :class:`OriginMarks`. Raise :class:`BadRequest` if the body is malformed."""
    try:
        return OriginMarks.from_json(await request.json()).origins
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadRequest(f"the body must be a JSON object with the field origins: {error!r:.100}") from None


async def keep_both(engine: Engine, source: str, topic: Topic, later: Mapping[str, HighWater]) -> None:
    """Keep the earlier lives of ``topic`` as closed history, and accept the ``later`` lives after them.

    Raises :class:`NotAllowedError` for a life of this cluster itself, and :class:`IncarnationMismatch` for a life that
    is not later than the life here. Then nothing was changed.
    """
    before = topic.origins.high_waters()
    kept = {origin: before[origin].incarnation for origin in later if origin in before}
    await engine.writer.keep_both(topic.tail, later)
    log.warning("an earlier life of a topic is kept as closed history", topic=topic.name, source=source, kept=kept)


def lacking(engine: Engine, topic: Topic, earlier: Mapping[str, HighWater]) -> list[str]:
    """Return the origins whose ``earlier`` life has its newest message missing here, below the high-water mark here.

    A message that was here and is trimmed is not missing. A message that is recorded as left out is not missing.
    """
    return [
        origin
        for origin, mark in earlier.items()
        if origin != engine.cluster
        and (here := topic.origins.high_water(origin)) is not None
        and mark.position <= here.position
        and topic.origins.lacks(origin, mark.position)
    ]


async def leave_out(engine: Engine, topic: Topic, missing: Mapping[str, HighWater]) -> None:
    """Record that messages are missing here below later ones, up to the marks ``missing``, so that nobody claims
    them."""
    holes: dict[str, Hole] = {}
    for origin, mark in missing.items():
        ledgers = ledgers_of(engine.store, topic.topic_id, origin)
        ends = [Position(ledger, last) for of_life in ledgers.values() for ledger, _, last in of_life]
        ends += topic.trimming.ends().get(origin, ())
        holes[origin] = max((end for end in ends if end < mark.position), default=BEFORE_ALL), mark.position
    await engine.writer.keep_both(topic.tail, {}, holes)
