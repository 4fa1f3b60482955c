"""Fixes of the product that can be taken back, to see whether random histories find the fault again.

``python -m histories --revert NAME`` runs workers without the fix.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from histories.edits import Edit

REVERTS: Final[Mapping[str, tuple[Edit, ...]]] = {
    "content-across-origins": (
        Edit(
            "replicator.engine.producing.contents",
            "    if len(one) == len(other) and bytes(one) == bytes(other):",
            "    if True:",
        ),
        Edit(
            "replicator.engine.producing.contents",
            "    return sum(message in found for message in sent)\n",
            "    return len(sent)\n",
        ),
    ),
    "markers-are-no-lineage": (
        Edit(
            "replicator.links.gaps",
            "        return self.messages == BEFORE_ALL\n",
            "        return False\n",
        ),
        Edit(
            "replicator.links.gaps",
            "    newest = theirs.position if theirs.messages is None else theirs.messages\n",
            "    newest = theirs.position\n",
        ),
    ),
    "keep-both": (
        Edit(
            "replicator.links.gaps",
            "    MADE_ANEW: (KEEP_BOTH, COPY_ANEW),\n",
            "    MADE_ANEW: (COPY_ANEW,),\n",
        ),
    ),
    "earlier-store-is-taken-back": (
        Edit(
            "replicator.engine.lineage",
            "    if copy.store != own.store:\n        return Judgement.LOST\n",
            "    if copy.store != own.store:\n        return Judgement.DELETED_ON_PURPOSE\n",
        ),
    ),
    "a-start-is-no-acknowledgement": (
        Edit(
            "snapshots.starts",
            "        end = end_before(starts, origin)\n        if end > BEFORE_ALL:\n            acks.discard",
            "        end = end_before(starts, origin)\n        if False:\n            acks.discard",
        ),
    ),
    "positions-that-are-received": (
        Edit(
            "replicator.engine.log.delivered",
            "    while missing is not None and index in missing:\n        index -= 1\n",
            "",
        ),
    ),
    "bound-of-the-walk": (
        Edit(
            "replicator.engine.log.last_message",
            "    for ledger, first, last in log.ledgers_back():\n",
            "    end = log.last if upto is None else BEFORE_ALL\n"
            "    while end != BEFORE_ALL:\n"
            "        before = log.clamp(Position(end.ledger, -1))\n"
            "        if not _only_markers(log, before, end):\n"
            "            return _last_message_of_ledger(log, end.ledger, 0, end.entry)\n"
            "        end = before\n"
            "    for ledger, first, last in log.ledgers_back():\n",
        ),
    ),
    "reclaim-goes-on-past-damage": (
        Edit(
            "replicator.backup.reclaim_reading",
            "                if error.code != BlockCorrupt.code:\n                    raise\n                beyond",
            "                raise\n                beyond",
        ),
    ),
    "retention-is-held-back": (
        Edit(
            "replicator.engine.upkeep.maintenance",
            "        return self.waits() or (held and self._has_room())\n",
            "        return self.waits()\n",
        ),
    ),
    "unsubscribe-asks": (
        Edit(
            "replicator.engine.subscriptions.deleting",
            "    if topic.admission.use_elsewhere is not None:\n",
            "    if False:\n",
        ),
    ),
    "compaction-counts-a-hidden-duplicate": (
        Edit(
            "replicator.engine.compaction.compaction",
            "if after < position <= end and (duplicates is None or position not in duplicates.hidden):",
            "if after < position <= end and (duplicates is None or position is not None):",
        ),
    ),
    "added-partitions-get-no-subscriptions": (
        Edit(
            "replicator.engine.topics.partitioned_topics",
            "        if whole is None or not before:\n",
            "        if whole is None or before:\n",
        ),
    ),
    "trimmed-messages-are-claimed-by-a-later-generation": (
        Edit(
            "replicator.sync.exact_state",
            "        return {} if read_compacted else self.acks.trimmed_through(self._origins())",
            "        return {}",
        ),
    ),
    "link-does-not-ask-about-a-topic-made-anew": (
        Edit(
            "replicator.links.link_topics",
            "            self.ask([name], halted_too=True)\n            if name in self.copier.topics:\n",
            "            if name in self.copier.topics:\n",
        ),
    ),
    "switch-compares-an-origin-without-messages": (
        Edit(
            "replicator.failover.comparing",
            '    marks, their_marks = here["high_water"], there["high_water"]\n',
            '    marks, their_marks = {origin: str(BEFORE_ALL), **here["high_water"]}, there["high_water"]\n',
        ),
    ),
}
