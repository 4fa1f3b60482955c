"""Putting back the settings that a new store takes over from other clusters.

Invariants (DESIGN §3): 13, what is not put back is named. Permissions are those of one version: whatever was granted in
the new store before is replaced.

1. Topics with policies of their own that are not here are made, without messages. Links bring what others published.
   A topic that this cluster deleted after these settings were told is not made, and its settings are left out. A
   version of settings is at least the wall clock at which it was made, so it is compared with the time of the deletion.
2. All rows, the version from which this store counts on, and the note for the status are one transaction.
3. A row that this version cannot read is left out and named, and so are policies of a topic that may not be made here.
4. What is put back counts as set when somebody set it in an earlier store, and not now.
5. Nobody changes a row meanwhile. A change that waited then changes the settings that were put back.
6. Settings of this store that are replaced, and that the new ones never knew, are kept beside those of other clusters.
7. What an earlier note names stays in the note until the settings here know it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import compress
from types import MappingProxyType
from typing import Any, Final

import structlog

from replicator.engine.cluster_settings.kept import SettingsRefused
from replicator.engine.cluster_settings.own import PAUSED, PAUSED_TEXT, TAKEN
from replicator.engine.cluster_settings.state import (
    SET_BY_OPERATORS,
    KeptState,
    Key,
    Kind,
    RecoveredSettings,
    Rows,
    SettingsHead,
    SettingsMessage,
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
from replicator.engine.topics.partitions import PartitionedTopic, base_name

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
    engine: Engine,
    taken: RecoveredSettings,
    namespaces: Iterable[str] = (),
    *,
    silent: Sequence[str] = (),
    unless_set_since: tuple[int, str] | None = None,
    deleted_at: Mapping[str, int] = MappingProxyType({}),
    on_put_back: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Put the settings of ``taken`` into a store, and return the note that says so.

    ``namespaces`` are those in which messages were taken back; if nobody kept their settings, the note names them.
    ``silent`` are clusters that were silent before, and still are. ``unless_set_since`` says that the worker serves
    already: it has the version and the store in which somebody last set something.
    ``deleted_at`` has, for topics that this cluster deleted, as other clusters remember, the time of the deletion.
    ``on_put_back`` is called once the settings hold, even if the caller was cancelled meanwhile.

    Raises the errors of the store, and :class:`NotAllowedError` if somebody set something since. Then at most topics
    without messages were made.
    """
    own = engine.cluster_settings
    if taken.state is None:
        await own.settle()
        note = note_without(taken, engine, taken.silent, missing(taken, namespaces))
        note |= {"set_at": own.set_at, "set_in": own.set_in}  # other values later mean that somebody set something
        note |= {"own_version": own.version}
        await engine.remember(TAKEN, note)
        return note
    if taken.replaced is not None:
        await store_inactive(engine, taken.replaced)
    head, notes = taken.state.head, list[dict[str, Any]]()

    async def write() -> None:
        deleted = [name for name, at_ms in deleted_at.items() if at_ms > head.version]
        without = missing(taken, namespaces)
        notes.append(await _put_back(engine, taken, head, deleted, without, silent, unless_set_since))
        on_put_back()

    await engine.catalog.alone(lambda: own.put_back(write))
    (note,) = notes
    told = log.warning if note["silent"] or note["missing"] or note["refused"] or note["passed_over"] else log.info
    told("settings of an earlier store were put back", cluster=engine.cluster, **_counted(note))
    return note


async def store_inactive(engine: Engine, state: KeptState) -> None:
    """Keep settings of this cluster that do not count and that nobody else may keep, beside those of other clusters."""
    with suppress(SettingsRefused):  # there are more than are kept
        await engine.kept_settings.take(SettingsMessage(state.head, None, state.rows))


