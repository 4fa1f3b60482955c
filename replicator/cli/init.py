"""``replicator init``: writes a first topology, by asking, or by options alone.

What an option says is not asked for. An answer that the topology's reader refuses is asked for again; an option that
it refuses is an error.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Generic, TypeVar

import typer

from replicator.cli.json_types import InitAnswer
from replicator.cli.output import Shown

if TYPE_CHECKING:
    from replicator.operating.first_topology import Brokers, FirstCluster, FirstTopology

ANSWER_CHARS_MAX: Final = 10_000
_DATA: Final = "./data"

_T = TypeVar("_T")
_ChoiceT = TypeVar("_ChoiceT", bound=StrEnum)

Written = Annotated[Path, typer.Argument(metavar="FILE", help="Topology file to write.")]
NamedClusters = Annotated[
    list[str] | None,
    typer.Option(
        "--cluster",
        "-c",
        metavar="NAME[=HOST:PORT]",
        help="Name of a cluster and address of its worker; give this option for each cluster.",
    ),
]
Data = Annotated[
    str | None,
    typer.Option("--data", metavar="DIR", help="Directory for data: each cluster gets DIR/NAME, relative to FILE."),
]
LinksBetween = Annotated[
    str | None,
    typer.Option(
        "--links",
        metavar="all|one-way|none",
        help="Links: between all clusters, both ways; from the first one to each other, one way; or none.",
    ),
]
CopyEngine = Annotated[
    str | None,
    typer.Option(
        "--engine",
        metavar="embedded|spark",
        help="Engine that copies over the links: embedded, the workers themselves; or spark, which needs Java.",
    ),
]
BrokersOf = Annotated[
    list[str] | None,
    typer.Option(
        "--pulsar",
        metavar="NAME=SERVICE_URL,ADMIN_URL",
        help="Apache Pulsar brokers that the worker of cluster NAME runs beside; may be given once for each cluster.",
    ),
]
Yes = Annotated[
    bool, typer.Option("--yes", "-y", help="Ask no questions, and use defaults for everything that no option sets.")
]
Overwrite = Annotated[bool, typer.Option("--force", help="Overwrite the file if it exists.")]


def init(
    written: Written = Path("topology.yaml"),
    cluster: NamedClusters = None,
    data: Data = None,
    links: LinksBetween = None,
    engine: CopyEngine = None,
    pulsar: BrokersOf = None,
    yes: Yes = False,
    force: Overwrite = False,
) -> Shown[InitAnswer]:
    """Write a topology with comments, by asking, or with --yes by options alone. Asks no worker, and starts none."""
    from replicator.operating.first_topology import Engine, FirstTopology, Links, checked

    if written.exists() and not force:
        raise typer.BadParameter(f"{written} is there already; name another file, or write over it with --force")
    links_given = None if links is None else _choice(links, Links, "--links")
    engine_given = None if engine is None else _choice(engine, Engine, "--engine")
    clusters = _clusters(written, cluster or (), data, _brokers(pulsar or ()), asking=not yes)
    if len(clusters) < 2:
        links_given = links_given or Links.NONE
    elif links_given is None:
        links_given = Links.ALL if yes else _asked("Links", "all", _EnumReader(Links))
    if engine_given is None:
        engine_given = Engine.EMBEDDED if yes else _asked("What carries the links", "embedded", _EnumReader(Engine))
    first = FirstTopology(clusters, links_given, engine_given)
    try:
        text = checked(first, written)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    _write(written, text, force=force)
    return _shown(written, first)


def _shown(written: Path, first: FirstTopology) -> Shown[InitAnswer]:
    following = [f"replicator {command} -f {shlex.quote(str(written))}" for command in ("plan", "doctor", "up")]
    value: InitAnswer = {
        "file": str(written),
        "clusters": [each.name for each in first.clusters],
        "links": [f"{a}>{b}" for pair in first.pairs() for a, b in _ways(pair, first)],
        "engine": str(first.engine),
        "next": following,
    }
    meaning = ("what it means, and what deserves a second look", "what this machine lacks", "start all workers here")
    lines = [f"  {command}  # {what}" for command, what in zip(following, meaning, strict=True)]
    notes = [
        f"warning: {each.address} of {each.name} is no loopback address: its worker does not start without `auth`, or "
        "`insecure: true`; see docs/security.md"
        for each in first.clusters
        if each.is_exposed
    ]
    return Shown(value, "\n".join((f"{written} is written. Next:", *lines)), notes=notes)


def _ways(pair: tuple[str, str], first: FirstTopology) -> Sequence[tuple[str, str]]:
    return (pair, pair[::-1]) if first.links == "all" else (pair,)


def _clusters(
    written: Path, given: Sequence[str], data: str | None, brokers: dict[str, Brokers], *, asking: bool
) -> list[FirstCluster]:
    """Return the clusters that options name or the user answers, with their further fields."""
    from replicator.operating.first_topology import DEFAULT_NAMES, FirstCluster, default_address

    named = [(name, address) for name, _, address in (each.partition("=") for each in given)]
    if not named:
        names = list(DEFAULT_NAMES)
        if asking:
            names = _asked("Names of the clusters", ", ".join(DEFAULT_NAMES), lambda text: _names(written, text))
        named = [(name, "") for name in names]
    if unknown := [name for name in brokers if name not in dict(named)]:
        known = ", ".join(name for name, _ in named)
        raise typer.BadParameter(f"--pulsar: there is no cluster {unknown[0]!r}; there are: {known}")
    clusters: list[FirstCluster] = []
    for index, (name, address) in enumerate(named):
        start = FirstCluster(name, address or default_address(index), f"{data or _DATA}/{name}", brokers.get(name))
        if asking:
            fixed = {
                field
                for field, is_given in (("address", address), ("data", data), ("brokers", name in brokers or given))
                if is_given
            }
            start = _asked_cluster(written, clusters, start, fixed)
        clusters.append(start)
    return clusters


def _asked_cluster(written: Path, before: Sequence[FirstCluster], start: FirstCluster, fixed: set[str]) -> FirstCluster:
    """Ask for a cluster, except its ``fixed`` fields."""
    from replicator.operating.first_topology import ADMIN_URL, SERVICE_URL, Brokers, Kind

    def tried(cluster: FirstCluster) -> FirstCluster:
        _try(written, (*before, cluster))
        return cluster

    cluster = start
    if "brokers" not in fixed:
        kind = _asked(f"{start.name}: its kind", "embedded", _EnumReader(Kind))
        if kind is Kind.PULSAR:
            alone = replace(cluster, address="127.0.0.1:1", data="./alone")
            urls = Brokers(SERVICE_URL, ADMIN_URL)

            def service(text: str) -> Brokers:
                brokers = replace(urls, service_url=text)
                _try(written, (replace(alone, brokers=brokers),))
                return brokers

            def admin(text: str) -> Brokers:
                brokers = replace(urls, admin_url=text)
                _try(written, (replace(alone, brokers=brokers),))
                return brokers

            urls = _asked(f"{start.name}: the brokers' service URL", SERVICE_URL, service)
            urls = _asked(f"{start.name}: the brokers' admin URL", ADMIN_URL, admin)
            cluster = replace(cluster, brokers=urls)
    if "address" not in fixed:
        usual = replace(cluster, data=f"./alone-{start.name}") if "data" not in fixed else cluster
        address = _asked(
            f"{start.name}: HOST:PORT of its worker",
            start.address,
            lambda text: tried(replace(usual, address=text)).address,
        )
        cluster = replace(cluster, address=address)
    if "data" not in fixed:
        cluster = _asked(
            f"{start.name}: directory of its data", start.data, lambda text: tried(replace(cluster, data=text))
        )
    return cluster


def _try(written: Path, clusters: Sequence[FirstCluster]) -> None:
    """Raise :class:`ValueError` with the problems that the topology's reader finds in these clusters."""
    from replicator.operating.first_topology import FirstTopology, Links, checked

    checked(FirstTopology(clusters, Links.NONE), written)


