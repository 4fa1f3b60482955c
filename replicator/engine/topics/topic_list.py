"""Lists of topic names: the hash by which two sides know that they have the same one, and their difference. Pure.

The hash is the one of Pulsar's topic lists: CRC32C of the sorted names with commas between them, in UTF-8, written as
the hexadecimal digits of its four bytes, the lowest first. It tells lists apart that differ by accident; it is no
defence against names that are chosen to collide, which polls by their own would not find either way.

Source: PIP-145.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

import google_crc32c


def topic_list_hash(names: Iterable[str]) -> str:
    """Eight hexadecimal digits that do not depend on the order of ``names``."""
    return sorted_list_hash(sorted(names))


def sorted_list_hash(names: Iterable[str]) -> str:
    """:func:`topic_list_hash` of names that are sorted already."""
    checksum: int = google_crc32c.value(",".join(names).encode())
    return checksum.to_bytes(4, "little").hex()


@dataclass(frozen=True, slots=True)
class TopicListChange:
    """How to get from one list to another: first without ``deleted``, then with ``added``; both sorted.

    A name that is in both was deleted and made anew in between.
    """

    added: tuple[str, ...]
    deleted: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.added or self.deleted)


def topic_list_change(before: Collection[str], after: Collection[str]) -> TopicListChange:
    """What was added and deleted between two lists."""
    known, now = frozenset(before), frozenset(after)
    return TopicListChange(tuple(sorted(now - known)), tuple(sorted(known - now)))
