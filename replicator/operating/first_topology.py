"""The topology file that ``replicator init`` writes: from answers to a text with comments. Pure.

The text is read by the project's own reader before anybody writes it (:func:`checked`), so what is not right in an
answer is said in the reader's words. A commented line that begins with a field's name is an example: without its ``# ``
the file is still a topology. A test holds both.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import combinations
from pathlib import Path
from typing import Final

from replicator.topology import TopologyError
from replicator.topology.reader import parse_topology

FIRST_PORT: Final = 7101
DEFAULT_NAMES: Final = ("us-east", "eu-west")
SERVICE_URL: Final = "pulsar://127.0.0.1:6650"
ADMIN_URL: Final = "http://127.0.0.1:8080"
CLUSTERS_MAX: Final = 200
"""Limit of clusters in a file that is written from answers. Links between all of more clusters would not fit into a
topology file.
"""
_PLAIN: Final = re.compile(r"[A-Za-z./][A-Za-z0-9._/:-]*")
_WORDS_OF_YAML: Final = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})
_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})


class Links(StrEnum):
    """Links between the clusters."""

    ALL = "all"
    ONE_WAY = "one-way"
    NONE = "none"


class Engine(StrEnum):
    """Engine that carries the links."""

    EMBEDDED = "embedded"
    SPARK = "spark"


class Kind(StrEnum):
    """Kind of a cluster."""

    EMBEDDED = "embedded"
    PULSAR = "pulsar"


@dataclass(frozen=True, slots=True)
class Brokers:
    """Addresses of the brokers of an Apache Pulsar cluster."""

    service_url: str = SERVICE_URL
    admin_url: str = ADMIN_URL


@dataclass(frozen=True, slots=True)
class FirstCluster:
    """Answers about one cluster. With ``brokers``, its worker runs beside them."""

    name: str
    address: str
    data: str
    brokers: Brokers | None = None

    @property
    def is_exposed(self) -> bool:
        """Return whether its address is not a loopback one: a worker binds there only with ``auth``, or if it is told
        to.
        """
        return self.address.rpartition(":")[0].lower() not in _LOOPBACK


@dataclass(frozen=True, slots=True)
class FirstTopology:
    """All answers."""

    clusters: Sequence[FirstCluster]
    links: Links = Links.ALL
    engine: Engine = Engine.EMBEDDED

    def pairs(self) -> list[tuple[str, str]]:
        """Return the ends of the links: both ways with ``all``, else from the first cluster to each other."""
        names = [each.name for each in self.clusters]
        if self.links is Links.ALL:
            return list(combinations(names, 2))
        return [(names[0], name) for name in names[1:]] if self.links is Links.ONE_WAY else []


def default_address(index: int) -> str:
    """Return the default address on this machine of the cluster with that index."""
    return f"127.0.0.1:{FIRST_PORT + index}"


def checked(first: FirstTopology, path: Path) -> str:
    """Return the file's text, which the reader accepts. Raise :class:`ValueError` with one line that says what is
    wrong.
    """
    if len(first.clusters) > CLUSTERS_MAX:
        raise ValueError(
            f"{len(first.clusters)} clusters are more than the {CLUSTERS_MAX} that `replicator init` writes: add the "
            "others to the file by hand"
        )
    names = [each.name for each in first.clusters]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ValueError(f"the cluster {twice!r} is named twice: give each cluster a name of its own")
    text = written(first, path)
    try:
        text.encode()
        parse_topology(text, path)
    except UnicodeEncodeError:
        raise ValueError("an answer or an option is not UTF-8 text: type it again, in UTF-8") from None
    except TopologyError as error:
        problem = str(error).splitlines()[0]
        raise ValueError(problem.removeprefix(f"{path}:").partition(": ")[2] or problem) from None
    return text


def written(first: FirstTopology, path: Path) -> str:
    """Return the file's text, not checked."""
    return "\n".join(_lines(first, path.name)) + "\n"


