"""Rules for policies and permissions that clusters tell each other: what a peer keeps, and what a new store takes back.

The *settings* of a cluster are the rows that operators set in it: tenants, namespaces with their policies, numbers of
partitions, policies of topics, permissions, and which of its links are paused. Defaults in the topology file are no
settings. Everything here is pure.

Invariants:

1. Settings of one store of a cluster are kept as a whole, with their version. Rows of two versions, of two stores or of
   two clusters are never merged. So nobody gets a permission that some version did not give.
2. A version only grows: it is at least the wall clock in milliseconds, and above the version before. Version 0 means
   that nothing was ever set.
3. Kept settings of a store are replaced by a newer version of that store. They are dropped only when a later store
   says that it knows this version of them, or beyond :data:`STORES_MAX` stores.
4. A new store takes back the settings that somebody set last, of all that answering peers keep of its cluster. Settings
   that a store took back count as old as they are, until somebody sets something there. Otherwise a permission that was
   revoked would come back with the second lost disk, if a peer that knew the revocation was away at the first.
5. Settings that the chosen ones never knew are named, also those of the store itself. Peers go on keeping them.

Source: a version with a digest of the whole, as in anti-entropy protocols; the digest is a sum of hashes, so a change
costs what it changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import blake2b
from typing import Any, Final, Self

STORES_MAX: Final = 8
"""Most stores of one cluster whose settings are kept. A cluster gets another store only when a disk is lost."""
EARLIER_MAX: Final = 100
"""Most earlier stores that settings name as known."""
NAME_CHARS_MAX: Final = 100
"""Longest name of a cluster, or id of a store."""
_MODULUS: Final = 1 << 128
_HASH_BYTES: Final = 16


class Kind(StrEnum):
    """Kinds of rows. Each is the name of the table from which a row comes; rows of ``policies`` go by topic name."""

    TENANTS = "tenants"
    NAMESPACES = "namespaces"
    PARTITIONED = "partitioned"
    POLICIES = "policies"
    GRANTS = "grants"
    LINKS = "links"
    """One row for each paused link of the cluster."""


SET_BY_OPERATORS: Final = frozenset({Kind.NAMESPACES, Kind.POLICIES, Kind.GRANTS, Kind.LINKS})
"""Kinds of rows that only operators change, if they say more than that something exists. Links also make tenants,
namespaces and partitions."""
Key = tuple[str, str]
"""Kind of a row, and the name of the tenant, namespace or topic that it is about. A peer also keeps rows of kinds that
its version does not know."""
Rows = Mapping[Key, str]
Changes = Mapping[Key, str | None]
"""Rows that changed; None for a row that is gone."""
_BARE: Final[Mapping[str, str]] = {Kind.TENANTS: "", Kind.NAMESPACES: "{}"}
"""Rows that exist although nobody set anything."""


def hash_of(key: Key, text: str) -> int:
    """Return the part of one row in the digest of settings."""
    stated = f"{key[0]}\0{key[1]}\0{text}".encode()
    return int.from_bytes(blake2b(stated, digest_size=_HASH_BYTES).digest())


def bare_hash(key: Key) -> int | None:
    """Return the hash of a row that says only that a tenant or a namespace is there; None for other kinds of rows."""
    text = _BARE.get(key[0])
    return None if text is None else hash_of(key, text)


def digest_text(total: int) -> str:
    """Return a digest in the form in which it is stored and told."""
    return f"{total % _MODULUS:032x}"


def digest_of(rows: Rows) -> str:
    """Return the digest of whole settings. It does not depend on the order of rows."""
    return digest_text(sum(hash_of(key, text) for key, text in rows.items()))


def changed_digest(digest: str, before: Changes, after: Changes) -> str:
    """Return the digest after rows with the texts ``before`` got the texts ``after``."""
    gone = sum(hash_of(key, text) for key, text in before.items() if text is not None)
    come = sum(hash_of(key, text) for key, text in after.items() if text is not None)
    return digest_text(int(digest, 16) - gone + come)


@dataclass(frozen=True, slots=True)
class SettingsHead:
    """Version of the settings of one store of a cluster."""

    cluster: str
    store: str
    version: int
    digest: str
    earlier: Mapping[str, int] = field(default_factory=dict)
    """For each earlier store of the cluster, by id, the version of its settings that this store knows."""
    set_at: int | None = None
    """Version in which somebody last set something; 0 if nobody did. None means this version. The number is that of an
    earlier store if the settings were taken back since."""
    set_in: str = ""
    """Store in which somebody last set something; empty means this store."""

    @property
    def rank(self) -> tuple[int, int]:
        """Age of the settings: of two stores of a cluster, those with the greater rank count."""
        return self.version if self.set_at is None else self.set_at, self.version

    def knows(self, other: SettingsHead) -> bool:
        """Return whether these settings came after whatever somebody set last in those of ``other``."""
        store, at = other.set_in or other.store, other.rank[0]
        known = {**self.earlier, self.store: self.version}
        if self.set_in:
            known[self.set_in] = max(self.rank[0], known.get(self.set_in, -1))
        return not at or at <= known.get(store, -1)

    @classmethod
    def of_json(cls, row: Mapping[str, Any]) -> Self:
        """Return the head in a JSON object.

        Raises KeyError, TypeError, ValueError or AttributeError if the object is malformed.
        """
        earlier = {str(store)[:NAME_CHARS_MAX]: int(version) for store, version in row.get("earlier", {}).items()}
        cluster, store, digest = str(row["cluster"]), str(row["store"]), str(row["digest"])
        if not 0 < len(cluster) <= NAME_CHARS_MAX or not 0 < len(store) <= NAME_CHARS_MAX or "\0" in cluster + store:
            raise ValueError(
                f"settings are of cluster {cluster[:80]!r} and store {store[:80]!r}, and a name has 1 to "
                f"{NAME_CHARS_MAX} characters; run the same version in all clusters"
            )
        if len(earlier) > EARLIER_MAX or len(digest) != 2 * _HASH_BYTES or not 0 < int(row["version"]) < 1 << 63:
            raise ValueError(
                f"settings of {cluster!r} have {len(earlier)} earlier stores (at most {EARLIER_MAX}), version "
                f"{row['version']!r:.40} and digest {digest[:80]!r}, one of which is not possible; run the same "
                "version in all clusters"
            )
        int(digest, 16)
        set_at, set_in = row.get("set_at"), str(row.get("set_in", ""))[:NAME_CHARS_MAX]
        if set_at is not None and not 0 <= int(set_at) <= int(row["version"]):
            raise ValueError(
                f"settings of {cluster!r} have version {row['version']!r:.40}, and say that they were set in version "
                f"{set_at!r:.40}, which is not possible; run the same version in all clusters"
            )
        f"{cluster}{store}{set_in}{''.join(earlier)}".encode()
        return cls(
            cluster, store, int(row["version"]), digest, earlier, None if set_at is None else int(set_at), set_in
        )

    def as_json(self) -> dict[str, Any]:
        return {
            "cluster": self.cluster,
            "store": self.store,
            "version": self.version,
            "digest": self.digest,
            "earlier": dict(self.earlier),
            "set_at": self.rank[0],
            "set_in": self.set_in or self.store,
        }


@dataclass(frozen=True, slots=True)
class KeptState:
    """Settings of one store of a cluster, as a peer keeps them."""

    head: SettingsHead
    rows: Rows

    @property
    def whole(self) -> bool:
        """Whether ``rows`` are all rows of the version in ``head``."""
        return digest_of(self.rows) == self.head.digest


@dataclass(frozen=True, slots=True)
class SettingsMessage:
    """Message by which a cluster tells a peer about its own settings.

    Without ``changes`` it asks only whether the peer has this version. With ``base``, the changes are those since the
    settings with that digest. If ``base`` is None, they are all rows.
    """

    head: SettingsHead
    base: str | None = None
    changes: Changes | None = None


class Verdict(StrEnum):
    """Answers of a peer to settings that it was told."""

    KEPT = "kept"
    """The peer has this version."""
    WHOLE = "whole"
    """The peer lacks what the changes build on: tell it all rows."""
    NEWER = "newer"
    """The peer has a newer version of this store, or another one with this version. It changes nothing."""


def judge(kept: SettingsHead | None, told: SettingsMessage) -> Verdict | None:
    """Return the peer's answer to the message ``told``, or None if the peer must first store the changes in it.

    ``kept`` is the version that the peer keeps for the same store; None if it keeps none.
    """
    if kept is not None and (kept.version, kept.digest) == (told.head.version, told.head.digest):
        return Verdict.KEPT
    if kept is not None and kept.version >= told.head.version:
        return Verdict.NEWER
    if told.changes is None or (told.base is not None and (kept is None or kept.digest != told.base)):
        return Verdict.WHOLE
    return None


def dropped(kept: Iterable[SettingsHead], head: SettingsHead) -> list[str]:
    """Return the ids of stores whose settings are deleted when the settings of ``head`` are stored.

    A store that ``head`` names is dropped if ``head`` knows its version. Beyond :data:`STORES_MAX`, the oldest settings
    are dropped.
    """
    others = [each for each in kept if each.store != head.store]
    gone = [each.store for each in others if each.version <= head.earlier.get(each.store, -1)]
    left = sorted((each for each in others if each.store not in gone), key=lambda each: each.rank)
    return gone + [each.store for each in left[: max(0, len(left) + 1 - STORES_MAX)]]


@dataclass(frozen=True, slots=True)
class RecoveredSettings:
    """Settings for a new store, with what must be shown to an operator."""

    state: KeptState | None = None
    """Newest settings that an answering peer keeps; None if no peer keeps any."""
    peer: str = ""
    """Peer that keeps them."""
    silent: tuple[str, ...] = ()
    """Peers that did not answer. Each may keep a newer version."""
    damaged: tuple[str, ...] = ()
    """Peers whose newest version is not whole, so that it was not used."""
    earlier: Mapping[str, int] = field(default_factory=dict)
    """For each earlier store, the newest version that a peer named and that does not count any more."""
    passed_over: tuple[tuple[str, SettingsHead], ...] = ()
    """Peers with settings that do not count and that the settings in ``state`` never knew."""
    newer: tuple[tuple[str, SettingsHead], ...] = ()
    """Peers with settings that would have counted before somebody set something here, and that it never knew."""
    replaced: KeptState | None = None
    """Settings of the store itself, if those in ``state`` replace them and never knew them."""


def taken_back(
    cluster: str,
    answers: Mapping[str, Sequence[KeptState] | None],
    own: KeptState | None = None,
    *,
    set_since: tuple[int, int] | None = None,
) -> RecoveredSettings:
    """Return the settings that a store of ``cluster`` takes back from its peers.

    ``answers`` has the settings that each peer keeps, or None for a peer that did not answer. Settings of other
    clusters are ignored. The settings that somebody set last count, whole and unmerged.

    ``own`` are the settings of the store itself, which count like those that a peer named ``cluster`` keeps. If
    somebody set something since settings were taken back, they count in any case; ``set_since`` is the rank of the
    latter.
    """
    found = [
        (state, peer)
        for peer, states in sorted(answers.items())
        for state in states or ()
        if state.head.cluster == cluster
    ]
    if own is not None:
        found.insert(0, (own, cluster))  # it counts before one of the same rank
    whole = (
        found[:1]
        if set_since is not None and own is not None
        else [(state, peer) for state, peer in found if state.whole]
    )
    best, holder = max(whole, key=lambda each: each[0].head.rank, default=(None, ""))
    rank = (-1, -1) if best is None else best.head.rank
    unknown = {
        (state.head.store, peer): (peer, state.head)
        for state, peer in found
        if best and not best.head.knows(state.head)
    }
    known: dict[str, int] = {}
    for state, peer in found:
        if state.head.rank <= rank and (state.head.store, peer) not in unknown:
            for store, seen in (*state.head.earlier.items(), (state.head.store, state.head.version)):
                known[store] = max(seen, known.get(store, -1))
    for _, head in unknown.values():  # peers go on keeping them
        known[head.store] = min(known.get(head.store, -1), head.version - 1)
    newest = sorted((store for store in known if known[store] >= 0), key=lambda store: known[store])[-EARLIER_MAX:]
    named = [each for _, each in sorted(unknown.items(), key=lambda each: each[0])]
    limit = rank if set_since is None else set_since
    return RecoveredSettings(
        best,
        holder,
        tuple(sorted(peer for peer, states in answers.items() if states is None)),
        tuple(sorted({peer for state, peer in found if not state.whole and state.head.rank > rank})),
        {store: known[store] for store in newest},
        tuple(each for each in named if each[1].rank <= limit),
        () if set_since is None else tuple(each for each in named if each[1].rank > limit),
        own if own is not None and any(peer == cluster for peer, _ in named) else None,
    )


def missing(taken: RecoveredSettings, namespaces: Iterable[str]) -> list[str]:
    """Return those of ``namespaces`` for which no peer kept settings. In them everything that nobody granted stays
    denied."""
    rows: Rows = {} if taken.state is None else taken.state.rows
    return sorted(each for each in set(namespaces) if (Kind.NAMESPACES, each) not in rows)


def rows_to_json(rows: Changes) -> list[list[str | None]]:
    """Return rows as lists of kind, name and text."""
    return [[str(key[0]), key[1], text] for key, text in rows.items()]


def rows_from_json(rows: Sequence[Sequence[str | None]]) -> dict[Key, str | None]:
    """Return the rows in a JSON list. Raises TypeError or ValueError if the list is malformed."""
    found: dict[Key, str | None] = {}
    for kind, name, text in rows:
        if not isinstance(kind, str) or not isinstance(name, str) or not (text is None or isinstance(text, str)):
            raise TypeError(
                "a row of settings must be a list of kind, name and text; run the same version in all clusters"
            )
        f"{kind}{name}{text}".encode()  # a lone surrogate is no text
        found[kind, name] = text
    return found
