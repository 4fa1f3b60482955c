"""Asking the worker of this host whether it is alive or ready, as a probe does that runs beside it."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from typing import Final

import aiohttp

from replicator.operating.errors import WorkerUnavailable
from replicator.running.connecting import why_no_answer
from replicator.security.errors import SecurityError
from replicator.topology import Cluster, Topology

ANSWER_SECONDS_MAX: Final = 5.0
REASON_CHARS_MAX: Final = 300
_ANY_INTERFACE: Final = {"0.0.0.0": "127.0.0.1", "[::]": "127.0.0.1", "*": "127.0.0.1"}  # noqa: S104  # nosec B104


async def ask_health(topology: Topology, cluster: Cluster, *, ready: bool = False) -> str:
    """Return a worker's answer about its health. Raise :class:`WorkerUnavailable`, or :class:`SecurityError` for its
    certificate.
    """
    url = f"{cluster.http_scheme}://{_place(cluster)}/{'readyz' if ready else 'healthz'}"
    timeout = aiohttp.ClientTimeout(total=ANSWER_SECONDS_MAX)
    connector = aiohttp.TCPConnector(ssl=_context(cluster) if topology.tls.required else True)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout, connector=connector) as session,
            session.get(url, allow_redirects=False) as response,
        ):
            text = (await response.text())[:REASON_CHARS_MAX]
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        raise WorkerUnavailable(f"{url}: the worker does not answer: {why_no_answer(error)}") from None
    if response.status != 200:
        raise WorkerUnavailable(f"{url}: the worker is not healthy or not ready: HTTP status {response.status}: {text}")
    return text


async def ask_any(topology: Topology, *, ready: bool = False) -> tuple[str, str]:
    """Ask the worker on this host for its health. Return the name of its cluster, and its answer.

    Nobody says which cluster runs here. So each cluster of the topology that has a ``listen`` address is asked at that
    address, one after the other. A topology with one cluster needs no such address. Raises
    :class:`WorkerUnavailable` if no worker answers, or if none of several clusters has a ``listen`` address.
    """
    clusters: Sequence[Cluster] = topology.clusters
    asked = clusters if len(clusters) == 1 else [each for each in clusters if each.listen is not None]
    reasons: list[str] = []
    for cluster in {_place(each): each for each in reversed(asked)}.values():
        try:
            return cluster.name, await ask_health(topology, cluster, ready=ready)
        except WorkerUnavailable as error:
            reasons.append(str(error))
    raise WorkerUnavailable(
        "; ".join(reasons) or "no cluster says where it listens: name the worker's cluster (REPLICATOR_CLUSTER)"
    )


def _place(cluster: Cluster) -> str:
    """Return the address of a worker on this host."""
    host, _, port = (cluster.listen or cluster.address).rpartition(":")
    return f"{_ANY_INTERFACE.get(host, host)}:{port}"


def _context(cluster: Cluster) -> ssl.SSLContext:
    """Return a TLS context that shows the worker's own certificate. It does not check who answers, because it sends no
    secret.
    """
    context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if cluster.tls is not None and cluster.tls.ca is not None:
        try:
            context.load_cert_chain(cluster.tls.certificate, cluster.tls.key)
        except OSError as error:
            raise SecurityError(
                f"clusters.{cluster.name}.tls: {cluster.tls} cannot be loaded: {error.strerror or error}"
            ) from None
    return context
