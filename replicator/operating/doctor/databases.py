"""What the doctor looks at in a cluster's Postgres: whether it answers, its version, encoding and migrations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import psycopg
from psycopg.rows import tuple_row
from sqlalchemy import make_url

from replicator.index.database import CONNECT_SECONDS_MAX, head_revision
from replicator.operating.doctor.findings import Finding, Level
from replicator.topology import EMBEDDED, Cluster, TopologyError, database_of, mask_password

CHECK: Final = "database"
VERSION_MIN: Final = 14
"""The oldest that Postgres' makers care for."""


async def look_at_database(cluster: Cluster) -> list[Finding]:
    """Asks the server; starts none and changes nothing."""
    name = cluster.name
    try:
        setting = database_of(cluster)
    except TopologyError as error:
        return [Finding(CHECK, name, Level.ERROR, str(error), "put the file in place, readable for the worker's user")]
    if setting == EMBEDDED:
        made = (cluster.data / "postgres").exists()
        text = "embedded: the worker starts it" + ("" if made else ", and makes it the first time")
        return [Finding(CHECK, name, Level.OK, text)]
    try:
        url = make_url(setting).set(drivername="postgresql").render_as_string(hide_password=False)
        connection = await psycopg.AsyncConnection.connect(
            url, connect_timeout=CONNECT_SECONDS_MAX, client_encoding="utf8", row_factory=tuple_row
        )
        async with connection:
            asked = await connection.execute(
                "select current_setting('server_version_num')::int, current_setting('server_encoding'), "
                "to_regclass('alembic_version') is not null"
            )
            version, encoding, migrated = await _row(asked)
            revision = (
                await _row(await connection.execute("select version_num from alembic_version")) if migrated else None
            )
    except (psycopg.Error, ValueError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        text = f"{mask_password(setting)}: {reason}"
        remedy = "start it, or correct user, password, host and name in the topology; a worker has to reach it once"
        return [Finding(CHECK, name, Level.ERROR, text, remedy)]
    return [
        *_judged(name, int(version), str(encoding)),
        _revision(name, None if revision is None else str(revision[0])),
    ]


async def _row(cursor: psycopg.AsyncCursor[tuple[Any, ...]]) -> tuple[Any, ...]:
    row = await cursor.fetchone()
    if row is None:
        raise ValueError("it has no revision although it has a table of them")
    return row


def _judged(name: str, version: int, encoding: str) -> Iterator[Finding]:
    major = version // 10_000
    text = f"Postgres {major}.{version % 10_000} answers"
    if major < VERSION_MIN:
        remedy = f"upgrade it to {VERSION_MIN} or newer: nobody mends what is older"
        yield Finding(CHECK, name, Level.WARNING, text, remedy)
    else:
        yield Finding(CHECK, name, Level.OK, text)
    if encoding != "UTF8":
        remedy = "make another one: CREATE DATABASE … ENCODING 'UTF8' LOCALE 'C' TEMPLATE template0"
        yield Finding(CHECK, name, Level.ERROR, f"its encoding is {encoding}, and names need UTF8", remedy)


def _revision(name: str, revision: str | None) -> Finding:
    head = head_revision()
    if revision == head:
        return Finding("migrations", name, Level.OK, f"the schema is at revision {revision}")
    if revision is None:
        return Finding("migrations", name, Level.OK, "it is empty: the worker makes its schema when it starts")
    if revision.isdecimal() and head.isdecimal() and int(revision) > int(head):
        remedy = "use the version that made it, or have that take it back (docs/upgrade.md)"
        return Finding("migrations", name, Level.ERROR, f"revision {revision} is newer than {head}", remedy)
    remedy = "nothing, or `replicator db upgrade -f FILE` beforehand: the worker does it when it starts"
    return Finding("migrations", name, Level.WARNING, f"the schema is at revision {revision}, not {head}", remedy)
