"""Which database a cluster has: what the topology says, or what stands in the file that it names.

The file is read by who opens the database, when it does so: on other hosts it need not be there.
"""

from __future__ import annotations

from typing import Final

from replicator.topology.fields import Cluster
from replicator.topology.scalars import check_database
from replicator.topology.values import TopologyError

DATABASE_URL_BYTES_MAX: Final = 4096


def database_of(cluster: Cluster) -> str:
    """``embedded`` or a URL. Raises :class:`TopologyError`, whose text never holds a password."""
    if cluster.database_file is None:
        return cluster.database
    try:
        with cluster.database_file.open("rb") as file:
            content = file.read(DATABASE_URL_BYTES_MAX + 1)
    except OSError as error:
        raise _unusable(cluster, f"cannot be read: {error.strerror}") from None
    if len(content) > DATABASE_URL_BYTES_MAX:
        raise _unusable(cluster, f"longer than {DATABASE_URL_BYTES_MAX} bytes; is it the URL of a database?")
    try:
        return check_database(content.decode().strip())
    except UnicodeDecodeError:
        raise _unusable(cluster, "not UTF-8 text") from None
    except ValueError as error:
        raise _unusable(cluster, str(error)) from None


def _unusable(cluster: Cluster, reason: str) -> TopologyError:
    return TopologyError([f"clusters.{cluster.name}.database_file: {cluster.database_file}: {reason}"])
