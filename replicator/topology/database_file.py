"""The database of a cluster: the one that the topology names, or the one in the file that it names.

The file is read by who opens the database, when it does so: on other hosts it need not be there. It has the URL. Where
user and password are kept one by one, as in a Secret of an operator, it is a directory with a file for each part.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final
from urllib.parse import quote

from replicator.topology.fields import Cluster
from replicator.topology.scalars import check_database
from replicator.topology.values import TopologyError

DATABASE_URL_BYTES_MAX: Final = 4096
PARTS: Final = ("host", "user", "password", "dbname")
"""Files of a directory that stands for a URL; a file ``port`` may be missing."""


def database_of(cluster: Cluster) -> str:
    """Return ``embedded`` or a URL. Raise :class:`TopologyError`, whose text never holds a password."""
    if cluster.database_file is None:
        return cluster.database
    place = cluster.database_file
    text = _url_of_parts(cluster, place) if has_parts(place) else _read(cluster, place).strip()
    try:
        return check_database(text)
    except ValueError as error:
        raise _unusable(cluster, str(error)) from None


def has_parts(place: Path) -> bool:
    """Return whether ``place`` is a directory with the parts of a URL, and not a file with a URL."""
    try:
        return place.is_dir()
    except OSError:
        return False


def _url_of_parts(cluster: Cluster, directory: Path) -> str:
    parts = {name: _read(cluster, directory / name).rstrip("\r\n") for name in PARTS}
    port = _read(cluster, directory / "port").strip() if (directory / "port").exists() else "5432"
    host = f"[{parts['host']}]" if ":" in parts["host"] else parts["host"]
    user, password, name = (quote(parts[each], safe="") for each in ("user", "password", "dbname"))
    return f"postgresql://{user}:{password}@{host}:{port}/{name}"


def _read(cluster: Cluster, path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(DATABASE_URL_BYTES_MAX + 1)
    except OSError as error:
        which = "" if path == cluster.database_file else f"{path.name} "
        raise _unusable(cluster, f"{which}cannot be read: {error.strerror}") from None
    if len(content) > DATABASE_URL_BYTES_MAX:
        raise _unusable(cluster, f"longer than {DATABASE_URL_BYTES_MAX} bytes; is it the URL of a database?")
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise _unusable(cluster, "not UTF-8 text; write the URL of the database into it") from None


def _unusable(cluster: Cluster, reason: str) -> TopologyError:
    return TopologyError([f"clusters.{cluster.name}.database_file: {cluster.database_file}: {reason}"])
