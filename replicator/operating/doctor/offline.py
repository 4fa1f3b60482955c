"""Checks of a topology file and of the files that it names, without network, peers and data directory.

An installer runs them before it changes anything (``replicator doctor --offline``). The start checks among them are
those of a starting worker. Findings name the line and the field of the file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from replicator.operating.doctor.certificates import look_at_certificates
from replicator.operating.doctor.findings import Finding, Level
from replicator.operating.start_checks import REFUSALS, START_CHECKS, Setup
from replicator.topology import Cluster, Topology, TopologyError, database_of
from replicator.topology.database_file import has_parts
from replicator.topology.located_yaml import FieldPath, read_yaml
from replicator.topology.sections import Section

FILES: Final = "files"
"""Name of the check that every file can be read."""
EXPECTED: Final = "expected"
"""Name under which the findings on fields that the installer relies on are shown."""
_EVERY_ADDRESS: Final = frozenset({"0.0.0.0", "[::]", "[::0]"})  # noqa: S104  # nosec B104


class NotExpectable(Exception):
    """Error for an expectation that has no form KEY=VALUE, or whose key is not known."""


@dataclass(frozen=True, slots=True)
class Expectation:
    """Value that a field of the file has to have."""

    key: str
    value: str


def parse_expectation(text: str) -> Expectation:
    """Read ``KEY=VALUE``; raises :class:`NotExpectable`."""
    key, equals, value = text.partition("=")
    if not equals or not value or key not in _EXPECTABLE:
        raise NotExpectable(f"{text!r} is not KEY=VALUE with one of these keys: {', '.join(_EXPECTABLE)}")
    return Expectation(key, value)


async def examine_offline(
    topology: Topology, cluster: Cluster, expected: Sequence[Expectation] = (), made_later: Sequence[Path] = ()
) -> list[Finding]:
    """Return the findings on one cluster's worker.

    A file in a directory of ``made_later`` may be missing. Then what is in it is not looked at.
    """
    lines = _lines_of(topology)
    found = list(_look_at_files(topology, cluster, lines, made_later))
    if not any(each.level is Level.ERROR for each in found):  # else they would say the same again
        setup = Setup(topology, cluster)
        waits = _waits(cluster, made_later)
        for check in START_CHECKS:
            if check.offline and not (waits and check.name == "certificate"):
                found.append(await _checked(setup, check.name, check.passed, check.remedy, check.run))
        if not waits:
            found += look_at_certificates(topology, cluster)
    found += (_judged(topology, cluster, each, lines) for each in expected)
    return found


def as_lines(findings: Sequence[Finding]) -> str:
    """Return what is wrong, a line each, and how many findings are fine: for a log."""
    wrong = [each for each in findings if each.level is not Level.OK]
    lines = [f"{each.level.value}: {each.check} of {each.subject}: {each.text} → {each.remedy}" for each in wrong]
    return "\n".join([*lines, f"{len(findings) - len(wrong)} checks passed, {len(wrong)} did not"])


async def _checked(setup: Setup, name: str, passed: str, remedy: str, run: Callable[[Setup], object]) -> Finding:
    subject = setup.cluster.name
    try:
        await run(setup)  # type: ignore[misc]
    except REFUSALS as error:
        return Finding(name, subject, Level.ERROR, str(error), remedy)
    return Finding(name, subject, Level.OK, passed)


def _look_at_files(
    topology: Topology, cluster: Cluster, lines: Callable[[FieldPath], str], made_later: Sequence[Path]
) -> Iterator[Finding]:
    """Yield a finding for each file that the worker of ``cluster`` reads."""
    named = {
        **_paths_in(topology.auth, ("auth",)),
        **_paths_in(topology.tls, ("tls",)),
        **_paths_in(cluster, ("clusters", cluster.name)),
    }
    for where, path in named.items():
        if where[-1] == "data" or (_is_made_later(path, made_later) and not path.exists()):
            continue
        problem = None if where[-1] == "database_file" and has_parts(path) else _unreadable(path)
        if problem is None and where[-1] == "database_file":
            problem = _wrong_database(cluster)
        if problem is None:
            yield Finding(FILES, cluster.name, Level.OK, f"{path} can be read")
        else:
            remedy = "put the file in place, readable for the worker's user, or correct the field"
            yield Finding(FILES, cluster.name, Level.ERROR, f"{lines(where)}: {problem}", remedy)


def _paths_in(section: Section, where: FieldPath) -> Mapping[FieldPath, Path]:
    found: dict[FieldPath, Path] = {}
    for name in type(section).model_fields:
        value = getattr(section, name)
        if isinstance(value, Section):
            found |= _paths_in(value, (*where, name))
        elif isinstance(value, Path):
            found[(*where, name)] = value
    return found


def _unreadable(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            return None if file.read(1) else f"{path} is empty"
    except OSError as error:
        return f"{path}: {error.strerror or error}"


def _wrong_database(cluster: Cluster) -> str | None:
    try:
        database_of(cluster)
    except TopologyError as error:
        return str(error).removeprefix(f"clusters.{cluster.name}.database_file: ")
    return None


def _waits(cluster: Cluster, made_later: Sequence[Path]) -> bool:
    """Return whether files of the cluster's certificate are still to be made."""
    files = () if cluster.tls is None else _paths_in(cluster.tls, ()).values()
    return any(_is_made_later(path, made_later) and not path.exists() for path in files)


