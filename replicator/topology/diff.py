"""Differences between two topologies, the workers that can take them over while they run, and digests of topologies.

Pure. This module owns the words in which ``plan``, ``apply`` and a worker's log say what changes.

1. Clusters are compared by name, links by their key (``A>B`` or ``A>B#name``), everything else field by field, in the
   form in which it stands in the file. Order means nothing, but among the links of one pair: there the first that lets
   a topic through carries it.
2. A worker takes most changes under way. It does not take others for its own address, data directory, database and
   the store's limit: those are bound or opened once. The same fields of another cluster it does take.
3. Passwords never stand in a change: databases are compared as they are, and shown masked.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Final

from replicator.topology.fields import Cluster, flattened
from replicator.topology.links import Link
from replicator.topology.scalars import format_size
from replicator.topology.sections import Section
from replicator.topology.values import Topology, dump

CLUSTER_ADDED: Final = "cluster-added"
CLUSTER_REMOVED: Final = "cluster-removed"
CLUSTER_CHANGED: Final = "cluster-changed"
POLICY_CHANGED: Final = "policy-changed"
LINK_ADDED: Final = "link-added"
LINK_REMOVED: Final = "link-removed"
LINK_CHANGED: Final = "link-changed"
LINKS_REORDERED: Final = "links-reordered"
SETTING_CHANGED: Final = "setting-changed"

DIGEST_CHARS: Final = 32
"""128 bits: texts that are not the same do not have the same by accident."""
_NEWER: Final = ("auth", "tls", "metrics", "traces", "watchdog")
"""Sections that workers of earlier versions do not know: they count where something stands there."""
_DEFAULT: Final = "default"
_TAKEN_UNDER_WAY: Final = frozenset(
    {
        ("pipeline", "engine"),
        ("pipeline", "master"),
        ("pipeline", "driver"),
        ("pipeline", "batch"),
        ("pipeline", "conf"),
        ("sync", "snapshot_interval_ms"),
        ("sync", "snapshot_timeout_ms"),
        ("sync", "update_interval_ms"),
        ("sync", "in_use_timeout_ms"),
        ("auth", "tokens"),
        ("auth", "passwords"),
        ("auth", "superusers"),
        ("auth", "metrics"),
        ("auth", "permissions"),
        ("metrics", "topics"),
        ("metrics", "subscriptions"),
        ("metrics", "old_names"),
        ("traces", "sample"),
        ("traces", "per_second"),
        ("watchdog", "end_after"),
        ("store", "wait_for_states_seconds"),
        ("store", "on_empty_store"),  # these two are for the next start
        ("store", "ask_peers_seconds"),
    }
)
"""Settings that a running worker takes over. A setting that is not listed, such as a new one, needs a restart."""
_OF_OWN_WORKER: Final = frozenset(
    {
        "data",
        "database_file",
        "token_file",
        "apache",  # names many files, which lie elsewhere on each machine
    }
)
"""Fields of a cluster that concern its own worker alone. The digest leaves them out."""
_CLUSTER_FIELDS_TOLD: Final = (
    set(Cluster.model_fields) - _OF_OWN_WORKER - {"name", "database", "policies", "tls_required"}
)


@dataclass(frozen=True, slots=True)
class Change:
    """One difference of two topologies. ``before`` and ``after`` are the values in the files, or None if there is no
    value."""

    kind: str
    subject: str
    """Name of a cluster, a link or a section."""
    field: str = ""
    before: Any = None
    after: Any = None
    ends: frozenset[str] = frozenset()
    """The clusters at whose workers it changes something; empty for all."""
    restarts: frozenset[str] = frozenset()
    """The clusters whose workers take it only by a restart."""

    def concerns(self, cluster: str) -> bool:
        return not self.ends or cluster in self.ends

    @property
    def in_digest(self) -> bool:
        """Return whether this change alters the topology's digest."""
        if self.kind == CLUSTER_CHANGED:
            return self.field not in _OF_OWN_WORKER
        return self.kind != SETTING_CHANGED or _without_places(self.before) != _without_places(self.after)

    def as_json(self) -> Any:
        """Return the change as a ``TopologyChange`` of :mod:`replicator.operating.json_types`.

        The command line imports that module without this package.
        """
        return {
            "kind": self.kind,
            "subject": self.subject,
            "field": self.field or None,
            "before": self.before,
            "after": self.after,
            "restart": sorted(self.restarts),
            "text": str(self),
        }

    def __str__(self) -> str:
        match self.kind:
            case "cluster-added":
                return f"cluster {self.subject}: added, at {self.after['address']}"
            case "cluster-removed":
                return f"cluster {self.subject}: removed"
            case "link-added":
                how = ", ".join(f"{name} {_shown(value)}" for name, value in flattened(self.after))
                return f"link {self.subject}: added{f' ({how})' if how else ''}"
            case "link-removed":
                return f"link {self.subject}: removed"
            case "links-reordered":
                return f"links {self.subject}: asked in the order {_shown(self.after)}, which was {_shown(self.before)}"
            case "link-changed":
                what = f"link {self.subject}: {self.field}"
            case "policy-changed":
                what = f"policies of {self.subject}: {self.field}"
            case "cluster-changed":
                what = f"cluster {self.subject}: {self.field}"
            case _:
                what = f"{self.subject}.{self.field}"
        return f"{what}: {_shown(self.before)} → {_shown(self.after)}"


