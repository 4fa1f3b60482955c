"""Reading a topology file: from YAML to checked values.

Every problem of a file is found in one reading and reported as ``FILE:LINE: field.path: what is wrong; what to do``.
Passwords never stand in a message.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, Final, TypeVar, get_args

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from replicator.topology.apache import BROKER_SUFFIX, PULSAR_KIND
from replicator.topology.auth import AuthSettings, TlsPolicy
from replicator.topology.fields import (
    SPARK,
    Cluster,
    MetricsSettings,
    PipelineSettings,
    PolicySettings,
    StoreSettings,
    SyncSettings,
    WatchdogSettings,
    merged,
)
from replicator.topology.links import Link, LinkSettings
from replicator.topology.located_yaml import FieldPath, LocatedYaml, YamlError, read_yaml
from replicator.topology.sections import Section
from replicator.topology.traces import TracesSettings
from replicator.topology.values import Topology, TopologyError
from snapshots.limits import CLUSTER_CHARS_MAX

TOPOLOGY_FILE_BYTES_MAX: Final = 1024 * 1024
"""A file for a thousand clusters has a tenth of it; anything larger was named by mistake."""
CLUSTER_NAME_CHARS_MAX: Final = CLUSTER_CHARS_MAX
"""The name stands in every block header and in the key of every high-water mark."""

_CLUSTER_NAME = re.compile(rf"[A-Za-z0-9_-]{{1,{CLUSTER_NAME_CHARS_MAX}}}")
_SECTIONS: Final = (
    *("clusters", "links", "pipeline", "sync", "store", "policies", "auth", "tls"),
    *("metrics", "traces", "watchdog"),
)
_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})


def load_topology(path: Path) -> Topology:
    """Read and check a topology file; raise :class:`TopologyError` with every problem that it has."""
    return parse_topology(_read_text(path), path)


def parse_topology(text: str, path: Path) -> Topology:
    """Return the topology that a text describes, as if it stood in the file ``path``. Raise like
    :func:`load_topology`.
    """
    try:
        document = read_yaml(text)
    except YamlError as error:
        raise TopologyError([f"{path}:{error.line}: {error.text}"]) from None
    return _Reader(path, document).topology()


def _read_text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(TOPOLOGY_FILE_BYTES_MAX + 1)
    except FileNotFoundError:
        raise TopologyError([f"{path}: no such file"]) from None
    except (OSError, ValueError) as error:
        raise TopologyError([f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}"]) from None
    if len(content) > TOPOLOGY_FILE_BYTES_MAX:
        raise TopologyError([f"{path}: larger than {TOPOLOGY_FILE_BYTES_MAX} bytes; is it a topology file?"])
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise TopologyError([f"{path}:{line}: not UTF-8 text"]) from None


_SectionT = TypeVar("_SectionT", bound=Section)

_MISSING: Final = {
    "address": "add `address: HOST:PORT`, where this cluster's worker serves HTTP",
    "data": "add `data: DIRECTORY`, where this cluster's worker keeps its log",
    "service_url": "add `service_url: pulsar://HOST:PORT`, where the brokers speak the binary protocol",
    "admin_url": "add `admin_url: http://HOST:PORT`, where the brokers serve their admin API",
    "certificate": "add `certificate: FILE`, with the certificates that the worker shows, in PEM",
    "key": "add `key: FILE`, with the private key of the certificate, in PEM",
}


class _Reader:
    """Turns a document into a topology and collects the problems on the way."""

    def __init__(self, path: Path, document: LocatedYaml) -> None:
        self._path = path
        self._document = document
        self._problems: list[tuple[int, str]] = []
        self._tls_required = False
        self._names_at_brokers: dict[str, str] = {}
        """Clusters beside brokers, by the name that these have for their own cluster."""

    def topology(self) -> Topology:
        for where, line, first_line in self._document.duplicates:
            self._problem(where, f"given twice; the first is in line {first_line}", line)
        root = self._document.value
        if root is None:
            self._problem((), "the file is empty; it needs at least `clusters`")
            root = {}
        elif not isinstance(root, Mapping):
            self._problem((), f"must be a mapping with `clusters` and `links`, not {_kind(root)}")
            root = {}
        elif not root.get("clusters"):
            self._problem(("clusters",), "no clusters; name at least one")
        self._refuse_unknown((), root, _SECTIONS)
        tls = self._section(TlsPolicy, ("tls",), root.get("tls")) or TlsPolicy()
        self._tls_required = tls.required
        clusters = tuple(self._with_policies(self._clusters(root.get("clusters")), root))
        links = tuple(self._links(root.get("links"), root.get("clusters")))
        self._refuse_shared_places(clusters)
        auth = self._section(AuthSettings, ("auth",), root.get("auth")) or AuthSettings()
        self._check_credentials(clusters, auth)
        topology = Topology(
            clusters,
            links,
            self._section(PipelineSettings, ("pipeline",), root.get("pipeline")) or PipelineSettings(),
            self._section(SyncSettings, ("sync",), root.get("sync")) or SyncSettings(),
            self._section(StoreSettings, ("store",), root.get("store")) or StoreSettings(),
            self._path,
            auth,
            tls,
            self._section(MetricsSettings, ("metrics",), root.get("metrics")) or MetricsSettings(),
            self._section(TracesSettings, ("traces",), root.get("traces")) or TracesSettings(),
            self._section(WatchdogSettings, ("watchdog",), root.get("watchdog")) or WatchdogSettings(),
        )
        self._refuse_sql_without_spark(topology, root.get("links"))
        if self._problems:
            self._problems.sort(key=lambda problem: problem[0])
            raise TopologyError([text for _line, text in self._problems])
        return topology

    def _clusters(self, raw: object) -> Iterator[Cluster]:
        if not self._is_mapping(("clusters",), raw):
            return
        for name, fields in raw.items():  # type: ignore[attr-defined]
            where = ("clusters", name)
            if not _CLUSTER_NAME.fullmatch(name):
                self._problem(
                    where,
                    f"a cluster's name has 1 to {CLUSTER_NAME_CHARS_MAX} ASCII letters, digits, - or _",
                )
            cluster = self._section(
                Cluster, where, {} if fields is None else fields, name=name, tls_required=self._tls_required
            )
            if cluster is not None:
                if cluster.database_file is not None and "database" in cluster.model_fields_set:
                    self._problem((*where, "database_file"), "stands beside `database`; leave one of them out")
                self._check_kind_fields(where, cluster)
                yield cluster

    def _check_kind_fields(self, where: FieldPath, cluster: Cluster) -> None:
        """Refuse fields that a cluster of the other kind needs, and require those of its own kind."""
        if cluster.kind != PULSAR_KIND:
            if cluster.apache is not None:
                self._problem((*where, "apache"), "is for `kind: pulsar` alone; set that, or take `apache` out")
            return
        if cluster.apache is None:
            self._problem(
                (*where, "apache"),
                "missing; `kind: pulsar` needs `apache: {service_url: pulsar://HOST:PORT, admin_url: http://HOST:PORT}`",
            )
        elif (other := self._names_at_brokers.setdefault(str(cluster.name_at_brokers), cluster.name)) != cluster.name:
            self._problem(
                (*where, "apache"),
                f"the brokers of {other} have the same name for their cluster, {cluster.name_at_brokers}; set "
                "`cluster_name` of both to the names that Pulsar has",
            )
        if len(cluster.name) + len(BROKER_SUFFIX) > CLUSTER_NAME_CHARS_MAX:
            chars = CLUSTER_NAME_CHARS_MAX - len(BROKER_SUFFIX)
            self._problem(where, f"with `kind: pulsar` a cluster's name has at most {chars} characters")
        for field in ("pulsar", "pulsar_tls", "advertised", "broker_entry_metadata"):
            if field in cluster.model_fields_set:
                self._problem(
                    (*where, field), "has no use with `kind: pulsar`, whose clients use the brokers; take it out"
                )

    def _with_policies(self, clusters: Iterator[Cluster], root: Mapping[str, Any]) -> Iterator[Cluster]:
        """Return the clusters with the policies of the file's top level below their own."""
        usable = self._section(PolicySettings, ("policies",), root.get("policies")) is not None
        for cluster in clusters:  # their own were checked where they stand
            if usable and not self._problems:
                both = merged(root["policies"], root["clusters"][cluster.name].get("policies") or {})
                yield cluster.model_copy(update={"policies": PolicySettings.model_validate(_without_empty(both))})
            else:
                yield cluster

    def _links(self, raw: object, clusters: object) -> Iterator[Link]:
        if raw is None:
            return
        if not isinstance(raw, list):
            self._problem(("links",), f"must be a list, not {_kind(raw)}; start each link with `- `")
            return
        names = list(clusters) if isinstance(clusters, Mapping) else []
        first_lines: dict[str, int] = {}
        for index, fields in enumerate(raw):
            where: FieldPath = ("links", index)
            for link in self._link(where, fields, names):
                if link.key in first_lines:
                    remedy = "; give one of them another `name`" if set(fields) - {"between", "from", "to"} else ""
                    self._problem(where, f"the link {link} is given already in line {first_lines[link.key]}{remedy}")
                    continue
                first_lines[link.key] = self._document.line(where)
                yield link

    def _link(self, where: FieldPath, raw: object, names: list[str]) -> list[Link]:
        """Return one item of ``links`` as one directed link or two; none if it has a problem."""
        forms = "write {between: [A, B]} for both ways or {from: A, to: B} for one"
        if not isinstance(raw, Mapping):
            self._problem(where, f"must be a mapping, not {_kind(raw)}; {forms}")
            return []
        ends = ("between", "from", "to")
        if self._refuse_unknown(where, raw, (*ends, *LinkSettings.model_fields)):
            return []
        given = [end for end in ends if end in raw]
        if given not in (["between"], ["from", "to"]):
            self._problem(where, f"has {' and '.join(given or raw) or 'no fields'}; {forms}")
            return []
        two = self._link_ends(where, raw, names, forms)
        settings = self._section(LinkSettings, where, {key: raw[key] for key in raw if key not in ends})
        if two is None or settings is None:
            return []
        link = settings.link(*two)
        return [link, link.reverse] if "between" in raw else [link]

    def _link_ends(
        self, where: FieldPath, raw: Mapping[str, Any], names: list[str], forms: str
    ) -> tuple[str, str] | None:
        if "between" in raw:
            ends = raw["between"]
            if not isinstance(ends, list) or len(ends) != 2:
                self._problem((*where, "between"), f"must be a list of two clusters; {forms}")
                return None
            paths: list[FieldPath] = [(*where, "between", 0), (*where, "between", 1)]
        else:
            ends = [raw["from"], raw["to"]]
            paths = [(*where, "from"), (*where, "to")]
        known = [self._is_cluster(path, end, names) for path, end in zip(paths, ends, strict=True)]
        if not all(known):  # a list first: both ends are reported
            return None
        if ends[0] == ends[1]:
            self._problem(where, f"links {ends[0]} to itself; name two clusters")
            return None
        return ends[0], ends[1]

    def _is_cluster(self, where: FieldPath, end: object, names: list[str]) -> bool:
        if not isinstance(end, str):
            self._problem(where, f"must be a cluster's name, not {_kind(end)}")
        elif end not in names:
            listed = ", ".join(names[:20]) or "none"
            self._problem(where, f"there is no cluster {end[:80]!r}{_suggestion(end, names)}; there are: {listed}")
        else:
            return True
        return False

    def _refuse_sql_without_spark(self, topology: Topology, raw: object) -> None:
        """Refuse SQL in links that Spark does not carry: only Spark knows SQL."""
        for index, fields in enumerate(raw if isinstance(raw, list) else ()):
            if not isinstance(fields, Mapping) or (fields.get("engine") or topology.pipeline.engine) == SPARK:
                continue
            for key in ("where", "select"):
                if fields.get(key):
                    self._problem(
                        ("links", index, key),
                        "needs Spark; write `engine: spark` at this link, or in `pipeline` for all",
                    )

    def _check_credentials(self, clusters: Sequence[Cluster], auth: AuthSettings) -> None:
        """Refuse clusters that lack a certificate which ``tls.required`` needs, or a token to ask other workers."""
        for cluster in clusters:
            where: FieldPath = ("clusters", cluster.name)
            if cluster.tls_required and cluster.tls is None:
                self._problem((*where, "tls"), "missing; `tls.required` needs a certificate and its key")
            by_certificate = auth.certificates is not None and cluster.tls_required
            if auth.enabled and not (auth.token_file or cluster.token_file or by_certificate):
                self._problem(
                    ("auth", "token_file"),
                    f"missing; the worker of {cluster.name} needs a token to ask other workers, and its own pipeline",
                )
                return

    def _refuse_shared_places(self, clusters: Sequence[Cluster]) -> None:
        """Refuse two workers that share an address or a directory, or whose directories lie one in the other."""
        for cluster in clusters:
            for field in ("pulsar", "pulsar_tls"):
                place = getattr(cluster, field)
                if place is not None and _same_address(cluster.address, place):
                    self._problem(
                        ("clusters", cluster.name, field),
                        f"{place} is the address already, which serves both protocols; leave `{field}` out",
                    )
            if cluster.pulsar_tls is not None and cluster.tls is None:
                self._problem(("clusters", cluster.name, "pulsar_tls"), "needs `tls` with a certificate and its key")
            if cluster.pulsar and cluster.pulsar_tls and _same_address(cluster.pulsar, cluster.pulsar_tls):
                self._problem(("clusters", cluster.name, "pulsar_tls"), f"{cluster.pulsar} is `pulsar` already")
        real = {cluster.name: Path(os.path.realpath(cluster.data)) for cluster in clusters}
        for first, second in combinations(clusters, 2):
            for field, ours_at, theirs_at in _shared_addresses(first, second):
                self._problem(
                    ("clusters", second.name, field),
                    f"{ours_at} is also {theirs_at} of {first.name}; give each worker its own port",
                )
            ours, theirs = real[second.name], real[first.name]
            if ours == theirs or ours in theirs.parents or theirs in ours.parents:
                relation = "is also the data directory" if ours == theirs else "overlaps the data directory"
                self._problem(
                    ("clusters", second.name, "data"),
                    f"{second.data} {relation} of {first.name}; give each cluster its own",
                )

    def _section(self, model: type[_SectionT], where: FieldPath, raw: object, **given: object) -> _SectionT | None:
        if raw is None:
            return None
        if not self._is_mapping(where, raw):
            return None
        fields = self._known_fields(model, where, raw, given)  # type: ignore[arg-type]
        try:
            return model.model_validate({**fields, **given}, context=self._path.absolute().parent)
        except ValidationError as error:
            for detail in error.errors(include_url=False):
                self._problem((*where, *detail["loc"]), _explain(detail))
            return None

    def _known_fields(
        self, model: type[Section], where: FieldPath, raw: Mapping[str, Any], given: Mapping[str, object]
    ) -> dict[str, Any]:
        """Return the fields of ``raw`` that the model knows, also in inner sections; leave out an empty section."""
        known = [name for name in model.model_fields if name not in given]
        self._refuse_unknown(where, raw, known)
        fields = {key: value for key, value in raw.items() if key in known}
        for key in list(fields):
            inner = _section_of(model.model_fields[key].annotation)
            if inner is None:
                continue
            if self._is_mapping((*where, key), fields[key]):
                fields[key] = self._known_fields(inner, (*where, key), fields[key], {})
            else:
                del fields[key]
        return fields

    def _is_mapping(self, where: FieldPath, raw: object) -> bool:
        if raw is None or isinstance(raw, Mapping):
            return raw is not None
        self._problem(where, f"must be a mapping, not {_kind(raw)}")
        return False

    def _refuse_unknown(self, where: FieldPath, raw: Mapping[str, object], known: Sequence[str]) -> bool:
        unknown = [key for key in raw if key not in known]
        for key in unknown:
            remedy = _suggestion(key, known) or f"; the keys here are: {', '.join(known)}"
            self._problem((*where, key), f"unknown key{remedy}")
        return bool(unknown)

    def _problem(self, where: FieldPath, text: str, line: int | None = None) -> None:
        line = line or self._document.line(where)
        dotted = "".join(f"[{part}]" if isinstance(part, int) else f".{part[:80]}" for part in where).lstrip(".")
        self._problems.append((line, f"{self._path}:{line}: {dotted}{': ' if dotted else ''}{text}"))