def _lines(first: FirstTopology, name: str) -> Iterator[str]:
    shown = name if _PLAIN.fullmatch(name) else "FILE"
    yield "# A topology of replicator: the clusters, and the links between them. Every worker reads this same file."
    yield f"# `replicator plan -f {shown}` checks it and says what it means. All fields: docs/reference/topology.md."
    yield "# Commented lines that begin with a field's name are examples: take the `# ` away to set them."
    yield ""
    yield "clusters:"
    for number, cluster in enumerate(first.clusters):
        yield from _cluster(cluster, explained=not number)
    yield ""
    yield from _links(first)
    yield ""
    yield from _pipeline(first.engine)
    yield ""
    yield "# Limits of each worker's store."
    yield "store:"
    yield "  # How much each worker keeps at most. It is address space; the disk must have what is used of it."
    yield "  size_max: 64GiB"
    yield "  # The largest message. The same for all clusters, so that each can take what another one took."
    yield "  # message_size_max: 5MiB"
    yield ""
    yield "# Of all topics that have no policies of their own; a cluster may have `policies` too."
    yield "policies:"
    yield "  # What all subscriptions have consumed is kept that long, or up to that size; for ever without these."
    yield "  # retention: {age: 7d, size: 10GiB}"
    yield "  # Whether messages that a producer sends again are stored once."
    yield "  # deduplication: true"
    yield ""
    yield "# Who may do what. Without it nobody is asked, and workers bind to loopback alone: docs/security.md."
    yield "# auth: {superusers: [admin], tokens: {secret_key: ./secret.key}, token_file: ./worker.token}"


def _cluster(cluster: FirstCluster, *, explained: bool) -> Iterator[str]:
    """Yield the lines of a cluster. Only the first cluster has the comments."""
    yield f"  {_scalar(cluster.name)}:"
    if explained:
        yield "    # HOST:PORT where its worker serves HTTP and clients, and where the other workers reach it."
    yield f"    address: {_scalar(cluster.address)}"
    if cluster.is_exposed:
        yield "    # Where its worker binds, if that is another place (behind NAT, in a pod)."
        yield "    # listen: 0.0.0.0:7101"
        yield "    # Without `auth` a worker binds to loopback alone. Where the network keeps strangers out:"
        yield "    # insecure: true"
    if explained:
        yield "    # The directory of its log, relative to this file: of this worker alone, on a local disk."
    yield f"    data: {_scalar(cluster.data)}"
    if explained:
        yield "    # The index for people and tools: `embedded` is a PostgreSQL of the worker's own. Or instead of this"
        yield "    # line a file with postgresql://USER:PASSWORD@HOST/NAME, so that no password stands here:"
        yield "    # `database_file: ./database.url`."
    yield "    database: embedded"
    if cluster.brokers is not None:
        yield "    # Its clients use the brokers of an Apache Pulsar cluster, and the worker runs beside them."
        yield "    kind: pulsar"
        yield "    apache:"
        yield "      # Where the brokers, or their proxy, speak the binary protocol and serve the admin API."
        yield f"      service_url: {_scalar(cluster.brokers.service_url)}"
        yield f"      admin_url: {_scalar(cluster.brokers.admin_url)}"
        yield "      # What the worker shows to them: a token, a password, or a certificate."
        yield "      # auth: {token_file: ./pulsar.token}"
        yield "      # Only these namespaces or topics, as patterns."
        yield '      # topics: ["public/default"]'
    elif explained:
        yield "    # With `kind: pulsar` and `apache` a worker runs beside Apache Pulsar: docs/apache-pulsar.md."


def _links(first: FirstTopology) -> Iterator[str]:
    yield "# What is copied where: {between: [A, B]} is both ways, {from: A, to: B} one way. docs/links.md."
    pairs = first.pairs()
    if not pairs:
        yield "links: []"
        return
    yield "links:"
    both = first.links is Links.ALL
    for number, (source, destination) in enumerate(pairs):
        ends = (
            f"between: [{_scalar(source)}, {_scalar(destination)}]"
            if both
            else f"from: {_scalar(source)}\n    to: {_scalar(destination)}"
        )
        yield f"  - {ends}"
        if not number:
            yield "    # Only these namespaces or topics, as patterns; all without it."
            yield '    # topics: ["public/default"]'
            yield "    # Bytes a second on the wire at most."
            yield "    # rate: 50MiB"
            yield "    # Of what goes over the wire: none, lz4 or zstd."
            yield "    # compression: zstd"


def _pipeline(engine: Engine) -> Iterator[str]:
    yield "pipeline:"
    yield "  # What carries the links: `embedded`, the workers by themselves, or `spark`, which needs Java (17 or"
    yield "  # newer) and takes half a minute to start. A link may have an `engine` of its own."
    yield f"  engine: {engine}"
    if engine is Engine.SPARK:
        yield "  # The Spark that they run on."
        yield '  master: "local[2]"'


def _scalar(text: str) -> str:
    """Return the text as a plain scalar if YAML surely reads it as text, else in quotes."""
    if _PLAIN.fullmatch(text) and text.lower() not in _WORDS_OF_YAML and not text.endswith(":"):
        return text
    quoted = json.dumps(text, ensure_ascii=False)
    return "".join(each if each.isprintable() else f"\\U{ord(each):08x}" for each in quoted)
