"""Putting back the settings that a new store takes over from other clusters.

Invariants (DESIGN §3): 13, what is not put back is named. Permissions are those of one version: whatever was granted in
the new store before is replaced.

1. Topics with policies of their own that are not here are made, without messages. Links bring what others published.
2. All rows, the version from which this store counts on, and the note for the status are one transaction.
3. A row that this version cannot read is left out and named.
4. What is put back counts as set when somebody set it in an earlier store, and not now.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import structlog

from replicator.engine.cluster_settings.own import PAUSED, PAUSED_TEXT, TAKEN
from replicator.engine.cluster_settings.state import (
    SET_BY_OPERATORS,
    Key,
    Kind,
    Rows,
    SettingsHead,
    Taken,
    missing,
)
from replicator.engine.engine import Engine
from replicator.engine.errors import EngineError, NotAllowedError
from replicator.engine.log.store_tables import TOPIC_KEY
from replicator.engine.policies import PolicyOverrides
from replicator.engine.policies_codec import decode_overrides
from replicator.engine.topic_name import SCHEME, check_tenant, parse_namespace, parse_topic
from replicator.engine.topics.grants import Grants
from replicator.engine.topics.namespace_policies import NamespacePolicies, decode_namespace_policies
from replicator.engine.topics.partitions import PartitionedTopic

TOPICS_AT_ONCE: Final = 1_000
"""Topics that are made together: they share a commit."""
NAMED_MAX: Final = 1_000
"""Most names in each list of the note: a status page has to stay readable."""

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Read:
    """Rows as values, and the names of rows that cannot be read."""

    tenants: list[str] = field(default_factory=list)
    namespaces: dict[str, NamespacePolicies] = field(default_factory=dict)
    partitioned: dict[str, PartitionedTopic] = field(default_factory=dict)
    policies: dict[str, PolicyOverrides] = field(default_factory=dict)
    grants: dict[str, Grants] = field(default_factory=dict)
    paused: set[str] = field(default_factory=set)
    """Keys of paused links."""
    refused: list[str] = field(default_factory=list)


async def put_back(
    engine: Engine, taken: Taken, namespaces: Iterable[str] = (), *, silent: Sequence[str] = (), late: bool = False
) -> dict[str, Any]:
    """Put the settings of ``taken`` into a new store, and return the note that says so.

    ``namespaces`` are those in which messages were taken back; if nobody kept their settings, the note names them.
    ``silent`` are clusters that were silent before, and still are. ``late`` says that the worker serves already.

    Raises the errors of the store, and :class:`NotAllowedError` if it is late and somebody just set something. Then at
    most topics without messages were made.
    """
    own = engine.cluster_settings
    if taken.state is None:
        note = _note(taken, _Read(), missing(taken, namespaces), engine, silent)
        await own.settle()
        note |= {"set_at": own.set_at, "set_in": own.set_in}  # other values later mean that somebody set something
        await engine.remember(TAKEN, note)
        return note
    head, notes = taken.state.head, list[dict[str, Any]]()

    async def write() -> None:
        notes.append(await _put_back(engine, taken, head, missing(taken, namespaces), silent, late=late))

    await own.put_back(write)
    (note,) = notes
    told = log.warning if note["silent"] or note["missing"] or note["refused"] or note["passed_over"] else log.info
    told("settings of an earlier store were put back", cluster=engine.cluster, **_counted(note))
    return note


async def _put_back(
    engine: Engine, taken: Taken, head: SettingsHead, without: Sequence[str], silent: Sequence[str], *, late: bool
) -> dict[str, Any]:
    assert taken.state is not None
    rows = taken.state.rows
    read = _read(rows)
    absent = [name for name in read.policies if name not in engine.loaded.by_name]
    for first in range(0, len(absent), TOPICS_AT_ONCE):
        names = absent[first : first + TOPICS_AT_ONCE]
        await asyncio.gather(*(engine.making.make(parse_topic(name)) for name in names))
    for name in [each for each in read.partitioned if each in engine.loaded.by_name]:
        read.refused.append(f"{Kind.PARTITIONED} {name}")
        del read.partitioned[name]
    index, grants = engine.catalog.index, engine.catalog.grants
    here = {each.name: each.partitions for each in index.all_partitioned()}
    grown = [each for each in read.partitioned.values() if each.partitions > here.get(each.name, 0)]
    own = engine.cluster_settings
    if late and any(kind in SET_BY_OPERATORS for kind, _ in own.changed.keys):
        raise NotAllowedError("settings of an earlier store are not put back: somebody just set something here")
    note = _note(taken, read, without, engine, silent)
    writes: list[tuple[str, bytes, bytes | None]] = [
        *(("tenants", name.encode(), b"") for name in read.tenants),
        *(("namespaces", name.encode(), rows[Kind.NAMESPACES, name].encode()) for name in read.namespaces),
        *(("partitioned", each.name.encode(), each.encode()) for each in grown),
        *(("grants", name.encode(), None) for name in grants.all() if name not in read.grants),
        *(("grants", name.encode(), given.encode()) for name, given in read.grants.items()),
        *(
            ("meta", f"{PAUSED}{link}".encode(), json.dumps(link in read.paused).encode())
            for link in {*own.paused_links(), *read.paused}
        ),
        ("meta", TAKEN.encode(), json.dumps(note).encode()),
    ]
    for name, topic in engine.loaded.by_name.items():
        if topic.policies.own is not None or name in read.policies:
            text = rows.get((Kind.POLICIES, name)) if name in read.policies else None
            writes.append(("policies", TOPIC_KEY.pack(topic.topic_id), None if text is None else text.encode()))
    count_from = max(own.version, head.version), {**own.earlier, **taken.earlier}, note["set_at"], note["set_in"]
    writes.append(own.version_row(*count_from, of_set=None))
    await engine.writer.put_many(writes)
    for tenant in read.tenants:
        index.add_tenant(tenant)
    for name, policies in read.namespaces.items():
        engine.loaded.namespace_changed(index.add_namespace(name, policies))
    for each in grown:
        engine.loaded.tell(index.set_partitioned(each))
    grants.replace_all(read.grants)
    for name, topic in engine.loaded.by_name.items():
        topic.policies.take_over(read.policies.get(name))
    own.begin_at(*count_from)
    return note


def _note(taken: Taken, read: _Read, without: Sequence[str], engine: Engine, silent: Sequence[str]) -> dict[str, Any]:
    """Return what the status says about settings that were taken back."""
    head = None if taken.state is None else taken.state.head
    return {
        "at_ms": engine.writer.wall_clock_ms(),
        "peer": taken.peer,
        "store": "" if head is None else head.store,
        "version": 0 if head is None else head.version,
        "set_at": 0 if head is None else head.rank[0],
        "set_in": "" if head is None else head.set_in or head.store,
        "permissions": sorted(read.grants)[:NAMED_MAX],
        "silent": sorted({*taken.silent, *silent}),
        "damaged": list(taken.damaged),
        "passed_over": [newer_of(peer, each) for peer, each in taken.passed_over],
        "paused": sorted(read.paused)[:NAMED_MAX],
        "missing": list(without)[:NAMED_MAX],
        "refused": sorted(read.refused)[:NAMED_MAX],
    }


def newer_of(peer: str, head: SettingsHead) -> dict[str, Any]:
    """Return what a note says of settings that do not count: the peer that keeps them, their store and version."""
    return {"peer": peer, "store": head.store, "version": head.version}


def _counted(note: dict[str, Any]) -> dict[str, Any]:
    return {name: len(value) if name == "permissions" else value for name, value in note.items() if name != "at_ms"}


def _read(rows: Rows) -> _Read:
    read = _Read()
    for key, text in rows.items():
        try:
            _read_row(read, key, text)
        except (EngineError, ValueError, KeyError, TypeError, AttributeError):
            read.refused.append(f"{key[0]} {key[1]}")
    return read


def _read_row(read: _Read, key: Key, text: str) -> None:
    kind, name = key
    if kind == Kind.TENANTS:
        read.tenants.append(check_tenant(name))
    elif kind == Kind.NAMESPACES:
        read.namespaces[parse_namespace(name)] = decode_namespace_policies(text.encode())
    elif kind == Kind.PARTITIONED:
        read.partitioned[str(parse_topic(name))] = PartitionedTopic.decode(name, text.encode())
    elif kind == Kind.POLICIES:
        read.policies[str(parse_topic(name))] = decode_overrides(text.encode())
    elif kind == Kind.GRANTS:
        if name.startswith(SCHEME):
            parse_topic(name)
        read.grants[name] = Grants.decode(text.encode())
    elif kind == Kind.LINKS:
        if text != PAUSED_TEXT:
            raise ValueError("this version knows nothing of a link but its pause")
        read.paused.add(name)
    else:
        raise ValueError(f"this version knows no settings of kind {kind!r}")
