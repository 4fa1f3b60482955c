"""Reports of carriers on their segments. Reported blocks count as copied. The destination is asked about the others."""

from __future__ import annotations

import time

from replicator.links.plans import Done, Segment
from replicator.links.transfer import Transfer


def take_report(transfer: Transfer, segment: Segment, done: Done) -> None:
    """Apply the report ``done`` on ``segment``. Raises :class:`PeerRefused` if the destination takes nothing at all."""
    copier, number = transfer.copier, segment.number
    transfer.figures.add(done.blocks, done.entries, done.messages, done.size_bytes, done.wire_bytes)
    if transfer.bucket is not None:
        transfer.bucket.take(done.wire_bytes - segment.size_bytes, time.monotonic())
    refused = {
        name: carried.refused
        for name, carried in done.topics.items()
        if carried.refused is not None and name in segment.topics
    }
    short = [
        name
        for name, planned in segment.topics.items()
        if name not in refused
        and (name not in done.topics or done.topics[name].reached < planned.upto)
        and not copier.is_stale(name, number)
    ]
    transfer.failures = transfer.failures if refused else 0
    transfer.refused(refused, number)
    transfer.topics.ask(short)
    transfer.acknowledged(number)