def _names(written: Path, text: str) -> list[str]:
    from replicator.operating.first_topology import CLUSTERS_MAX, FirstCluster, default_address

    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names or len(names) > CLUSTERS_MAX:
        raise ValueError(f"name 1 to {CLUSTERS_MAX} clusters, with commas between them")
    _try(written, [FirstCluster(name, default_address(index), f"./{index}") for index, name in enumerate(names)])
    return names


def _brokers(given: Sequence[str]) -> dict[str, Brokers]:
    from replicator.operating.first_topology import Brokers

    found: dict[str, Brokers] = {}
    for each in given:
        name, named, urls = each.partition("=")
        service_url, both, admin_url = urls.partition(",")
        if not named or not both or name in found:
            raise typer.BadParameter(
                f"--pulsar: {each[:80]!r} is not NAME=SERVICE_URL,ADMIN_URL, or cluster NAME is given twice: give each "
                "cluster beside brokers once"
            )
        found[name] = Brokers(service_url, admin_url)
    return found


@dataclass(frozen=True, slots=True)
class _EnumReader(Generic[_ChoiceT]):
    """Reads one of the values of an enumeration; raises :class:`ValueError`."""

    choices: type[_ChoiceT]

    def known(self) -> str:
        return ", ".join(str(each) for each in self.choices)

    def __call__(self, text: str) -> _ChoiceT:
        if text not in set(self.choices):
            possible_values = ", ".join(f"'{each}'" for each in self.choices)
            raise ValueError(f"{text[:80]!r} is not one of {possible_values}")
        return self.choices(text)


def _choice(text: str, choices: type[_ChoiceT], option: str) -> _ChoiceT:
    try:
        return _EnumReader(choices)(text)
    except ValueError as error:
        raise typer.BadParameter(f"{option}: {error}") from None


def _asked(question: str, usual: str, read: Callable[[str], _T]) -> _T:
    """Ask a question, and return the answer as ``read`` makes it; an empty line means the usual one. Ask again while
    ``read`` refuses it.
    """
    if isinstance(read, _EnumReader):
        question = f"{question} ({read.known()})"
    while True:
        print(f"{question} [{usual}]: ", end="", file=sys.stderr, flush=True)
        line = sys.stdin.readline(ANSWER_CHARS_MAX)
        if not line:
            print(file=sys.stderr)
            raise typer.BadParameter(
                "the input ended before all questions were answered: answer them by options, and give --yes, which "
                "takes defaults for all others"
            )
        try:
            return read(line.strip() or usual)
        except ValueError as error:
            print(f"  {error}", file=sys.stderr)


def _write(path: Path, text: str, *, force: bool) -> None:
    """Write the file as a whole or not at all; over an existing file only with ``force``."""
    try:
        aside = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            aside.write_text(text, encoding="utf-8")
            if not force and path.exists():  # somebody was faster than the answers
                raise FileExistsError(17, "it is there by now")
            aside.replace(path)
        finally:
            aside.unlink(missing_ok=True)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise typer.BadParameter(f"{path} cannot be written: {reason}") from None
