"""Fields of the JSON for topics, subscriptions and the store: names, types, and one line of meaning each.

docs/reference/json.md is generated from here. A second text of a field is its unit, if its name does not say it.
"""

from __future__ import annotations

from typing import Annotated, Any, NotRequired, TypedDict


class ConsumerStatus(TypedDict):
    """A consumer that is connected."""

    name: Annotated[str, "its name"]
    permits: Annotated[int, "how many messages it asked for and has not been given", "messages"]
    unacked_entries: Annotated[int, "given to it and not acknowledged", "entries"]
    unacked_messages: Annotated[int, "the same, in messages", "messages"]
    blocked_on_unacked: Annotated[bool, "whether it is given nothing, as it holds too much that is not acknowledged"]
    key_hash_ranges: NotRequired[Annotated[list[list[int]], "Key_Shared: the ranges of key hashes that are its own"]]
    held_hashes: NotRequired[Annotated[int, "Key_Shared: how many key hashes it holds messages of", "hashes"]]
    draining_hashes: NotRequired[Annotated[list[int], "Key_Shared: those that others wait for it to let go"]]
    waiting_entries: NotRequired[Annotated[int, "Key_Shared: entries that wait for it", "entries"]]
    recently_joined_at: NotRequired[Annotated[str | None, "Key_Shared: the position at which it joined"]]


class SubscriptionStatus(TypedDict):
    """A subscription in one cluster."""

    name: Annotated[str, "its name"]
    type: Annotated[str | None, "`Exclusive`, `Shared`, `Failover` or `Key_Shared`; null before the first consumer"]
    durable: Annotated[bool, "whether it outlives its consumers"]
    replicated: Annotated[bool, "whether it is kept in step in the other clusters"]
    generation: Annotated[int, "grows with each seek; states of an older one do not count"]
    mark_delete: Annotated[str, "the position up to which all is acknowledged", "ledger:entry"]
    individually_deleted_entries: Annotated[int, "acknowledged beyond it", "entries"]
    backlog_entries: Annotated[int, "not consumed yet", "entries"]
    backlog_messages: Annotated[int, "not consumed yet; a partly acknowledged batch counts whole", "messages"]
    error: Annotated[str | None, "why nothing is given out"]
    active_consumer: Annotated[str | None, "Exclusive and Failover: who is given messages"]
    consumers: Annotated[list[ConsumerStatus], "those that are connected"]
    unacked_messages: NotRequired[Annotated[int, "Shared and Key_Shared: given out, not acknowledged", "messages"]]
    blocked_on_unacked: NotRequired[Annotated[bool, "Shared and Key_Shared: whether that is too much"]]
    delayed_entries: NotRequired[Annotated[int, "Shared and Key_Shared: to be delivered later", "entries"]]
    replay_entries: NotRequired[Annotated[int, "Shared: to be given out again", "entries"]]
    key_assignment: NotRequired[Annotated[str, "Key_Shared: how hashes are assigned to consumers"]]
    key_ordering: NotRequired[Annotated[str, "Key_Shared: how the order of a key is kept as consumers change"]]
    waiting_entries: NotRequired[Annotated[int, "Key_Shared: wait for their consumer", "entries"]]
    blocked_on_waiting: NotRequired[Annotated[bool, "Key_Shared: whether so many wait that nothing more is read"]]
    draining_hashes: NotRequired[Annotated[int, "Key_Shared: hashes that one consumer has to let go", "hashes"]]


class TopicStatus(TypedDict):
    """A topic in one cluster."""

    name: Annotated[str, "its whole name, `persistent://tenant/namespace/name`"]
    incarnation: Annotated[int, "another number for each topic that was made under this name"]
    first: Annotated[str, "the position of the first entry that is stored", "ledger:entry"]
    trimmed: Annotated[str, "the position up to which entries were deleted", "ledger:entry"]
    lac: Annotated[str, "the position of the last entry", "ledger:entry"]
    entries: Annotated[int, "stored, markers included", "entries"]
    messages: Annotated[int, "stored", "messages"]
    terminated: Annotated[bool, "whether it takes no more messages, for ever"]
    markers: Annotated[int, "entries of the replicator's own among them", "entries"]
    high_water: Annotated[dict[str, str], "by origin, up to which of its positions all is here", "ledger:entry"]
    taken_back: NotRequired[
        Annotated[
            str,
            "after a lost disk, its cluster's newest own message that came back; what it confirmed later is lost",
            "ledger:entry",
        ]
    ]
    subscriptions: Annotated[list[SubscriptionStatus], "its subscriptions"]


class SegmentsStatus(TypedDict):
    """The files that hold large blocks."""

    segments: Annotated[int, "how many files", "files"]
    bytes: Annotated[int, "their size"]
    live_bytes: Annotated[int, "of blocks that are needed"]
    free_bytes: Annotated[int, "that new blocks can take"]
    dead_bytes: Annotated[int, "of blocks that are not needed, in files that are not free"]
    memory_bytes: Annotated[int, "of blocks that were just written, kept to be read"]
    direct: Annotated[bool, "whether they are written past the page cache"]
    reason: Annotated[str, "why not, if they are not"]


