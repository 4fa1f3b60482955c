"""JSON of verify, backfill and report: names, types, and one line of meaning for each field.

docs/reference/json.md is made from this module. The second text of a field is its unit, if its name does not give it.
"""

from __future__ import annotations

from typing import Annotated, Any, TypedDict


class ClusterRead(TypedDict):
    """Entries that verify read from a cluster."""

    messages: Annotated[int, "in its logs", "messages"]
    markers: Annotated[dict[str, int], "by type, entries of the replicator's own", "entries"]
    duplicates: Annotated[int, "of these, hidden because another entry has the same message", "messages"]


class FaultFound(TypedDict):
    """A kind of fault in a topic."""

    count: Annotated[int, "how often it was found"]
    examples: Annotated[list[str], "the first ten"]


class UnreadableBlock(TypedDict):
    """A block that a cluster cannot read."""

    cluster: Annotated[str, "which cluster"]
    topic: Annotated[str, "which topic"]
    position: Annotated[str, "its first position there", "ledger:entry"]
    reason: Annotated[str, "what is wrong with it"]


class BrokersRead(TypedDict):
    """Entries that `verify --brokers` read from the Apache Pulsar brokers of one cluster."""

    entries: Annotated[int, "that were read", "entries"]
    messages: Annotated[int, "in these", "messages"]
    gone: Annotated[int, "older than all of their origin there: deleted by retention, or never there", "messages"]


class VerifyAnswer(TypedDict):
    """Whether the clusters agree: all counts of faults are 0 if they do."""

    missing: Annotated[int, "in one cluster of a link and not in the other, nor on its way there", "messages"]
    duplicated: Annotated[int, "more than once in one cluster", "messages"]
    reordered: Annotated[int, "after something of its origin that was published later", "messages"]
    corrupted: Annotated[int, "the same message with other content, or a damaged block", "messages"]
    mismapped: Annotated[int, "mappings that promise what is not there, or name another place", "mappings"]
    hidden: Annotated[int, "hidden as duplicates, though their content differs", "messages"]
    ack_mismatch: Annotated[int, "acknowledged here, and not where the link leads", "messages"]
    gaps: Annotated[int, "topics at which a link has stopped", "topics"]
    messages: Annotated[int, "that are somewhere, each counted once", "messages"]
    mappings: Annotated[int, "snapshot mappings that were checked", "mappings"]
    subscriptions: Annotated[int, "replicated subscriptions that were compared", "subscriptions"]
    clusters: Annotated[dict[str, ClusterRead], "by cluster, what was read"]
    topics: Annotated[dict[str, dict[str, FaultFound]], "by topic and fault; empty for a topic that is clean"]
    brokers: Annotated[dict[str, BrokersRead], "by cluster whose brokers were read, with `--brokers`"]
    behind: Annotated[int, "on their way to a destination", "messages"]
    unreachable: Annotated[dict[str, str], "by cluster that was not compared, why"]
    remarks: Annotated[list[str], "what else there is to know"]
    damaged: Annotated[list[UnreadableBlock], "blocks that cannot be read"]
    fix: Annotated[list[str], "what `--fix` did, and what it leaves to you"]
    seconds: Annotated[float, "how long it took"]


class BackfilledTopic(TypedDict):
    """A topic of a backfill."""

    topic: Annotated[str, "its whole name"]
    messages_source: Annotated[int, "that the source had when it began", "messages"]
    messages_there: Annotated[int, "that the destination has", "messages"]
    new_messages: Annotated[int, "that came meanwhile", "messages"]
    carried_entries: Annotated[int, "that this run brought", "entries"]
    carried_bytes: Annotated[int, "that this run brought"]
    subscriptions: Annotated[int, "replicated ones at the source", "subscriptions"]
    transferred: Annotated[int, "of these, whose whole state is at the destination", "subscriptions"]
    missing: Annotated[str | None, "why it is not there in full"]


class SubscriptionLeft(TypedDict):
    """A subscription whose state is not at the destination."""

    topic: Annotated[str, "its topic"]
    subscription: Annotated[str, "its name"]
    reason: Annotated[str, "why"]


class BackfillAnswer(TypedDict):
    """Result of a backfill."""

    source: Annotated[str, "the cluster that has the history"]
    destination: Annotated[str, "the cluster that joins"]
    link: Annotated[str, "the key of the link between them"]
    outcome: Annotated[str, "`done` or `incomplete`"]
    reason: Annotated[str, "why it is incomplete"]
    unavailable: Annotated[bool, "whether that is because a worker did not answer"]
    seconds: Annotated[float, "how long it took"]
    carrying_seconds: Annotated[float, "of these, in which history was carried"]
    jobs: Annotated[int, "Spark jobs that carried", "jobs"]
    carried_bytes: Annotated[int, "that this run brought"]
    bytes_per_second: Annotated[float | None, "while history was carried", "bytes/s"]
    subscriptions: Annotated[int, "replicated ones at the source", "subscriptions"]
    subscriptions_transferred: Annotated[int, "whose whole state is at the destination", "subscriptions"]
    topics: Annotated[list[BackfilledTopic], "all topics"]
    not_transferred: Annotated[list[SubscriptionLeft], "replicated subscriptions whose state is not there"]
    not_replicated: Annotated[list[SubscriptionLeft], "subscriptions that are not to be replicated: no fault"]
    beside_brokers: Annotated[list[str], "which of the two run beside Apache Pulsar: what their workers have counts"]


class ReportTables(TypedDict):
    """The tables of a report; their columns are explained in reports.md."""

    throughput: Annotated[list[dict[str, Any]], "a row for each cluster, topic, way and bucket of time"]
    lag: Annotated[list[dict[str, Any]], "a row for each origin, cluster, topic and bucket of time"]
    keys: Annotated[list[dict[str, Any]], "the heaviest keys of each cluster and topic"]
    consumers: Annotated[list[dict[str, Any]], "a row for each consumer of a Key_Shared subscription"]
    repeated_ids: Annotated[list[dict[str, Any]], "a row for each producer that repeated sequence ids"]
    repeated_contents: Annotated[list[dict[str, Any]], "a row for each producer that repeated contents"]
    sizes: Annotated[list[dict[str, Any]], "a row for each cluster, topic, measure and class of sizes"]


class ReportAnswer(TypedDict):
    """Report on the contents of topics."""

    clusters: Annotated[list[str], "whose logs were read"]
    topics: Annotated[int, "that were read", "topics"]
    messages: Annotated[int, "that were read; each counts in each cluster", "messages"]
    since: Annotated[str | None, "what `--since` said", "ISO 8601"]
    first: Annotated[str | None, "the earliest publish time", "ISO 8601"]
    last: Annotated[str | None, "the latest", "ISO 8601"]
    bucket_seconds: Annotated[int, "the width of a bucket of time"]
    repeat_window_seconds: Annotated[int, "how close equal contents are to count as repeated"]
    tables: Annotated[ReportTables, "the tables"]
    cut: Annotated[list[str], "tables that have only their first 200,000 rows here"]
    seconds: Annotated[float, "how long it took"]