async def _put_back(
    engine: Engine,
    taken: RecoveredSettings,
    head: SettingsHead,
    deleted: Iterable[str],
    without: Sequence[str],
    silent: Sequence[str],
    unless_set_since: tuple[int, str] | None,
) -> dict[str, Any]:
    assert taken.state is not None
    rows = taken.state.rows
    read = await asyncio.to_thread(_read, rows)
    for name in [each.name for each in read.partitioned.values() if _is_deleted_since(engine, each)]:
        del read.partitioned[name]
        read.grants.pop(name, None)
        for partition in [each for each in read.policies if base_name(each) == name]:
            del read.policies[partition]
    for name in deleted:
        read.policies.pop(name, None)
        read.grants.pop(name, None)
    absent = [name for name in read.policies if name not in engine.loaded.by_name]
    for first in range(0, len(absent), TOPICS_AT_ONCE):
        names = absent[first : first + TOPICS_AT_ONCE]
        refused = await asyncio.gather(*(_is_refused(engine, name) for name in names))
        for name in compress(names, refused):
            read.refused.append(f"{Kind.POLICIES} {name}")
            del read.policies[name]
    written = await asyncio.to_thread(_writes, read, rows)
    plain = [name for name in read.partitioned if name in engine.loaded.by_name or engine.making.is_being_made(name)]
    for name in plain:
        read.refused.append(f"{Kind.PARTITIONED} {name}")
        del read.partitioned[name]
    index, grants = engine.catalog.index, engine.catalog.grants
    here = {each.name: each for each in index.all_partitioned()}
    grown = [
        each
        for each in read.partitioned.values()
        if each.name not in here or each.partitions > here[each.name].partitions
    ]
    own = engine.cluster_settings
    set_since = unless_set_since != (own.set_at, own.set_in) or any(
        kind in SET_BY_OPERATORS for kind, _ in own.changed.keys
    )
    if unless_set_since is not None and set_since:
        raise NotAllowedError(
            "the earlier settings of this cluster, which another cluster kept, are not put back: somebody has just "
            "changed settings here, and these count. Look at the settings, and set again what they lack"
        )
    note = _note(taken, head, read, without, engine, silent)
    writes: list[tuple[str, bytes, bytes | None]] = [
        *written,
        *(("partitioned", each.name.encode(), each.encode()) for each in grown),
        *(("grants", name.encode(), None) for name in grants.all() if name not in read.grants),
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
    earlier = dict(taken.earlier)
    for store, version in own.earlier.items() if taken.replaced is None else ():
        earlier[store] = max(version, earlier.get(store, -1))
    count_from = max(own.version, head.version), earlier, note["set_at"], note["set_in"]
    writes.append(own.version_row(*count_from, of_set=None))
    # From here on nobody makes a plain topic of such a name: a store with both could not be opened.
    changes = [change for each in grown for change in index.set_partitioned(each)]
    try:
        await engine.writer.put_many(writes)
    except EngineError:
        for each in grown:
            if each.name in here:
                index.set_partitioned(here[each.name])
            else:
                index.remove_partitioned(each.name)
        raise
    for tenant in read.tenants:
        index.add_tenant(tenant)
    spaces = [index.add_namespace(name, policies) for name, policies in read.namespaces.items()]
    engine.loaded.tell(changes)
    grants.replace_all(read.grants)
    for name, topic in engine.loaded.by_name.items():
        topic.policies.take_over(read.policies.get(name))
    own.begin_at(*count_from)
    for space in spaces:  # clients have their turn meanwhile, so all else is done
        await engine.loaded.namespace_changed(space)
    return note


async def _is_refused(engine: Engine, name: str) -> bool:
    """Make a topic, and return whether that is not allowed, as under the name of a partitioned topic."""
    try:
        await engine.making.make(parse_topic(name))
    except NotAllowedError:
        return True
    return False


def _writes(read: _Read, rows: Rows) -> list[tuple[str, bytes, bytes | None]]:
    """Return the rows that depend on nothing that is here. It may take long, so it does not run on the event loop."""
    return [
        *(("tenants", name.encode(), b"") for name in read.tenants),
        *(("namespaces", name.encode(), rows[Kind.NAMESPACES, name].encode()) for name in read.namespaces),
        *(("grants", name.encode(), given.encode()) for name, given in read.grants.items()),
    ]


def _is_deleted_since(engine: Engine, whole: PartitionedTopic) -> bool:
    """Return whether this cluster deleted a partitioned topic that is not here, later than its settings were told."""
    deleted = engine.origin_stores.partitioned_deleted(whole.name).get(engine.cluster, 0)
    return deleted > whole.known.get(engine.cluster, 0) and not engine.partitioned.count(whole.name)


def note_without(
    taken: RecoveredSettings, engine: Engine, silent: Sequence[str], without: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the note after nothing was put back: an earlier note, with ``silent`` and with what ``taken`` names.

    ``without`` are further namespaces without any kept settings.
    """
    before = engine.store.meta(TAKEN) or _note(taken, None, _Read(), (), engine, ())
    return {
        **before,
        "silent": list(silent),
        "damaged": sorted({*before["damaged"], *taken.damaged}),
        "missing": sorted({*before["missing"], *without})[:NAMED_MAX],
        **_named(taken, engine, engine.cluster_settings.head()),
    }


def _note(
    taken: RecoveredSettings,
    head: SettingsHead | None,
    read: _Read,
    without: Sequence[str],
    engine: Engine,
    silent: Sequence[str],
) -> dict[str, Any]:
    """Return what the status says about settings that were taken back, in the version ``head``."""
    return {
        "at_ms": engine.writer.wall_clock_ms(),
        "peer": taken.peer,
        "store": "" if head is None else head.store,
        "version": 0 if head is None else head.version,
        "set_at": 0 if head is None else head.rank[0],
        "set_in": "" if head is None else head.set_in or head.store,
        "own_version": max(engine.cluster_settings.version, 0 if head is None else head.version),
        "permissions": sorted(read.grants)[:NAMED_MAX],
        "silent": sorted({*taken.silent, *silent}),
        "damaged": list(taken.damaged),
        "paused": sorted(read.paused)[:NAMED_MAX],
        "missing": list(without)[:NAMED_MAX],
        "refused": sorted(read.refused)[:NAMED_MAX],
        **_named(taken, engine, head),
    }


def _named(taken: RecoveredSettings, engine: Engine, head: SettingsHead | None) -> dict[str, Any]:
    """Return the settings that a note names because they do not count: those of an earlier note that ``head``, the
    settings in effect, does not know, and those of ``taken``."""
    before: Mapping[str, Any] = engine.store.meta(TAKEN) or {}
    named: dict[str, list[dict[str, Any]]] = {}
    seen = set[tuple[str, str]]()
    for kind, found in (("passed_over", taken.passed_over), ("newer", taken.newer)):
        rows: list[dict[str, Any]] = [
            {"peer": peer, "store": each.store, "version": each.version, "set_at": each.rank[0], "set_in": each.set_in}
            for peer, each in found
        ]
        seen |= {(row["peer"], row["store"]) for row in rows}
        named[kind] = rows
    for kind, rows in named.items():
        for row in before.get(kind, ()):
            if (row["peer"], row["store"]) not in seen and not _is_known(row, engine, head):
                seen.add((row["peer"], row["store"]))
                rows.append(row)
        del rows[NAMED_MAX:]
    return named


def _is_known(row: Mapping[str, Any], engine: Engine, head: SettingsHead | None) -> bool:
    """Return whether ``head``, the settings in effect, came after the settings that ``row`` of a note names."""
    of = SettingsHead(engine.cluster, row["store"], row["version"], "", {}, row.get("set_at"), row.get("set_in", ""))
    if head is None:
        return False
    if head.store == row["store"]:  # its versions go on, and it does not know those of another state of the disk
        return of.rank[0] <= head.earlier.get(of.set_in or of.store, -1)
    return head.knows(of)


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
            raise ValueError(
                f"another cluster kept a setting of link {name} that this version does not know; it knows only that a "
                "link is paused: upgrade this cluster to the version that wrote it"
            )
        read.paused.add(name)
    else:
        raise ValueError(
            f"another cluster kept settings of kind {kind!r}, which this version does not know: upgrade this cluster "
            "to the version that wrote them"
        )