def diff(before: Topology, after: Topology) -> tuple[Change, ...]:
    """Everything that differs, clusters first; empty if the two say the same."""
    return (*_clusters(before, after), *_links(before, after), *_sections(before, after))


def diff_of_worker(before: Topology, after: Topology, cluster: str) -> tuple[Change, ...]:
    """Return the changes from ``before``, the topology that the worker of ``cluster`` runs, to ``after``.

    Changed paths of other clusters' files are left out: their own workers report them.
    """
    return tuple(
        change
        for change in diff(before, after)
        if change.kind != CLUSTER_CHANGED or change.subject == cluster or change.field not in _OF_OWN_WORKER
    )


def words(changes: tuple[Change, ...], clusters: tuple[str, ...] = ()) -> list[str]:
    """Return one line for each change. A change of policies that is equal in several clusters is one line."""
    lines: dict[tuple[str, str, str], list[str]] = {}
    for change in changes:
        if change.kind == POLICY_CHANGED:
            lines.setdefault((change.field, _shown(change.before), _shown(change.after)), []).append(change.subject)
        else:
            lines[(str(change), "", "")] = []
    said: list[str] = []
    for (what, old, new), whose in lines.items():
        if not whose:
            said.append(what)
        else:
            everyone = len(clusters) > 1 and set(clusters) <= set(whose)
            names = "all clusters" if everyone else ", ".join(whose)
            said.append(f"policies of {names}: {what}: {old} → {new}")
    return said


def refusals(changes: tuple[Change, ...], cluster: str) -> list[str]:
    """Return why the running worker of ``cluster`` cannot take the changes: the field and the remedy, a line each."""
    problems: list[str] = []
    for change in changes:
        if change.kind == CLUSTER_REMOVED and change.subject == cluster:
            problems.append(f"clusters.{cluster}: the file does not name this cluster any more; stop its worker")
        elif cluster in change.restarts:
            where = f"clusters.{change.subject}" if change.kind == CLUSTER_CHANGED else change.subject
            problems.append(
                f"{where}.{change.field}: {_shown(change.before)} → {_shown(change.after)} needs a restart of the "
                f"worker of {cluster}; restart it with the new file, or take the change back"
            )
    return problems


def digest(topology: Topology) -> str:
    """Return a digest that differs between topologies. Texts that only look different have equal digests.

    Data directories are left out: relative ones are elsewhere on every machine. Passwords are left out: it is shown.
    Defaults are left out, so that workers of different versions agree about a file that uses nothing new.
    """
    shown = masked(topology)
    said: dict[str, Any] = {
        section: _without_places(getattr(shown, section).model_dump(mode="python", exclude_defaults=True))
        for section in _section_names(topology)
        if section not in _NEWER or getattr(shown, section).model_fields_set
    }
    said["clusters"] = {
        cluster.name: {
            **cluster.model_dump(mode="json", include=_CLUSTER_FIELDS_TOLD, exclude_defaults=True),
            "database": cluster.database_masked,
            "policies": cluster.policies.changed(),
        }
        for cluster in topology.clusters
    }
    said["links"] = {
        f"{source}>{destination}": [[link.name, link.as_written()] for link in links]
        for (source, destination), links in _pairs(topology).items()
    }
    text = json.dumps(said, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:DIGEST_CHARS]


def _without_places(said: Any) -> Any:
    """Return files by their names alone, since they are elsewhere on every machine."""
    if isinstance(said, Mapping):
        return {key: _without_places(value) for key, value in said.items()}
    return said.name if isinstance(said, Path) else said


def portable_text(topology: Topology) -> str:
    """Return the topology as YAML that may be shown and read elsewhere.

    It has no passwords. Directories below the file's are relative to it.
    """
    beside = None if topology.path is None else topology.path.absolute().parent
    clusters = []
    shown = masked(topology)
    for cluster in shown.clusters:
        if beside is not None and cluster.data.is_relative_to(beside):
            clusters.append(cluster.model_copy(update={"data": cluster.data.relative_to(beside)}))
        else:
            clusters.append(cluster)
    return dump(replace(shown, clusters=tuple(clusters)))


def moved(topology: Topology, old: Path, new: Path) -> Topology:
    """Return the topology as if its file lay in folder ``new``; each path in folder ``old`` moves with it."""
    sections = {name: _moved(getattr(topology, name), old, new) for name in _section_names(topology)}
    return replace(topology, clusters=tuple(_moved(each, old, new) for each in topology.clusters), **sections)


def _moved(value: Any, old: Path, new: Path) -> Any:
    if isinstance(value, Section):
        return value.model_copy(update={name: _moved(each, old, new) for name, each in value})
    return new / value.relative_to(old) if isinstance(value, Path) and value.is_relative_to(old) else value


