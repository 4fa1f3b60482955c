"""Helpers that the admin commands share: the worker to ask, running a request, and tables of answers.

The commands are thin: they read their arguments, ask the worker over HTTP (:mod:`replicator.operating.admin_client`),
and return what it says.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer
from rich.table import Table

from replicator.cli.output import Command, Shown

if TYPE_CHECKING:
    from replicator.operating.admin_client import AdminClient
    from replicator.security.access import Access
    from replicator.topology import Topology

DIGITS_MAX: Final = 18

Url = Annotated[
    str | None,
    typer.Option("--url", metavar="URL", help="Address of the worker to ask, as http://HOST:PORT; or use -f."),
]
WorkersFile = Annotated[
    Path | None, typer.Option("--file", "-f", metavar="FILE", help="Topology file that has the worker's address.")
]
TopologyFile = Annotated[
    Path, typer.Option("--file", "-f", metavar="FILE", help="Topology file: clusters, their addresses, and links.")
]
ClusterName = Annotated[
    str | None,
    typer.Option("--cluster", "-c", metavar="NAME", help="Cluster, in the file of -f, whose worker is asked."),
]
Force = Annotated[bool, typer.Option("--force", help="Delete also while clients are connected, and disconnect them.")]
TopicArgument = Annotated[
    str,
    typer.Argument(
        metavar="TOPIC", help="Name of the topic: persistent://TENANT/NAMESPACE/NAME, TENANT/NAMESPACE/NAME or NAME."
    ),
]
Switch = Annotated[
    str, typer.Argument(metavar="on|off", help="New value of the setting that this command sets: on or off.")
]
SubscriptionArgument = Annotated[str, typer.Argument(metavar="SUBSCRIPTION", help="Name of the subscription.")]
NamespaceArgument = Annotated[str, typer.Argument(metavar="NAMESPACE", help="Name of the namespace: TENANT/NAMESPACE.")]

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """The worker that a command asks, as its options name it."""

    url: str | None
    file: Path | None
    cluster: str | None

    def ask(self, work: Callable[[AdminClient], Awaitable[_T]]) -> _T:
        """Run ``work`` with a client of the worker; raise :class:`AdminError`."""
        from replicator.operating.admin_client import AdminClient, worker_url

        async def run() -> _T:
            async with AdminClient(url) as client:
                return await work(client)

        if self.file is None:
            shown_by_options()
        url = worker_url(self.url, self.file, self.cluster, opened_topology)
        return asyncio.run(run())

    def call(self, method: str, path: str, body: Any = None, **parameters: str) -> Any:
        """Send one request, and return its answer."""
        return self.ask(lambda client: client.call(method, path, body, **parameters))


def takes_worker_options(command: Command) -> Command:
    """Return the command with the options ``--url``, ``-f`` and ``-c`` in place of its parameter ``worker``."""

    @wraps(command)
    def run(*, url: str | None, file: Path | None, cluster: str | None, **given: Any) -> Shown[Any] | None:
        return command(worker=WorkerOptions(url, file, cluster), **given)

    options = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
        for name, annotation in (("url", Url), ("file", WorkersFile), ("cluster", ClusterName))
    ]
    own, parameters = signature(command, eval_str=True), []
    for parameter in own.parameters.values():
        parameters += options if parameter.name == "worker" else [parameter]
    shape = Signature(parameters, return_annotation=own.return_annotation)
    run.__signature__ = shape  # type: ignore[attr-defined]  # typer reads it
    return run


TokenFile = Annotated[
    Path | None,
    typer.Option(
        "--token-file",
        metavar="FILE",
        help="File with the token to show to workers. Default: REPLICATOR_TOKEN_FILE, "
        "REPLICATOR_TOKEN, or your profile.",
    ),
]
_token_file: list[Path] = []


def use_token_file(token_file: Path | None) -> None:
    """Keep the value of ``--token-file`` for the command that follows it."""
    if token_file is not None:
        _token_file[:] = [token_file]


def shown_by_options() -> Access:
    """Return the credentials for workers, without a topology, and use them from now on wherever this process asks a
    worker.
    """
    from replicator.security.access import use_in_process
    from replicator.security.profile import access_of_tool

    shown = access_of_tool(token_file=_token_file[0] if _token_file else None)
    use_in_process(shown)
    return shown


def opened_topology(file: Path) -> Topology:
    """Read a topology file, and use its credentials for its workers from now on. Raise :class:`TopologyError` or
    :class:`SecurityError`.
    """
    from replicator.security.access import use_in_process
    from replicator.topology import load_topology
    from replicator.topology.access import with_topology

    topology = load_topology(file)
    use_in_process(with_topology(shown_by_options(), topology))
    return topology


def names_table(names: Iterable[str]) -> str:
    """Return names unchanged, one a line, so that a script can read them."""
    return "\n".join(names)


def on_off(switch: str) -> bool:
    """Return True for "on" and False for "off"; raise :class:`typer.BadParameter`."""
    if switch not in ("on", "off"):
        raise typer.BadParameter(f"the setting cannot be {switch[:40]!r}: give on or off")
    return switch == "on"


def duration_seconds(text: str, option: str) -> int:
    """Return the seconds of a duration as topologies have them, or of a number; raise ``typer.BadParameter``."""
    return _parsed(text, option, "parse_duration")


def moment(text: str, option: str) -> datetime:
    """Return a time given in ISO form, in UTC unless it names another zone, or as a duration before now; raise
    ``typer.BadParameter``.
    """
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        try:
            ago_seconds = duration_seconds(text, option)
        except typer.BadParameter:
            raise typer.BadParameter(
                f"{option}: {text[:40]!r} is neither a time, such as 2026-01-31T12:00:00Z, nor a duration before now, "
                "such as 24h or 7d"
            ) from None
        now = datetime.now(UTC).timestamp()
        return datetime.fromtimestamp(max(now - ago_seconds, 0), UTC)  # nothing was published before the epoch
    return time if time.tzinfo else time.replace(tzinfo=UTC)


def size_bytes(text: str, option: str) -> int:
    """Return the bytes of a size as topologies have them, or of a number; raise ``typer.BadParameter``."""
    return _parsed(text, option, "parse_size")


def _parsed(text: str, option: str, parser: str) -> int:
    from replicator.topology import scalars

    if text.isascii() and text.isdecimal() and len(text) <= DIGITS_MAX:
        return int(text)
    try:
        return int(getattr(scalars, parser)(text))
    except ValueError as error:
        raise typer.BadParameter(f"{option}: {error}") from None


def spark_master(text: str | None) -> str | None:
    """Return Spark's master as topologies have it, if given; raise ``typer.BadParameter``."""
    from replicator.topology.scalars import check_master

    try:
        return None if text is None else check_master(text)
    except ValueError as error:
        raise typer.BadParameter(f"--master: {error}") from None


def rows_table(columns: Sequence[str], rows: Iterable[Sequence[object]], title: str | None = None) -> Table:
    """Return a table of texts."""
    table = Table(*columns, title=title, title_justify="left")
    for row in rows:
        table.add_row(*(str(cell) for cell in row))
    return table


def fields_table(fields: Mapping[str, Any]) -> Table:
    """Return a table of one thing: name and value a line; a value with parts is spread over lines."""
    table = Table("name", "value")
    for name, value in _flattened(fields):
        table.add_row(name, "–" if value is None else str(value))
    return table


def _flattened(fields: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    for name, value in fields.items():
        if isinstance(value, Mapping) and value:
            yield from _flattened(value, f"{prefix}{name}.")
        elif isinstance(value, bool):
            yield prefix + name, "yes" if value else "no"
        elif isinstance(value, list):
            yield prefix + name, ", ".join(map(str, value)) or "–"
        elif value != {}:
            yield prefix + name, value
