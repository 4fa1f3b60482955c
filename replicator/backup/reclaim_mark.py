"""Mark in a store about its reclaim: whether it is finished, what is lost, and how much came back.

The worker does not start on a store whose mark is not settled (:mod:`replicator.engine.restored`).
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Collection, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Final

from replicator.engine.engine import Engine
from replicator.engine.restored import MARK, RestoredMark, restored_mark

MET_DAMAGE: Final = "reclaim met damage"
"""Name of a row in the table ``meta`` during a reclaim: whether something is lost because a block is damaged at a peer.
It is not a field of :class:`RestoredMark`, because older versions could not read a mark with that field."""
FOUND_AGAIN: Final = "reclaim losses found again"
"""Name of a row in the table ``meta``: those losses of the mark that the next reclaim finds by itself if they still
hold. The others stay known. It is not a field of :class:`RestoredMark`, because older versions could not read a mark
with that field."""
COUNTED: Final = "reclaimed topics"
"""Name of a row in the table ``meta``. It has digests of the names of all topics that got messages back since the
mark's time ``restored_at_ms``. So a later reclaim counts each topic once. It is not a field of
:class:`RestoredMark`, because older versions could not read a mark with that field.
"""
COUNTED_BYTES: Final = 8
"""Size of such a digest. Two of a million names have the same digest once in many millions of stores."""


async def remember_losses(
    engine: Engine, mark: RestoredMark, lost: Sequence[str], *, found_again: Sequence[str], damaged: bool
) -> None:
    """Record the known losses in the store, in a mark that is not settled, before the holes for them are written.

    So the worker does not start until a reclaim is finished. ``found_again`` are those losses that the next reclaim
    finds by itself if they still hold.
    """
    if damaged:
        await engine.remember(MET_DAMAGE, True)
    before = engine.store.meta(FOUND_AGAIN) or []
    known = restored_mark(engine.store)  # until the new mark is written, it counts
    again = list(dict.fromkeys([*found_again, *(each for each in before if known is not None and each in known.lost)]))
    if again != before:
        await engine.remember(FOUND_AGAIN, again)
    await engine.remember(MARK, replace(mark, settled_at_ms=None, lost=tuple(lost)).as_json())


async def count_messages(engine: Engine, messages: int) -> None:
    """Add ``messages``, which just came back, to the figure in the store's mark. So what a run took back before it was
    paused or killed counts, too."""
    mark = restored_mark(engine.store)
    if messages and mark is not None:
        counted = replace(mark, reclaimed_messages=mark.reclaimed_messages + messages)
        await engine.remember(MARK, counted.as_json())


async def count_topics(engine: Engine, names: Collection[str]) -> None:
    """Count the topics ``names``, which got messages back. Each topic counts once, however many runs there are.

    The names are one row, which grows with them. So call this at the end of a run, and not for each topic.
    """
    mark = restored_mark(engine.store)
    if not names or mark is None:
        return
    counted = engine.store.meta(COUNTED) or {}
    known = set(counted["topics"] if counted.get("restored_at_ms") == mark.restored_at_ms else ())
    known |= {_digest(name) for name in names}
    await engine.remember(COUNTED, {"restored_at_ms": mark.restored_at_ms, "topics": sorted(known)})
    topics = max(mark.reclaimed_topics, len(known))  # an older version left a number, and no names
    await engine.remember(MARK, replace(mark, reclaimed_topics=topics).as_json())


def lasting_losses(engine: Engine, remarks: Collection[str]) -> list[str]:
    """Return the losses of an earlier reclaim, or of one that was interrupted, that the next one does not find again,
    such as messages that no cluster has. ``remarks`` are texts that are not losses."""
    mark, again = restored_mark(engine.store), engine.store.meta(FOUND_AGAIN) or []
    return [] if mark is None else [each for each in mark.lost if each not in again and each not in remarks]


async def settle(engine: Engine, lost: Sequence[str], *, found_again: Sequence[str] = ()) -> None:
    """Record in the store that the reclaim is finished, with its losses ``lost``. The worker may start then.

    ``found_again`` are those of them that the next reclaim finds by itself if they still hold.
    """
    if list(found_again) != (engine.store.meta(FOUND_AGAIN) or []):
        await engine.remember(FOUND_AGAIN, list(found_again))
    mark = restored_mark(engine.store) or new_mark()
    messages, topics = mark.reclaimed_messages, mark.reclaimed_topics
    settled = mark.settled(_now_ms(), messages=messages, topics=topics, lost=tuple(lost))
    await engine.remember(MARK, settled.as_json())
    if engine.store.meta(MET_DAMAGE):
        await engine.remember(MET_DAMAGE, False)


def _digest(name: str) -> str:
    return blake2b(name.encode(), digest_size=COUNTED_BYTES).hexdigest()


def new_mark() -> RestoredMark:
    """Return a new mark for a store that was not restored from a backup."""
    now_ms = _now_ms()
    return RestoredMark(uuid.uuid4().hex, "", now_ms, now_ms)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