def _is_made_later(path: Path, made_later: Sequence[Path]) -> bool:
    return any(path.is_relative_to(each) for each in made_later)


def _lines_of(topology: Topology) -> Callable[[FieldPath], str]:
    """Return what tells a field's place: ``FILE:LINE: field.path``."""
    path = topology.path
    document = None if path is None else read_yaml(path.read_text("utf-8-sig"))

    def place(where: FieldPath) -> str:
        dotted = ".".join(map(str, where))
        return dotted if document is None else f"{path}:{document.line(where)}: {dotted}"

    return place


# What an installer may rely on: the field, what it says, and whether that is what is wanted.

_Said = tuple[FieldPath, str, bool]


def _judged(topology: Topology, cluster: Cluster, expected: Expectation, lines: Callable[[FieldPath], str]) -> Finding:
    where, said, fits = _EXPECTABLE[expected.key](topology, cluster, expected.value)
    text = f"{lines(where)}: {said or 'missing'}"
    if fits:
        return Finding(EXPECTED, cluster.name, Level.OK, text)
    return Finding(EXPECTED, cluster.name, Level.ERROR, text, _REMEDIES[expected.key].format(expected.value))


def _listen(_topology: Topology, cluster: Cluster, value: str) -> _Said:
    host, _, port = (cluster.listen or "").rpartition(":")
    return ("clusters", cluster.name, "listen"), cluster.listen or "", host in _EVERY_ADDRESS and port == value


def _data(_topology: Topology, cluster: Cluster, value: str) -> _Said:
    inside = cluster.data != Path(value) and cluster.data.is_relative_to(value)
    return ("clusters", cluster.name, "data"), str(cluster.data), inside


def _port(field: str) -> Callable[[Topology, Cluster, str], _Said]:
    def judge(_topology: Topology, cluster: Cluster, value: str) -> _Said:
        said = getattr(cluster, field) or ""
        return ("clusters", cluster.name, field), said, said.rpartition(":")[2] == value

    return judge


def _database_file(_topology: Topology, cluster: Cluster, value: str) -> _Said:
    said = "" if cluster.database_file is None else str(cluster.database_file)
    return ("clusters", cluster.name, "database_file"), said, said == value


def _tls(_topology: Topology, cluster: Cluster, value: str) -> _Said:
    given = cluster.tls is not None
    return ("clusters", cluster.name, "tls"), str(cluster.tls or ""), given == (value == "true")


def _tls_ca(_topology: Topology, cluster: Cluster, value: str) -> _Said:
    ca = None if cluster.tls is None else cluster.tls.ca
    return ("clusters", cluster.name, "tls", "ca"), str(ca or ""), (ca is not None) == (value == "true")


def _tls_required(topology: Topology, _cluster: Cluster, value: str) -> _Said:
    said = str(topology.tls.required).lower()
    return ("tls", "required"), said, said == value


def _tls_trust(topology: Topology, _cluster: Cluster, value: str) -> _Said:
    trust = topology.tls.trust
    return ("tls", "trust"), str(trust or ""), (trust is not None) == (value == "true")


def _driver(topology: Topology, _cluster: Cluster, value: str) -> _Said:
    return ("pipeline", "driver"), topology.pipeline.driver, topology.pipeline.driver == value


_EXPECTABLE: Final[Mapping[str, Callable[[Topology, Cluster, str], _Said]]] = {
    "listen": _listen,
    "data": _data,
    "pulsar": _port("pulsar"),
    "pulsar_tls": _port("pulsar_tls"),
    "database_file": _database_file,
    "tls": _tls,
    "tls.ca": _tls_ca,
    "tls.required": _tls_required,
    "tls.trust": _tls_trust,
    "pipeline.driver": _driver,
}
_REMEDIES: Final[Mapping[str, str]] = {
    "listen": "write `listen: '[::]:{0}'`, the port to which the installation leads",
    "data": "write a directory in {0}, where the volume is",
    "pulsar": "write an address with the port {0}, to which the installation leads",
    "pulsar_tls": "write an address with the port {0}, to which the installation leads",
    "database_file": "write `database_file: {0}`, where the installation puts the database's URL",
    "tls": "give `tls` a certificate and its key if the installation has TLS ({0}), or take it out",
    "tls.ca": "write which authorities clients' certificates come from, as the installation wants them ({0})",
    "tls.required": "write `required: {0}` in the section `tls`, as the installation has it",
    "tls.trust": "write the authorities of the workers' certificates, as the installation has them ({0})",
    "pipeline.driver": "write `driver: {0}` in the section `pipeline`, as the installation has it",
}