_PLACES: Final = ("address", "pulsar", "pulsar_tls")


def _shared_addresses(first: Cluster, second: Cluster) -> Iterator[tuple[str, str, str]]:
    """Yield the addresses that the second cluster shares with the first: its own field, the address, and a word for the
    first's field.
    """
    for field in _PLACES:
        for other in _PLACES:
            ours, theirs = getattr(second, field), getattr(first, other)
            if ours is not None and theirs is not None and _same_address(ours, theirs):
                yield field, ours, "the address" if other == "address" else f"`{other}`"


def _same_address(first: str, second: str) -> bool:
    first_host, _, first_port = first.rpartition(":")
    second_host, _, second_port = second.rpartition(":")
    if first_port != second_port:
        return False
    hosts = {first_host.lower(), second_host.lower()}
    return len(hosts) == 1 or hosts <= _LOOPBACK


def _section_of(annotation: Any) -> type[Section] | None:
    """Return the section that a field holds, if it holds one or none."""
    for each in (annotation, *get_args(annotation)):
        if isinstance(each, type) and issubclass(each, Section):
            return each
    return None


def _without_empty(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields without sections that are named and left empty."""
    return {key: value for key, value in fields.items() if value is not None}


def _suggestion(word: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(word[:80], known, n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def _kind(value: object) -> str:
    """Return the type that YAML gave a value, in words. The value itself is not shown, because it may hold a
    password.
    """
    match value:
        case None:
            return "nothing"
        case bool():
            return f"{str(value).lower()} (put it in quotes if it is text)"
        case int() | float():
            return "a number (put it in quotes if it is text)"
        case str():
            return "text"
        case list():
            return "a list"
        case _:
            return "a mapping"


def _explain(detail: ErrorDetails) -> str:
    limits = detail.get("ctx", {})
    match detail["type"]:
        case "missing":
            field = str(detail["loc"][-1])
            return f"missing; {_MISSING.get(field, f'add `{field}`: docs/reference/topology.md says what it is')}"
        case "value_error":
            return str(limits["error"])
        case "string_type" | "path_type" | "is_instance_of" | "literal_error":
            return f"must be text, not {_kind(detail['input'])}"
        case "tuple_type":
            return f"must be a list, not {_kind(detail['input'])}"
        case "int_type" | "int_from_float":
            value = detail["input"]
            shown = value if isinstance(value, float) else _kind(value).partition(" (")[0]
            return f"must be a whole number, not {shown}"
        case "float_type":
            return f"must be a number, not {_kind(detail['input']).partition(' (')[0]}"
        case "greater_than_equal":
            return f"{detail['input']} is too small; the least is {limits['ge']}"
        case "less_than_equal":
            return f"{detail['input']} is too large; the most is {limits['le']}"
        case _:
            return detail["msg"]
