"""All checks that a worker makes before it starts; ``replicator doctor`` runs the same ones.

:data:`START_CHECKS` lists them in the order in which a starting worker makes them. No check makes or changes anything.
A starting worker stops at the first check that fails; the doctor runs all and reports each.

A start may still fail after all checks have passed. Another process may take a port, a disk may fail, or stored rows
may be damaged (``replicator store check`` finds these).
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
from replicator.engine.restored import BESIDE, MARK, RestoredMark, check_settled, mark_of
from replicator.index.database import Database, DatabaseError, DatabaseUnavailable, ServerVersions
from replicator.operating.binding import WorkerError, bind, check_exposed
from replicator.running.extras import ExtraMissing
from replicator.security.errors import SecurityError
from replicator.topology import Cluster, Topology, TopologyError, database_of
from replicator.topology.extras import check_extras
from replicator.topology.fields import TlsSettings
from replicator.topology.made_security import make_security

DATABASE_REACHED: Final = "database_reached"
"""The row of a store's ``meta`` with the fingerprint of the database that the worker has reached."""
RUNS: Final = "runs"
"""Key of the row in the table ``meta`` that has the runs of this store, the newest first."""
REFUSALS: Final = (WorkerError, StoreUnusable, DatabaseError, ExtraMissing, SecurityError, TopologyError)
"""Errors that a check may raise. The worker does not start after any of them."""


@dataclass(slots=True)
class Setup:
    """Worker to be started, with what the checks have found so far."""

    topology: Topology
    cluster: Cluster
    running: bool = False
    """Whether this worker is already running, and so holds its own ports and its store."""
    exposed: tuple[str, ...] = field(default=(), init=False)
    """Addresses at which other hosts connect without authentication, because the cluster sets ``insecure: true``."""
    database: ServerVersions | None = field(default=None, init=False)
    database_away: str | None = field(default=None, init=False)
    """Why the database does not answer, if the worker starts without it; it may if it has reached the database before,
    or never reached any."""


@dataclass(frozen=True, slots=True)
class StartCheck:
    """One check that a worker makes before it starts."""

    name: str
    """The name by which the doctor reports this check. It never changes."""
    passed: str
    """The sentence that the doctor shows if the check passes."""
    remedy: str
    run: Callable[[Setup], Awaitable[None]]
    """Makes the check; raises one of :data:`REFUSALS` if it fails."""
    offline: bool = False
    """Whether the check needs no network, no database and no data directory."""


async def check_start(setup: Setup) -> None:
    """Run all checks in order, and raise the error of the first that fails; return if the worker may start."""
    for check in START_CHECKS:
        await check.run(setup)


def tls_context(name: str, files: TlsSettings, *, optional: bool) -> ssl.SSLContext:
    """Return the TLS context of a worker's server.

    With ``optional`` clients may connect without a certificate, and authenticate in another way. Raises
    :class:`WorkerError` if a file cannot be read, or if certificate and key do not match.
    """
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2  # Python 3.11 leaves it to how OpenSSL was built
    try:
        context.load_cert_chain(files.certificate, files.key)
        if files.ca is not None:
            context.load_verify_locations(files.ca)
            context.verify_mode = ssl.CERT_OPTIONAL if optional else ssl.CERT_REQUIRED
    except OSError as error:
        raise WorkerError(f"clusters.{name}.tls: {files} cannot be loaded: {error.strerror or error}") from None
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
        return  # the worker that has the store open has made these checks
    rows = read_meta(cluster.data, (HEAD, MARK, BESIDE, RUNS, DATABASE_REACHED))
    if HEAD in rows:
        check_head(cluster.data, cluster.name, rows[HEAD])
    mark = mark_of(rows.get(MARK))
    if not never_served(rows.get, mark):  # else the start goes on with what an earlier start began
        check_settled(cluster.data, cluster.name, mark, rows.get(BESIDE))


def never_served(meta: Callable[[str], object], mark: RestoredMark | None) -> bool:
    """Return whether no worker ever served on a store, so that its start must ask other clusters for messages.

    ``meta`` returns a row of the store's table ``meta``, or None. A store that was restored, or for which a reclaim
    came to its end, does not count as new: the other clusters were asked then.
    """
    settled = mark is not None and (bool(mark.backup) or mark.settled_at_ms is not None)
    return not settled and meta(RUNS) is None and meta(DATABASE_REACHED) is None


async def _database(setup: Setup) -> None:
    setting, data = database_of(setup.cluster), setup.cluster.data
    reached = _reached(data)
    known = is_in_use(data) or reached == Database.fingerprint_of(setting)
    async with AsyncExitStack() as stack:
        database = Database(setting, data, cluster=setup.cluster.name, known_good=known, none_reached=reached is None)
        stack.push_async_callback(database.stop)
        try:
            setup.database = await database.examine()
        except DatabaseUnavailable as error:
            setup.database_away = str(error)


def _reached(data: Path) -> str | None:
    """Return the fingerprint of the database that the store's worker has reached; None if it is not known.

    The store must not be open.
    """
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
        offline=True,
    ),
    StartCheck(
        "exposure",
        "other hosts cannot connect without authentication, unless the cluster allows it",
        "set `auth` in the topology, or let the worker listen at 127.0.0.1 alone",
        _exposed,
        offline=True,
    ),
    StartCheck(
        "port", "the worker can open its ports", "stop the process that uses the port, or choose another", _ports
    ),
    StartCheck("certificate", "the files of `tls` can be read", _FILES_REMEDY, _tls, offline=True),
    StartCheck("auth", "the files of `auth` can be read", _FILES_REMEDY, _auth, offline=True),
    StartCheck(
        "disk",
        "the worker can use its data directory",
        "make the worker's user its owner, or choose another `data`",
        _directory,
    ),
    StartCheck(
        "store", "the store in its data directory is this cluster's", "give each cluster a `data` of its own", _store
    ),
    StartCheck(
        "database",
        "the database is `embedded`: the worker starts it",
        "correct user, password, host and name in the topology, or start Postgres: after a change of the setting, a "
        "worker must reach it once",
        _database,
    ),
)
