"""JSON of links: names, types, and one line of meaning for each field. docs/reference/json.md is made from it."""

from __future__ import annotations

from typing import Annotated, Any, NotRequired, TypedDict


class LinkGap(TypedDict):
    """A topic at which a link has stopped, because something is missing."""

    topic: Annotated[str, "its whole name"]
    kind: Annotated[str, "what is missing, in the words of links.md"]
    origin: Annotated[str, "whose messages"]
    detail: Annotated[str, "in words"]
    policies: NotRequired[Annotated[list[str], "those that end it, the one that loses nothing first"]]


class LinkBackfill(TypedDict):
    """Progress of a backfill over a link."""

    bytes_total: Annotated[int, "to be carried"]
    bytes_left: Annotated[int, "not carried yet"]
    percent: Annotated[int, "carried; 100 only at the end", "%"]


class LinkStatus(TypedDict):
    """Status of a link at the worker of its source."""

    key: Annotated[str, "`FROM>TO`, with `#NAME` behind it where it has a name"]
    to: Annotated[str, "the cluster that it leads to"]
    name: Annotated[str, "its name; empty for none"]
    address: Annotated[str, "where the destination's worker is"]
    forward: Annotated[bool, "whether it copies what other clusters published too"]
    engine: Annotated[str, "what carries it: `spark` or `embedded`"]
    carrier: Annotated[str | None, "who carries it now, with Spark"]
    origins: Annotated[list[str], "whose messages it copies"]
    state: Annotated[str, "`idle`, `copying`, `backfilling`, `paused`, `connecting`, or what keeps it from copying"]
    backfill: Annotated[LinkBackfill | None, "the backfill that has the link"]
    detail: Annotated[str, "what is wrong"]
    paused: Annotated[bool, "whether an operator paused it"]
    topics: Annotated[int, "that it copies", "topics"]
    halted: Annotated[dict[str, str], "by topic, why it stands still; the first 1,000"]
    halted_count: Annotated[int, "all of these", "topics"]
    gaps: Annotated[list[LinkGap], "the first 1,000 gaps"]
    gap_count: Annotated[int, "all of these", "gaps"]
    skipped: Annotated[list[dict[str, Any]], "gaps that were ended by going on without what is missing"]
    skipped_count: Annotated[int, "of these", "gaps"]
    hold_exceeded: Annotated[list[str], "topics that keep more for the link than its `hold` allows; the first 1,000"]
    hold_exceeded_count: Annotated[int, "all of these", "topics"]
    on_hold_exceeded: Annotated[str, "what is done then, as the topology says"]
    deleted_here: Annotated[list[str], "topics that were deleted at the source and are at the destination"]
    lost_here: Annotated[dict[str, str], "by topic that the source lost and the destination has, why; the first 1,000"]
    backlog_entries: Annotated[int, "not copied yet", "entries"]
    lag_ms: Annotated[int, "the age of the oldest block that the destination has not confirmed"]
    in_flight_frames: Annotated[int, "sent and not confirmed", "frames"]
    rate_bytes: Annotated[int | None, "the limit of its rate", "bytes/s"]
    compression: Annotated[str, "of frames: `none`, `lz4` or `zstd`"]
    blocks: Annotated[int, "copied since the worker started", "blocks"]
    entries: Annotated[int, "in these", "entries"]
    messages: Annotated[int, "in these", "messages"]
    bytes: Annotated[int, "of these"]
    wire_bytes: Annotated[int, "that went over the network"]
    reconnects: Annotated[
        int, "how often a connection was lost or could not be made, since the worker started", "times"
    ]
    backlog_by_topic: NotRequired[Annotated[dict[str, int], "with `--topics`: by topic, what is not copied", "entries"]]