def masked(topology: Topology) -> Topology:
    """Return the topology without passwords."""
    clusters = (cluster.model_copy(update={"database": cluster.database_masked}) for cluster in topology.clusters)
    pipeline = topology.pipeline.model_copy(update={"conf": topology.pipeline.conf_masked})
    return replace(topology, clusters=tuple(clusters), pipeline=pipeline)


# Clusters.


def _clusters(before: Topology, after: Topology) -> Iterator[Change]:
    old = {cluster.name: cluster for cluster in before.clusters}
    new = {cluster.name: cluster for cluster in after.clusters}
    for name in old.keys() - new.keys():
        yield Change(CLUSTER_REMOVED, name, before=_cluster(old[name]))
    for name, cluster in new.items():
        if name not in old:
            yield Change(CLUSTER_ADDED, name, after=_cluster(cluster))
        else:
            yield from _cluster_changes(old[name], cluster, _neighbours(after, name) | {name})


def _cluster_changes(old: Cluster, new: Cluster, neighbours: frozenset[str]) -> Iterator[Change]:
    own = frozenset({new.name})
    for field in Cluster.model_fields:
        if field not in ("name", "policies", "tls_required") and getattr(old, field) != getattr(new, field):
            shown = "database_masked" if field == "database" else field
            was, now = (_text(getattr(each, shown)) for each in (old, new))
            ends = neighbours if field in ("address", "kind") else own
            yield Change(CLUSTER_CHANGED, new.name, field, was, now, ends=ends, restarts=own)
    policies = dict(flattened(old.policies.changed())), dict(flattened(new.policies.changed()))
    for field, was, now in _fields(*policies):
        yield Change(POLICY_CHANGED, new.name, field, was, now, ends=own)


def _text(value: object) -> str | None:
    if isinstance(value, tuple):
        return ", ".join(value) or None
    return None if value is None else str(value)


def _cluster(cluster: Cluster) -> dict[str, Any]:
    return {
        "address": cluster.address,
        "data": str(cluster.data),
        "database": cluster.database_masked,
        "policies": cluster.policies.changed(),
        **cluster.places(),
    }


def _neighbours(topology: Topology, name: str) -> frozenset[str]:
    return frozenset(link.source for link in topology.links_to(name))


# Links.


def _links(before: Topology, after: Topology) -> Iterator[Change]:
    old, new = _by_key(before), _by_key(after)
    for key, link in old.items():
        if key not in new:
            yield Change(LINK_REMOVED, str(link), before=link.as_written(), ends=_ends(link))
    for key, link in new.items():
        if key not in old:
            yield Change(LINK_ADDED, str(link), after=link.as_written(), ends=_ends(link))
            continue
        written = dict(flattened(old[key].as_written())), dict(flattened(link.as_written()))
        for field, was, now in _fields(*written):
            yield Change(LINK_CHANGED, str(link), field, was, now, ends=_ends(link))
    pairs_before = _pairs(before)
    for pair, links in _pairs(after).items():
        stayed = [link.key for link in pairs_before.get(pair, ()) if link.key in new]
        now = [link.key for link in links]
        if now != [*stayed, *(key for key in now if key not in old)]:  # new ones come last unless it is said
            yield Change(LINKS_REORDERED, " → ".join(pair), before=stayed, after=now, ends=frozenset(pair))


def _by_key(topology: Topology) -> dict[str, Link]:
    return {link.key: link for link in topology.links}


def _ends(link: Link) -> frozenset[str]:
    return frozenset({link.source, link.destination})


def _pairs(topology: Topology) -> dict[tuple[str, str], list[Link]]:
    pairs: dict[tuple[str, str], list[Link]] = {}
    for link in topology.links:
        pairs.setdefault((link.source, link.destination), []).append(link)
    return pairs


# Sections.


def _sections(before: Topology, after: Topology) -> Iterator[Change]:
    everyone = frozenset(after.names)
    for section in _section_names(after):
        old, new = getattr(before, section).model_dump(), getattr(after, section).model_dump()
        for field, was, now in _fields(old, new):
            if field == "conf":
                was, now = before.pipeline.conf_masked, after.pipeline.conf_masked
            restarts = frozenset() if (section, field) in _TAKEN_UNDER_WAY else everyone
            if field in ("size_max", "message_size_max", "segment"):
                was, now = format_size(was), format_size(now)
            yield Change(SETTING_CHANGED, section, field, was, now, restarts=restarts)


def _section_names(topology: Topology) -> list[str]:
    return [each.name for each in fields(topology) if isinstance(getattr(topology, each.name), Section)]


def _fields(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    for field in dict.fromkeys((*old, *new)):
        was, now = old.get(field), new.get(field)
        if was != now:
            yield field, was, now


def _shown(value: object) -> str:
    if value is None:
        return _DEFAULT
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, list):
        return f"[{', '.join(map(str, value))}]"
    return str(value)
