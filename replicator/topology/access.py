"""Credentials that clients of a topology's workers show: the worker of one of its clusters, or a tool of an
operator.
"""

from __future__ import annotations

import os
from dataclasses import replace

from replicator.security.access import Access
from replicator.topology.fields import Cluster
from replicator.topology.values import Topology


def access_of_worker(topology: Topology, cluster: Cluster) -> Access:
    """Return the credentials that the worker of ``cluster`` shows to others: the file's token, and its own certificate
    if certificates count.
    """
    shown = cluster.tls if topology.auth.certificates is not None else None
    return Access(
        token_file=(cluster.token_file or topology.auth.token_file) if topology.auth.enabled else None,
        tls=topology.tls.required,
        trust=topology.tls.trust,
        certificate=None if shown is None else shown.certificate,
        key=None if shown is None else shown.key,
    )


def with_topology(shown: Access, topology: Topology) -> Access:
    """Return the credentials that a tool shows to a topology's workers: its own, or else the workers' token, if the
    tool may read it.
    """
    shown = replace(shown, tls=shown.tls or topology.tls.required, trust=shown.trust or topology.tls.trust)
    workers = topology.auth.token_file
    shows_something = shown.token_file or shown.token or shown.certificate
    if not shows_something and topology.auth.enabled and workers is not None and os.access(workers, os.R_OK):
        return replace(shown, token_file=workers)
    return shown
