"""Entries that native replication brought to brokers in the place of a link (:mod:`replicator.apache.native_copies`).

Pure. An entry from native replication has no stamp of a bridge, so it counts as one of the brokers' own. The entry is
also a copy of another cluster's entry. So the copy gets a second row, with the identity of that entry. A copy has the
same content as its entry, stands for one entry only, and keeps the order of the entries.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

import numpy as np

from replicator.pipeline.verify.brokers.entry_log import EntryLog, Life


def with_twins(log: EntryLog, origins: Mapping[str, str], elsewhere: Sequence[EntryLog]) -> EntryLog:
    """Return the ``log`` of brokers with a second row for each native copy of an entry that no link brought.

    ``origins`` has the origins of other clusters by the names that brokers have for these. ``elsewhere`` are logs that
    may have the entries.
    """
    found: list[tuple[int, Life, int, int]] = []
    for number, name in enumerate(log.sources):
        if (origin := origins.get(name)) is None:
            continue
        copies: dict[int, deque[int]] = {}
        for row in np.flatnonzero(log.source == number).tolist():
            copies.setdefault(int(log.checksum[row]), deque()).append(row)
        there = {(life, ledger, entry) for life, ledger, entry, _ in _of_origin(log, origin)}
        for other in elsewhere:
            for life, ledger, entry, checksum in _of_origin(other, origin):
                rows = copies.get(checksum)
                if rows and (life, ledger, entry) not in there:
                    there.add((life, ledger, entry))
                    found.append((rows.popleft(), life, ledger, entry))
    return _with_rows(log, found) if found else log


def _of_origin(log: EntryLog, origin: str) -> list[tuple[Life, int, int, int]]:
    """Return the life, the position and the checksum of each entry of ``origin``."""
    numbers = [number for number, life in enumerate(log.lives) if life.origin == origin]
    rows = np.flatnonzero(np.isin(log.life, numbers))
    columns = (log.life[rows], log.origin_ledger[rows], log.origin_entry[rows], log.checksum[rows])
    return [(log.lives[life], *rest) for life, *rest in zip(*(each.tolist() for each in columns), strict=True)]


def _with_rows(log: EntryLog, found: Sequence[tuple[int, Life, int, int]]) -> EntryLog:
    found = sorted(found)
    lives = tuple(dict.fromkeys([*log.lives, *(life for _, life, _, _ in found)]))
    at = np.array([row for row, *_ in found])
    again = np.insert(np.arange(len(log)), at + 1, at)
    """For each row of the new log, the row of the old one that it has the content of."""
    new = np.flatnonzero(np.diff(again, prepend=-1) == 0)
    """Second rows in the new log."""
    life, ledger, entry = log.life[again], log.origin_ledger[again], log.origin_entry[again]
    life[new] = [lives.index(each) for _, each, _, _ in found]
    ledger[new] = [each for _, _, each, _ in found]
    entry[new] = [each for _, _, _, each in found]
    return EntryLog(
        lives,
        life,
        ledger,
        entry,
        log.ledger[again],
        log.entry[again],
        log.checksum[again],
        log.messages[again],
        log.audiences,
        log.audience[again],
        log.absent[again],
        log.sources,
        log.source[again],
    )
