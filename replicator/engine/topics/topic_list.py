"""Lists of topic names: a hash with which two sides find out whether their lists are equal, and their difference. Pure.

The hash is that of Pulsar's topic lists: CRC32C of the sorted names with commas between them, in UTF-8, written as the
hexadecimal digits of its four bytes, the lowest first. It detects accidental differences, but not names that were
chosen to collide.

Source: PIP-145.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

import google_crc32c


def topic_list_hash(names: Iterable[str]) -> str:
    """Return the hash of a list of names, in eight hexadecimal digits. It does not depend on their order."""
    return sorted_list_hash(sorted(names))


def sorted_list_hash(names: Iterable[str]) -> str:
    """Return the :func:`topic_list_hash` of names that are sorted already."""
    checksum: int = google_crc32c.value(",".join(names).encode())
    return checksum.to_bytes(4, "little").hex()


@dataclass(frozen=True, slots=True)
class TopicListChange:
    """Difference between two lists: remove ``deleted`` first, then add ``added``. Both are sorted.

    A name that is in both was deleted and created again in between.
    """

    added: tuple[str, ...]
    deleted: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.added or self.deleted)


def topic_list_change(before: Collection[str], after: Collection[str]) -> TopicListChange:
    """Return the names that were added and deleted between two lists."""
    known, now = frozenset(before), frozenset(after)
    return TopicListChange(tuple(sorted(now - known)), tuple(sorted(known - now)))
