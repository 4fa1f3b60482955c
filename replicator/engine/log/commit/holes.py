"""Writing holes: the ranges of an origin's positions whose messages are not here and will not come.

Invariant (DESIGN §3): 5, a hole is written in the same transaction as the block or mark after it. So no cluster claims
later to have the missing messages.
"""

from __future__ import annotations

from typing import Any

import lmdb

from replicator.engine.log import store_tables as tables
from replicator.engine.log.left_out import Hole, with_hole, with_holes_below
from replicator.engine.log.requests import Tail


def put_hole(txn: lmdb.Transaction, dbs: dict[str, Any], tail: Tail, origin: str, hole: Hole) -> None:
    """Add ``hole`` to the holes of ``origin``. The appender must have saved ``tail`` before, because its holes
    change."""
    before = tail.holes.get(origin)
    if before is None:
        before = tables.read_holes(txn, dbs["left_out"], tail.topic_id, origin)
    at_end = not before or before[-1][0] <= hole[0]
    after = tail.holes[origin] = with_hole(before, *hole) if at_end else with_holes_below(before, [hole])
    prefix = tables.extent_key_prefix(tail.topic_id, origin)
    database = dbs["left_out"]
    anew = len(after) < len(before) or not at_end
    for start, _ in set(before).difference(after) if anew else ():
        txn.delete(prefix + tables.encode_place(start), db=database)
    for start, end in set(after).difference(before) if anew else after[-1:]:
        txn.put(prefix + tables.encode_place(start), tables.encode_place(end), db=database)