class DiskStatus(TypedDict):
    """The disk below the store."""

    free_bytes: Annotated[int, "free on it"]
    reserve_bytes: Annotated[int, "set aside for the store"]
    full: Annotated[str | None, "why messages are refused"]


class StagingStatus(TypedDict):
    """Data that Spark jobs have staged and that is not published yet."""

    staged_bytes: Annotated[int, "waiting to be published"]
    staged_bytes_max: Annotated[int, "how much may wait"]
    attempts: Annotated[int, "attempts of tasks that wait", "attempts"]
    largest: Annotated[
        list[dict[str, Any]], "the largest epochs of these: `writer`, `run`, `epoch`, `bytes`, `untouched_ms`"
    ]
    commits: Annotated[int, "epochs that were committed since the start", "epochs"]
    torn_commits: Annotated[int, "decided ones whose staged files were lost when a part was published"]
    repeated_commits: Annotated[int, "that were asked for again and changed nothing", "epochs"]
    aborted_attempts: Annotated[int, "given up by their job", "attempts"]
    swept_attempts: Annotated[int, "removed because nobody came back for them", "attempts"]
    messages: Annotated[int, "published since the start", "messages"]
    bytes: Annotated[int, "of these"]
    received_bytes: Annotated[int, "brought since the start"]
    publishing: Annotated[list[dict[str, Any]], "epochs that are being published, each with its `obstacle`, if any"]
    writers: Annotated[list[dict[str, Any]], "the newest writers: `name`, `commits`, `committed_ms`"]


class RestoredStatus(TypedDict):
    """The last restore of the store from a backup, or its last reclaim without one."""

    restore_id: Annotated[str, "by which other clusters tell it from earlier ones"]
    backup: Annotated[str, "the backup's id; empty: none was restored, and messages were only taken back"]
    made_at_ms: Annotated[int, "when the backup was made; without one, when the first reclaim began"]
    restored_at_ms: Annotated[int, "when it was restored; without a backup, when the first reclaim began"]
    settled_at_ms: Annotated[int | None, "when the other clusters had been asked; null: the worker may not start yet"]
    reclaimed_messages: Annotated[int, "that came back from other clusters", "messages"]
    reclaimed_topics: Annotated[int, "topics of these messages; each counts once", "topics"]
    lost: Annotated[list[str], "what is known to be lost, or was not asked for"]


class Retention(TypedDict):
    """Limits up to which consumed messages are kept."""

    age_seconds_max: Annotated[int | None, "how old it may be; null: no limit"]
    bytes_max: Annotated[int | None, "how large it may be; null: no limit"]


class BacklogQuota(TypedDict):
    """Limits of the backlog of the slowest subscription."""

    bytes_max: Annotated[int | None, "how large its backlog may be; null: no limit"]
    age_seconds_max: Annotated[int | None, "how old its oldest message may be; null: no limit"]
    policy: Annotated[str, "`producer_request_hold`, `producer_exception` or `consumer_backlog_eviction`"]


class TopicPolicies(TypedDict):
    """All policies of a topic; null is no limit."""

    retention: Annotated[Retention, "how long and how much consumed data is kept"]
    message_ttl_seconds: Annotated[int | None, "after what time a message counts as consumed"]
    backlog_quota: Annotated[BacklogQuota, "how far the slowest subscription may lag"]
    deduplication: Annotated[bool, "whether messages that a producer sends again are dropped"]
    compaction_threshold_bytes: Annotated[int | None, "after how much the topic is compacted by itself"]
    max_unacked_messages_per_consumer: Annotated[int | None, "given to a consumer and not acknowledged", "messages"]
    max_unacked_messages_per_subscription: Annotated[int | None, "the same of a subscription", "messages"]
    max_producers: Annotated[int | None, "how many producers", "producers"]
    max_consumers: Annotated[int | None, "how many consumers", "consumers"]
    max_message_bytes: Annotated[int | None, "how large a message may be"]
    delayed_delivery: Annotated[bool, "whether messages may ask to be delivered later"]
    replicate_subscription_state: Annotated[bool, "whether new subscriptions are replicated"]
    key_assignment: Annotated[str, "how key hashes are assigned to consumers of a Key_Shared subscription"]
    key_ordering: Annotated[str, "how the order of a key is kept as they change"]
    schema_compatibility: Annotated[str, "which schemas may follow those that there are"]
    schema_auto_update: Annotated[bool, "whether producers and consumers register schemas"]
    schema_validation_enforced: Annotated[bool, "whether a topic with a schema refuses producers without one"]


class PoliciesOfTopic(TypedDict):
    """Effective policies of a topic."""

    own: Annotated[list[str], "the names of those that are set for the topic itself"]
    policies: Annotated[TopicPolicies, "what counts"]
