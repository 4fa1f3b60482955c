"""Removes rows from an LMDB file unseen by LMDB, as a bad page of the disk does.

Pages are those of LMDB 0.9: a header of 16 bytes, offsets of nodes, and nodes from the end on.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

_PAGE: Final = struct.Struct("<QHHHH")
"""Header of a page: number, padding, flags, lower and upper bound of the free space."""
_META: Final = struct.Struct("<IIQQ48s48sQQ")
"""Meta page: magic, version, address, size of the map, tree of free pages, tree of tables, last page, transaction."""
_TREE: Final = struct.Struct("<IHHQQQQQ")
"""Tree: padding (in the meta page the size of pages), flags, depth, branches, leaves, overflows, entries, root."""
_NODE: Final = struct.Struct("<HHHH")
"""Header of a node: three parts for the size of its data or a page's number, the third being flags if it has data; size
of the key."""
_BRANCH: Final = 1
_NO_PAGE: Final = (1 << 64) - 1


class Row(NamedTuple):
    """A row in a leaf: the key, the page, the place among its rows."""

    key: bytes
    page: int
    place: int


class LmdbFile:
    """The content of an LMDB file that nobody has open."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._content = bytearray(path.read_bytes())
        first = _META.unpack_from(self._content, _PAGE.size)
        self._page_bytes: int = _TREE.unpack(first[4])[0]
        second = _META.unpack_from(self._content, self._page_bytes + _PAGE.size)
        self._tables = _TREE.unpack(max(first, second, key=lambda meta: meta[7])[5])[7]

    def rows(self, table: str) -> list[Row]:
        """Return the rows of a table that share their page with another row, because LMDB has no empty pages."""
        for row in self._leaves(self._tables):
            if row.key == table.encode():
                at = self._node(row.page, row.place) + _NODE.size + len(row.key)
                return [
                    each for each in self._leaves(_TREE.unpack_from(self._content, at)[7]) if self._count(each.page) > 1
                ]
        return []

    def take_out(self, row: Row) -> None:
        """Take a row out of its page. The indexes of the page's other rows change."""
        page = row.page * self._page_bytes
        number, padding, flags, lower, upper = _PAGE.unpack_from(self._content, page)
        at, end = page + _PAGE.size + 2 * row.place, page + lower
        self._content[at : end - 2] = self._content[at + 2 : end]
        _PAGE.pack_into(self._content, page, number, padding, flags, lower - 2, upper)
        self._path.write_bytes(self._content)

    def _leaves(self, root: int) -> Iterator[Row]:
        if root == _NO_PAGE:
            return
        flags = _PAGE.unpack_from(self._content, root * self._page_bytes)[2]
        for index in range(self._count(root)):
            at = self._node(root, index)
            low, middle, high, key_bytes = _NODE.unpack_from(self._content, at)
            if flags & _BRANCH:
                yield from self._leaves(low | middle << 16 | high << 32)
            else:
                yield Row(bytes(self._content[at + _NODE.size : at + _NODE.size + key_bytes]), root, index)

    def _count(self, page: int) -> int:
        lower: int = _PAGE.unpack_from(self._content, page * self._page_bytes)[3]
        return (lower - _PAGE.size) // 2

    def _node(self, page: int, index: int) -> int:
        begin = page * self._page_bytes
        return begin + int(struct.unpack_from("<H", self._content, begin + _PAGE.size + 2 * index)[0])
