"""Names of clusters and origins, and how the header of a block names the clusters that may have it. Pure."""

from __future__ import annotations

import re
from struct import Struct
from typing import Final

from replicator.engine.errors import BlockCorrupt

CLUSTER_PATTERN: Final = "[A-Za-z0-9_-]{1,64}"
"""Pattern of a cluster's name. The name becomes part of the store's keys, so a peer must not choose it freely."""
ORIGIN_PATTERN: Final = rf"{CLUSTER_PATTERN}(\.pulsar)?"
"""Pattern of an origin: the name of a cluster, or of the Apache Pulsar brokers beside which its worker runs."""

ONLY_LENGTH: Final = Struct("<H")
ONLY_BYTES_MAX: Final = 4096
"""Limit of the names in a header: some hundred clusters. A message that names more is refused."""

_CLUSTER: Final = re.compile(CLUSTER_PATTERN.encode())


def decode_only(names: bytes) -> frozenset[str]:
    """Return the names of the clusters that may have a block. Raise :class:`BlockCorrupt` if they are malformed."""
    only = names.split(b",") if names else []
    if len(names) > ONLY_BYTES_MAX or not all(map(_CLUSTER.fullmatch, only)):
        raise BlockCorrupt(
            f"the names of clusters that may have a block are {names[:80]!r}, which are not all possible names: the "
            "client that published it, or the other end of the link, is wrong"
        )
    return frozenset(each.decode("ascii") for each in only)


def is_cluster(name: str) -> bool:
    """Return whether a cluster can have that name."""
    return re.fullmatch(CLUSTER_PATTERN, name) is not None


def encode_only(only: frozenset[str] | None) -> bytes:
    """Return the names of clusters in the form of a block header.

    Raises :class:`BlockCorrupt` if the header has no room for so many.
    """
    if only is None:
        return b""
    assert all(map(is_cluster, only)), f"no names of clusters: {only}"
    names = ",".join(sorted(only)).encode("ascii")
    if len(names) > ONLY_BYTES_MAX:
        raise BlockCorrupt(
            f"the message names {len(only)} clusters that may have it, and their names need more than {ONLY_BYTES_MAX} "
            "bytes: name fewer clusters in the message"
        )
    return ONLY_LENGTH.pack(len(names)) + names
