"""Every metric of a worker, in the order of ``/metrics`` and of ``docs/metrics.md``.

What is not declared here is not exported, and what is declared is always exported, if only by its help and type.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from replicator.api.metrics.declared import Kind, Metric, Replaced, counter, flag, gauge, histogram

TOPIC: Final = "topic"
SUBSCRIPTION: Final = ("topic", "subscription")
LINK: Final = ("to", "link")

# The worker.
BUILD_INFO: Final = gauge("build_info", "The worker's version; always 1.", "version", unit="1")
START_TIME: Final = gauge("worker_start_time_seconds", "When the worker started, in seconds since 1970.")
READY: Final = flag("ready", "1 while the worker takes traffic, as /readyz says.")
CONNECTIONS: Final = gauge(
    "client_connections", "Connections of clients by the binary protocol that are open.", unit="connections"
)
ACCEPTED: Final = counter(
    "client_connections_accepted", "Connections of clients by the binary protocol that were taken.", unit="connections"
)
TASK_RESTARTS: Final = counter(
    "task_restarts",
    "Times that a long-lived task ended although nobody had asked for it, by kind; it was started again.",
    "task",
    unit="ends",
)
TASKS_FAILING: Final = gauge(
    "tasks_failing", "Long-lived tasks that ended five times within ten minutes, by kind.", "task", unit="tasks"
)
TOPOLOGY_REFUSED: Final = flag(
    "topology_refused", "1 while the topology file is not what runs, because its last reload was refused."
)
LOOP_LAG_MAX: Final = gauge(
    "event_loop_lag_max_seconds", "The greatest lag of the event loop within the last one to two minutes."
)
DATABASE_UP: Final = flag("database_up", "1 while Postgres answers.")
ROWS_REFUSED: Final = counter(
    "index_rows_refused", "Rows that Postgres did not take. They are not in the index; the log names them.", unit="rows"
)
AUDIT_WAITING: Final = gauge(
    "audit_entries_waiting", "Entries of the audit log that wait for Postgres.", unit="entries"
)
AUDIT_DROPPED: Final = counter(
    "audit_entries_dropped", "Entries of the audit log that were dropped because too many waited.", unit="entries"
)
UNPACKED_BYTES: Final = gauge(
    "unpacked_bytes",
    "Uncompressed bytes in memory: of clients (store.unpacked_max), compaction, and frames of links.",
    "share",
)
UNPACKED_LIMIT: Final = gauge("unpacked_limit_bytes", "Uncompressed bytes that a share may have in memory.", "share")
UNPACKED_WAITING: Final = gauge(
    "unpacked_waiting", "Entries and bodies of clients that wait until they fit into their share.", unit="claims"
)

# The store.
STORE_BYTES: Final = gauge("store_bytes", "Bytes of the store in use.")
STORE_LIMIT: Final = gauge("store_limit_bytes", "Bytes that the store may use (store.size_max).")
STORE_SEGMENT_BYTES: Final = gauge(
    "store_segment_bytes", "Bytes of the segments: of blocks that are there, free to be written, and dead.", "state"
)
STORE_DISK_FREE: Final = gauge("store_disk_free_bytes", "Bytes that are free on the disk of the store.")
STORE_DISK_FULL: Final = flag("store_disk_full", "1 while messages are refused because that disk is full.")
STORE_FULL: Final = flag(
    "store_full", "1 while messages are refused because that disk is full, or because store.size_max is reached."
)
STORE_FAILED: Final = flag("store_failed", "1 once a write or sync failed; nothing is confirmed until a restart.")
STORE_COMMITS: Final = counter("store_commits", "Group commits of the store, each with one sync.", unit="commits")
STORE_DAMAGED: Final = gauge(
    "store_damaged_blocks", "Blocks that were found to be damaged and are not mended yet.", unit="blocks"
)
STORE_MENDED: Final = counter(
    "store_mended_blocks", "Damaged blocks that were mended by copies of other clusters.", unit="blocks"
)
STORE_TWINS: Final = gauge(
    "store_twins",
    "Other runs of the worker's store that destinations of its links named; more than 0 if its directory was copied and"
    " started elsewhere.",
    unit="runs",
)

STORE_NEW: Final = flag(
    "store_new",
    "1 for a day after the first start on a new store that takes the place of a lost one, or that asked nobody; 0 after"
    " the next start.",
)
PEER_STORE_NEW: Final = flag(
    "peer_store_new", "1 for a day after another cluster was first heard of with another store than before.", "peer"
)
STORE_AWAITED: Final = gauge(
    "store_awaited_clusters",
    "Clusters that were not heard of since the start on a new store, or have not told the states of subscriptions.",
    unit="clusters",
)

# Deduplication over clusters.
SHARED_NAMES: Final = gauge(
    "producer_names_in_two_clusters",
    "Producer names, by topic and cluster, that are connected here while the other cluster stores messages under them,"
    " in the last five minutes. Only topics with deduplication.",
    unit="names",
)
OTHER_CONTENT: Final = counter(
    "sequence_ids_reused",
    "Messages with the sequence ids of another cluster's messages, but other content. All are delivered.",
    unit="messages",
)
HIDDEN_DIFFERING: Final = gauge(
    "hidden_duplicates_differing",
    "Entries with other content that an earlier version hid as duplicates, found when the worker started. They are"
    " delivered from then on.",
    unit="entries",
)

# Failover and live copy.
FAILOVER_EPOCH: Final = gauge("failover_epoch", "The number of the newest failover that is known.", unit="number")
FAILOVER_FENCED: Final = flag("failover_fenced", "1 while another cluster serves this one's clients.")
FAILOVER_SERVES: Final = flag("failover_serves", "1 for each cluster whose clients are served here.", "home")
FAILOVER_PRODUCERS: Final = flag("failover_takes_producers", "1 while producers are taken.")
DRIVER_UP: Final = flag("pipeline_driver_up", "1 while the driver of live copy runs; none where none is to run.")
DRIVER_STARTS: Final = counter(
    "pipeline_driver_starts", "Times that the driver of live copy was started.", unit="starts"
)

# Latencies are per group, run of entries, block and frame, not per message. Ages compare the clocks of two clusters.
# The event loop.
LOOP_LAG: Final = histogram(
    "event_loop_lag_seconds", "How late the worker's event loop turned, measured ten times a second."
)
PUBLISH: Final = histogram(
    "publish_latency_seconds",
    "From when a publish is handed to the store until it is durable; each counts as the oldest of its group commit.",
)
ACKNOWLEDGE: Final = histogram(
    "acknowledge_latency_seconds",
    "From a change of a subscription, such as an acknowledgement with a receipt, until it is durable; each counts as"
    " the oldest of its save.",
)
DISPATCH: Final = histogram(
    "dispatch_latency_seconds",
    "Of each run that hands out messages as they come, the age of the oldest since it was published at its origin; a"
    " backlog that is read counts with its age.",
    "origin",
)
COPY: Final = histogram(
    "copy_latency_seconds",
    "Of each frame of a link, the age of its oldest block when the destination has confirmed it.",
    *LINK,
)
ANNOUNCE: Final = histogram(
    "sync_announce_latency_seconds",
    "Of each announcement of a topic's subscriptions, from the first acknowledgement in it until it is durable here.",
)
SYNC: Final = histogram(
    "sync_latency_seconds",
    "Of each round of other clusters' announcements, the age of the oldest when it is applied and durable here.",
    "origin",
)

# Topics and subscriptions.
TOPICS: Final = gauge("topics", "Topics of the cluster.", unit="topics")
SUBSCRIPTIONS: Final = gauge("subscriptions", "Subscriptions of the cluster.", unit="subscriptions")
SUMMED_TOPICS: Final = gauge(
    "metrics_summed_topics",
    'Topics beyond the limit metrics.topics: they have no series of their own and are summed as topic="other".',
    unit="topics",
)
SUMMED_SUBSCRIPTIONS: Final = gauge(
    "metrics_summed_subscriptions",
    "Subscriptions beyond the limits metrics.topics and metrics.subscriptions: they are summed as"
    ' topic="other", subscription="other".',
    unit="subscriptions",
)
TOPIC_ENTRIES: Final = gauge("topic_entries", "Entries in the topic's log, markers included.", TOPIC, unit="entries")
TOPIC_MESSAGES: Final = counter(
    "topic_messages",
    'Messages appended to the topic since it was made, of all origins, also over restarts; of "other" since the first'
    " scrape.",
    TOPIC,
    unit="messages",
    replaces=Replaced("topic_messages"),
)
TOPIC_MARKERS: Final = gauge("topic_markers", "Marker entries in the topic's log.", TOPIC, unit="entries")
BACKLOG_ENTRIES: Final = gauge(
    "subscription_backlog_entries",
    "Entries that are not acknowledged, markers not counted.",
    *SUBSCRIPTION,
    unit="entries",
)
BACKLOG_MESSAGES: Final = gauge(
    "subscription_backlog_messages",
    "Messages in entries that are not wholly acknowledged.",
    *SUBSCRIPTION,
    unit="messages",
)
DELETED_ENTRIES: Final = gauge(
    "subscription_individually_deleted_entries",
    "Entries acknowledged beyond the mark-delete position.",
    *SUBSCRIPTION,
    unit="entries",
)

# Links.
LINK_UP: Final = flag(
    "link_up", "1 while the link is connected to its destination, idle or copying, or Spark carries it.", *LINK
)
LINK_PAUSED: Final = flag("link_paused", "1 while an operator has paused the link.", *LINK)
LINK_TOPICS: Final = gauge("link_topics", "Topics that the link copies.", *LINK, unit="topics")
LINK_BACKLOG: Final = gauge(
    "link_backlog_entries",
    "Entries that the destination has not confirmed, of any origin.",
    *LINK,
    unit="entries",
)
LINK_LAG: Final = gauge(
    "link_lag_seconds",
    "Age of the oldest block that the destination has not confirmed; 0 when it has all.",
    *LINK,
    replaces=Replaced("link_lag_ms", factor=1000),
)
LINK_IN_FLIGHT: Final = gauge(
    "link_in_flight_frames", "Frames sent and not acknowledged by the destination.", *LINK, unit="frames"
)
LINK_HALTED: Final = gauge(
    "link_halted_topics", "Topics that the link cannot go on with, gaps included.", *LINK, unit="topics"
)
LINK_HOLD_EXCEEDED: Final = gauge(
    "link_hold_exceeded_topics",
    "Topics whose held-back data exceeds the hold of the link.",
    *LINK,
    unit="topics",
)
LINK_GAPS: Final = gauge("link_gaps", "Topics that the link stopped at a gap, by kind.", *LINK, "kind", unit="topics")
LINK_SKIPPED: Final = gauge(
    "link_skipped_gaps",
    "Gaps that the link went over, by policy or because an operator said so.",
    *LINK,
    unit="gaps",
)
BACKFILL_BYTES: Final = gauge(
    "link_backfill_size_bytes",
    "Bytes of the topics that a backfill is bringing over the link; only while there is one.",
    *LINK,
    replaces=Replaced("link_backfill_bytes_total"),
)
BACKFILL_LEFT: Final = gauge(
    "link_backfill_left_bytes",
    "Bytes of them that the destination does not have yet.",
    *LINK,
    replaces=Replaced("link_backfill_bytes_left"),
)
LINK_COUNTERS: Final[Mapping[str, Metric]] = {
    "blocks": counter("link_blocks", "Blocks sent.", *LINK, unit="blocks"),
    "entries": counter("link_entries", "Entries sent.", *LINK, unit="entries"),
    "messages": counter("link_messages", "Messages sent.", *LINK, unit="messages"),
    "bytes": counter("link_bytes", "Bytes of blocks sent.", *LINK),
    "wire_bytes": counter("link_wire_bytes", "Bytes of frames sent, as compressed.", *LINK),
    "reconnects": counter(
        "link_reconnects", "Times that the connection was lost or could not be made.", *LINK, unit="times"
    ),
}

# Traces; only of a worker that has them.
TRACES_SPANS: Final = counter(
    "traces_spans",
    "Spans by what became of them: exported, dropped because too many waited, or refused: not taken by the collector.",
    "outcome",
    unit="spans",
)
TRACES_QUEUED: Final = gauge("traces_queued_spans", "Spans that wait for the collector.", unit="spans")
TRACES_COUNTERS: Final[Mapping[str, Metric]] = {
    "messages": counter("traces_messages", "Messages published here that are traced.", unit="messages"),
    "messages_over_limit": counter(
        "traces_messages_over_limit",
        "Messages that were sampled and not traced: there were more in a second than traces.per_second.",
        unit="messages",
    ),
    "notes_forgotten": counter(
        "traces_notes_forgotten",
        "Traced messages that were forgotten to make room for younger ones: traces.notes are remembered.",
        unit="messages",
    ),
}

# What Spark's tasks write.
STAGED_BYTES: Final = gauge("staging_staged_bytes", "Bytes that Spark's tasks wrote and that are not committed.")
STAGED_ATTEMPTS: Final = gauge("staging_attempts", "Attempts of tasks that are staged.", unit="attempts")
STAGED_PUBLISHING: Final = gauge("staging_publishing", "Commits that are being published.", unit="commits")
STAGING_COUNTERS: Final[Mapping[str, Metric]] = {
    "commits": counter("staging_commits", "Commits published.", unit="commits"),
    "torn_commits": counter(
        "staging_torn_commits", "Commits whose files were lost when a part of them was published.", unit="commits"
    ),
    "repeated_commits": counter("staging_repeated_commits", "Commits that had been published before.", unit="commits"),
    "aborted_attempts": counter(
        "staging_aborted_attempts", "Attempts of tasks that were dropped by an abort.", unit="attempts"
    ),
    "swept_attempts": counter(
        "staging_swept_attempts", "Attempts of tasks that nobody came back for.", unit="attempts"
    ),
    "messages": counter("staging_messages", "Messages published by commits.", unit="messages"),
    "bytes": counter("staging_bytes", "Bytes published by commits."),
    "received_bytes": counter("staging_received_bytes", "Bytes that tasks wrote, committed or not."),
}

# Subscription sync. Of topics that were deleted or unloaded since, nothing is in these figures.
SYNC_COUNTERS: Final[Mapping[str, Metric]] = {
    "requests": counter("sync_requests", "Snapshot requests written here.", unit="requests"),
    "answers": counter("sync_answers", "Snapshot responses written here, for other clusters.", unit="responses"),
    "responses": counter("sync_responses", "Snapshot responses of other clusters that were read.", unit="responses"),
    "mappings": counter("sync_mappings", "Snapshot mappings recorded.", unit="mappings"),
    "timeouts": counter(
        "sync_timeouts",
        "Snapshot requests that some cluster left unanswered for sync.snapshot_timeout_ms.",
        unit="requests",
    ),
    "skipped": counter(
        "sync_skipped", "Responses that can make no mapping, and updates that point past the log.", unit="markers"
    ),
    "updates_sent": counter(
        "sync_updates_sent", "Subscriptions told of to other clusters, summed over markers.", unit="updates"
    ),
    "updates_applied": counter(
        "sync_updates_applied", "Updates of subscriptions from other clusters that were applied.", unit="updates"
    ),
    "updates_ignored": counter(
        "sync_updates_ignored",
        "Updates that were ignored: of subscriptions that are not replicated here, or that cannot be made.",
        unit="updates",
    ),
    "markers_corrupt": counter("sync_markers_corrupt", "Markers that could not be read.", unit="markers"),
    "answers_unprovable": counter(
        "sync_answers_unprovable",
        "Snapshot requests that were not answered because the log does not prove what it has.",
        unit="requests",
    ),
}

# Beside Apache Pulsar.
APACHE_UP: Final = flag(
    "apache_up", "1 while the worker reaches the Apache Pulsar cluster that it runs beside; none of another kind."
)
APACHE_TOPICS: Final = gauge("apache_topics", "Topics of the Apache Pulsar cluster that are bridged.", unit="topics")
APACHE_REFUSED: Final = gauge(
    "apache_refused_topics", "Topics of the Apache Pulsar cluster that cannot be bridged.", unit="topics"
)
APACHE_REQUESTS_REFUSED: Final = counter(
    "apache_requests_refused",
    "Requests that the admin API of the Apache Pulsar cluster answered by telling the worker to wait (429, 503).",
    unit="requests",
)
APACHE_DIFFERING: Final = gauge(
    "apache_differing_topics",
    "Topics beside the Apache Pulsar cluster that are halted, or that differ from what it has for 15 s.",
    unit="topics",
)
APACHE_COMPARED_AGE: Final = gauge(
    "apache_comparison_age_max_seconds",
    "Age of the oldest comparison of a topic with what the Apache Pulsar cluster has; 0 if none was compared yet.",
)

METRICS: Final[Sequence[Metric]] = (
    *(BUILD_INFO, START_TIME, READY, CONNECTIONS, ACCEPTED, TASK_RESTARTS, TASKS_FAILING),
    *(TOPOLOGY_REFUSED, LOOP_LAG, LOOP_LAG_MAX, DATABASE_UP, ROWS_REFUSED, AUDIT_WAITING, AUDIT_DROPPED),
    *(UNPACKED_BYTES, UNPACKED_LIMIT, UNPACKED_WAITING),
    *(STORE_BYTES, STORE_LIMIT, STORE_SEGMENT_BYTES, STORE_DISK_FREE, STORE_DISK_FULL, STORE_FULL, STORE_FAILED),
    *(STORE_COMMITS, STORE_DAMAGED, STORE_MENDED, STORE_TWINS),
    *(STORE_NEW, PEER_STORE_NEW, STORE_AWAITED),
    *(SHARED_NAMES, OTHER_CONTENT, HIDDEN_DIFFERING),
    *(FAILOVER_EPOCH, FAILOVER_FENCED, FAILOVER_SERVES, FAILOVER_PRODUCERS, DRIVER_UP, DRIVER_STARTS),
    *(PUBLISH, ACKNOWLEDGE, DISPATCH, COPY, ANNOUNCE, SYNC),
    *(TOPICS, SUBSCRIPTIONS, SUMMED_TOPICS, SUMMED_SUBSCRIPTIONS),
    *(TOPIC_ENTRIES, TOPIC_MESSAGES, TOPIC_MARKERS, BACKLOG_ENTRIES, BACKLOG_MESSAGES, DELETED_ENTRIES),
    *(LINK_UP, LINK_PAUSED, LINK_TOPICS, LINK_BACKLOG, LINK_LAG, LINK_IN_FLIGHT),
    *(LINK_HALTED, LINK_HOLD_EXCEEDED, LINK_GAPS, LINK_SKIPPED, BACKFILL_BYTES, BACKFILL_LEFT),
    *LINK_COUNTERS.values(),
    *(STAGED_BYTES, STAGED_ATTEMPTS, STAGED_PUBLISHING, *STAGING_COUNTERS.values()),
    *SYNC_COUNTERS.values(),
    *(TRACES_SPANS, TRACES_QUEUED, *TRACES_COUNTERS.values()),
    *(APACHE_UP, APACHE_TOPICS, APACHE_REFUSED, APACHE_REQUESTS_REFUSED, APACHE_DIFFERING, APACHE_COMPARED_AGE),
)

PROCESS: Final[Sequence[Metric]] = tuple(
    Metric(name, kind, text, (), unit)
    for name, kind, text, unit in (
        ("process_virtual_memory_bytes", Kind.GAUGE, "Virtual memory of the worker's process.", ""),
        ("process_resident_memory_bytes", Kind.GAUGE, "Resident memory of the worker's process.", ""),
        ("process_start_time_seconds", Kind.GAUGE, "When the process started, in seconds since 1970.", ""),
        ("process_cpu_seconds_total", Kind.COUNTER, "CPU time of the process, of users and system.", ""),
        ("process_open_fds", Kind.GAUGE, "Open files and sockets of the process.", "descriptors"),
        ("process_max_fds", Kind.GAUGE, "The most files and sockets that it may open.", "descriptors"),
    )
)
"""Metrics of the process from the client library. Their names are those of all programs, without the label
``cluster``."""
