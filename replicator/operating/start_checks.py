"""Everything for which a worker refuses to start, as a list that starting a worker and ``replicator doctor`` both run.

:data:`START_CHECKS` has the checks in the order in which a start makes them. None of them makes or changes anything. A
start runs all and raises what the first one raises; the doctor runs all and reports each. A check that is added here
serves both.

A start then takes what it has checked, and what can be told only by that may still refuse it: a port that another
process took meanwhile, a disk that fails, a topic whose rows are damaged (``replicator store check`` finds these).
"""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from replicator.engine.errors import StoreUnusable
from replicator.engine.log.store_files import check_head, check_unused, check_usable, is_in_use, read_meta
from replicator.engine.log.store_tables import HEAD
from replicator.engine.restored import MARK, check_settled, mark_of
from replicator.index.database import Database, DatabaseError, DatabaseUnavailable, Examined
from replicator.operating.binding import WorkerError, bind, check_exposed
from replicator.running.extras import ExtraMissing
from replicator.security.errors import SecurityError
from replicator.topology import Cluster, Topology, TopologyError, database_of
from replicator.topology.extras import check_extras
from replicator.topology.fields import TlsSettings
from replicator.topology.made_security import make_security

DATABASE_REACHED: Final = "database_reached"
"""The row of a store's ``meta`` that tells which database its worker has reached."""
REFUSALS: Final = (WorkerError, StoreUnusable, DatabaseError, ExtraMissing, SecurityError, TopologyError)
"""What a check may raise."""


@dataclass(slots=True)
class Setup:
    """The worker that is to be started, and what checks found of it."""

    topology: Topology
    cluster: Cluster
    running: bool = False
    """Whether this very worker runs already, so that it has its ports and its store."""
    exposed: tuple[str, ...] = field(default=(), init=False)
    """Where others connect without being asked who they are, because the cluster says so."""
    database: Examined | None = field(default=None, init=False)
    database_away: str | None = field(default=None, init=False)
    """Why a database does not answer, without which the worker starts: it has reached it before."""


@dataclass(frozen=True, slots=True)
class StartCheck:
    """One reason for which a worker may refuse to start."""

    name: str
    """Stable: as the doctor calls it."""
    passed: str
    """What is so if it passes."""
    remedy: str
    run: Callable[[Setup], Awaitable[None]]
    """Raises one of :data:`REFUSALS`."""


async def check_start(setup: Setup) -> None:
    """Raise what the first check raises that does not pass; return when the worker may be started."""
    for check in START_CHECKS:
        await check.run(setup)


def tls_context(name: str, files: TlsSettings, *, optional: bool) -> ssl.SSLContext:
    """Return the context by which a worker serves. With ``optional`` clients may leave their certificate out, and show
    something else then. Raises :class:`WorkerError` for files that cannot be read, or do not belong together."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2  # Python 3.11 leaves it to how OpenSSL was built
    try:
        context.load_cert_chain(files.certificate, files.key)
        if files.ca is not None:
            context.load_verify_locations(files.ca)
            context.verify_mode = ssl.CERT_OPTIONAL if optional else ssl.CERT_REQUIRED
    except OSError as error:
        raise WorkerError(f"clusters.{name}.tls: {files}: {error.strerror or error}") from None
    return context


async def _extras(setup: Setup) -> None:
    check_extras(setup.topology, setup.cluster.name)


async def _exposed(setup: Setup) -> None:
    setup.exposed = check_exposed(setup.cluster, asks=setup.topology.auth.enabled)


async def _ports(setup: Setup) -> None:
    if not setup.running:
        bind(setup.cluster, asks=setup.topology.auth.enabled).close()


async def _tls(setup: Setup) -> None:
    if setup.cluster.tls is not None:
        tls_context(setup.cluster.name, setup.cluster.tls, optional=setup.topology.auth.certificates_are_optional)


async def _auth(setup: Setup) -> None:
    make_security(setup.topology.auth)


async def _directory(setup: Setup) -> None:
    check_usable(setup.cluster.data)
    if not setup.running:
        check_unused(setup.cluster.data)


async def _store(setup: Setup) -> None:
    cluster = setup.cluster
    if is_in_use(cluster.data):
        return  # whoever has it has found all of this
    rows = read_meta(cluster.data, (HEAD, MARK))
    if HEAD in rows:
        check_head(cluster.data, cluster.name, rows[HEAD])
    check_settled(cluster.data, cluster.name, mark_of(rows.get(MARK)))


async def _database(setup: Setup) -> None:
    setting, data = database_of(setup.cluster), setup.cluster.data
    known = is_in_use(data) or _reached(data) == Database.fingerprint_of(setting)
    async with AsyncExitStack() as stack:
        database = Database(setting, data, cluster=setup.cluster.name, known_good=known)
        stack.push_async_callback(database.stop)
        try:
            setup.database = await database.examine()
        except DatabaseUnavailable as error:
            setup.database_away = str(error)


def _reached(data: Path) -> str | None:
    """Return which database the worker of a store that nobody has open has reached; None where that is not known."""
    with suppress(StoreUnusable):
        return read_meta(data, (DATABASE_REACHED,)).get(DATABASE_REACHED)
    return None


_FILES_REMEDY: Final = "put the files in place, readable for the worker's user"

START_CHECKS: Final = (
    StartCheck(
        "extras",
        "all that this worker needs is installed",
        "install it, or set `pipeline: {engine: embedded}`",
        _extras,
    ),
    StartCheck(
        "exposure",
        "strangers do not reach it unasked, unless that is meant",
        "give the topology `auth`, or listen on this host alone",
        _exposed,
    ),
    StartCheck("port", "it can take its ports", "end what uses them, or choose others", _ports),
    StartCheck("certificate", "the files of TLS can be used", _FILES_REMEDY, _tls),
    StartCheck("auth", "the files of `auth` can be used", _FILES_REMEDY, _auth),
    StartCheck(
        "disk", "its data directory can be used", "give it to the worker's user, or choose another `data`", _directory
    ),
    StartCheck("store", "what is stored there is this cluster's", "give each cluster a `data` of its own", _store),
    StartCheck(
        "database",
        "embedded: the worker starts it",
        "correct user, password, host and name in the topology, or start the server; a worker has to reach it once",
        _database,
    ),
)
