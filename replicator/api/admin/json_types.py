"""Types of the JSON of the admin paths, which has Pulsar's names, with one line of meaning for each field.

docs/reference/json.md is made from here; a second text of a field is its unit. Fields that the engine does not count
are 0, because Pulsar's tools expect them.
"""

from __future__ import annotations

from typing import Annotated, Any, NotRequired, TypedDict

NOT_COUNTED = "not counted; there for Pulsar's tools"


class PulsarTaken(TypedDict):
    """Rates and counts of messages that consumers received."""

    msgRateOut: Annotated[float, "given to consumers", "messages/s"]
    msgThroughputOut: Annotated[float, "the same", "bytes/s"]
    bytesOutCounter: Annotated[int, "given to consumers since the start", "bytes"]
    msgOutCounter: Annotated[int, "the same", "messages"]


class PulsarClient(TypedDict):
    """Address and version of a client. For a client in the worker's own process there are none."""

    address: NotRequired[Annotated[str, "its address"]]
    clientVersion: NotRequired[Annotated[str, "what it says that it is"]]
    connectedSince: NotRequired[Annotated[str, "when it connected", "ISO 8601"]]


class PulsarConsumer(PulsarTaken, PulsarClient):
    """A consumer that is connected."""

    msgRateRedeliver: Annotated[float, "given out again", "messages/s"]
    messageAckRate: Annotated[float, "acknowledged", "messages/s"]
    consumerName: Annotated[str, "its name"]
    availablePermits: Annotated[int, "asked for and not given yet", "messages"]
    unackedMessages: Annotated[int, "given and not acknowledged", "messages"]
    blockedConsumerOnUnackedMsgs: Annotated[bool, "whether that is too much"]
    metadata: Annotated[dict[str, str], "its properties"]
    chunkedMessageRate: Annotated[float, NOT_COUNTED]
    avgMessagesPerEntry: Annotated[int, NOT_COUNTED]
    drainingHashesCount: Annotated[int, NOT_COUNTED]
    drainingHashesClearedTotal: Annotated[int, NOT_COUNTED]
    drainingHashesUnackedMessages: Annotated[int, NOT_COUNTED]
    lastAckedTimestamp: Annotated[int, NOT_COUNTED]
    lastConsumedTimestamp: Annotated[int, NOT_COUNTED]
    lastConsumedFlowTimestamp: Annotated[int, NOT_COUNTED]
    lastAckedTime: Annotated[str, NOT_COUNTED]
    lastConsumedTime: Annotated[str, NOT_COUNTED]


class PulsarPublisher(PulsarClient):
    """A producer that is connected."""

    msgRateIn: Annotated[float, "published by it", "messages/s"]
    msgThroughputIn: Annotated[float, "the same", "bytes/s"]
    averageMsgSize: Annotated[float, "of its messages", "bytes"]
    producerId: Annotated[int, "its number"]
    producerName: Annotated[str, "its name"]
    accessMode: Annotated[str, "`Shared` or `Exclusive`"]
    metadata: Annotated[dict[str, str], "its properties"]
    chunkedMessageRate: Annotated[float, NOT_COUNTED]
    supportsPartialProducer: Annotated[bool, NOT_COUNTED]


class PulsarSubscription(PulsarTaken):
    """The figures of a subscription; of a partitioned topic their sums."""

    msgRateRedeliver: Annotated[float, "given out again", "messages/s"]
    messageAckRate: Annotated[float, "acknowledged", "messages/s"]
    msgBacklog: Annotated[int, "not consumed yet", "messages"]
    msgBacklogNoDelayed: Annotated[int, "the same without those to be delivered later", "messages"]
    backlogSize: Annotated[int, "above the mark-delete position", "bytes"]
    type: Annotated[str, "`Exclusive`, `Shared`, `Failover` or `Key_Shared`; `None` without consumers"]
    isReplicated: Annotated[bool, "whether it is kept in step in the other clusters"]
    replicated: Annotated[bool, "the same"]
    isDurable: Annotated[bool, "whether it outlives its consumers"]
    durable: Annotated[bool, "the same"]
    unackedMessages: Annotated[int, "given out and not acknowledged", "messages"]
    blockedSubscriptionOnUnackedMsgs: Annotated[bool, "whether that is too much"]
    msgDelayed: Annotated[int, "to be delivered later", "entries"]
    msgInReplay: Annotated[int, "to be given out again", "entries"]
    activeConsumerName: NotRequired[Annotated[str, "who is given messages, where that is one"]]
    drainingHashesCount: Annotated[int, "Key_Shared: hashes that one consumer has to let go", "hashes"]
    nonContiguousDeletedMessagesRanges: Annotated[int, "ranges acknowledged beyond the mark-delete position", "ranges"]
    subscriptionProperties: Annotated[dict[str, str], "its properties"]
    consumers: Annotated[list[PulsarConsumer], "those that are connected"]
    allowOutOfOrderDelivery: Annotated[bool, "Key_Shared: whether a key may be delivered out of order"]
    keySharedMode: NotRequired[Annotated[str, "Key_Shared: `AUTO_SPLIT` or `STICKY`"]]
    chunkedMessageRate: Annotated[float, NOT_COUNTED]
    earliestMsgPublishTimeInBacklog: Annotated[int, NOT_COUNTED]
    msgRateExpired: Annotated[float, NOT_COUNTED]
    totalMsgExpired: Annotated[int, NOT_COUNTED]
    lastExpireTimestamp: Annotated[int, NOT_COUNTED]
    lastConsumedFlowTimestamp: Annotated[int, NOT_COUNTED]
    lastConsumedTimestamp: Annotated[int, NOT_COUNTED]
    lastAckedTimestamp: Annotated[int, NOT_COUNTED]
    lastMarkDeleteAdvancedTimestamp: Annotated[int, NOT_COUNTED]
    consumersAfterMarkDeletePosition: Annotated[dict[str, str], NOT_COUNTED]
    drainingHashesClearedTotal: Annotated[int, NOT_COUNTED]
    drainingHashesUnackedMessages: Annotated[int, NOT_COUNTED]
    nonContiguousDeletedMessagesRangesSerializedSize: Annotated[int, NOT_COUNTED]
    delayedMessageIndexSizeInBytes: Annotated[int, NOT_COUNTED]
    filterProcessedMsgCount: Annotated[int, NOT_COUNTED]
    filterAcceptedMsgCount: Annotated[int, NOT_COUNTED]
    filterRejectedMsgCount: Annotated[int, NOT_COUNTED]
    filterRescheduledMsgCount: Annotated[int, NOT_COUNTED]


class PulsarCompaction(TypedDict):
    """The newest compaction."""

    lastCompactionRemovedEventCount: Annotated[int, NOT_COUNTED]
    lastCompactionSucceedTimestamp: Annotated[int, NOT_COUNTED]
    lastCompactionFailedTimestamp: Annotated[int, NOT_COUNTED]
    lastCompactionDurationTimeInMills: Annotated[int, NOT_COUNTED]


class PulsarPartitions(TypedDict):
    """Number of partitions of a partitioned topic."""

    partitions: Annotated[int, "how many it has", "partitions"]
    deleted: Annotated[bool, "always false"]


class PulsarTopicStats(PulsarTaken):
    """The figures of a topic; of a partitioned one their sums."""

    msgRateIn: Annotated[float, "published", "messages/s"]
    msgThroughputIn: Annotated[float, "the same", "bytes/s"]
    bytesInCounter: Annotated[int, "stored", "bytes"]
    msgInCounter: Annotated[int, "stored", "messages"]
    averageMsgSize: Annotated[float, "of those that are stored", "bytes"]
    storageSize: Annotated[int, "stored", "bytes"]
    backlogSize: Annotated[int, "of the subscription that is behind most", "bytes"]
    backlogQuotaLimitSize: Annotated[int, "the quota of the backlog; -1: none", "bytes"]
    backlogQuotaLimitTime: Annotated[int, "the same by age; -1: none", "s"]
    publishers: Annotated[list[PulsarPublisher], "producers that may publish"]
    waitingPublishers: Annotated[int, "producers that wait for an exclusive one", "producers"]
    subscriptions: Annotated[dict[str, PulsarSubscription], "by name"]
    replication: Annotated[dict[str, Any], "empty: links are shown by `replicator links list`"]
    nonContiguousDeletedMessagesRanges: Annotated[int, "the sum of the subscriptions'", "ranges"]
    compaction: Annotated[PulsarCompaction, "the newest compaction"]
    deduplicationStatus: NotRequired[Annotated[str, "`Enabled` or `Disabled`; not of a partitioned topic"]]
    ownerBroker: NotRequired[Annotated[str, "the worker; not of a partitioned topic"]]
    topicEpoch: NotRequired[Annotated[int, "grows with each exclusive producer, once there was one"]]
    metadata: NotRequired[Annotated[PulsarPartitions, "of a partitioned topic"]]
    partitions: NotRequired[Annotated[dict[str, Any], "of a partitioned topic: empty here"]]
    systemTopicBytesInCounter: Annotated[int, NOT_COUNTED]
    bytesOutInternalCounter: Annotated[int, NOT_COUNTED]
    msgChunkPublished: Annotated[bool, NOT_COUNTED]
    oldestBacklogMessageAgeSeconds: Annotated[int, NOT_COUNTED]
    publishRateLimitedTimes: Annotated[int, NOT_COUNTED]
    earliestMsgPublishTimeInBacklogs: Annotated[int, NOT_COUNTED]
    offloadedStorageSize: Annotated[int, NOT_COUNTED]
    lastOffloadLedgerId: Annotated[int, NOT_COUNTED]
    lastOffloadSuccessTimeStamp: Annotated[int, NOT_COUNTED]
    lastOffloadFailureTimeStamp: Annotated[int, NOT_COUNTED]
    ongoingTxnCount: Annotated[int, NOT_COUNTED]
    abortedTxnCount: Annotated[int, NOT_COUNTED]
    committedTxnCount: Annotated[int, NOT_COUNTED]
    delayedMessageIndexSizeInBytes: Annotated[int, NOT_COUNTED]
    nonContiguousDeletedMessagesRangesSerializedSize: Annotated[int, NOT_COUNTED]


class PulsarLedger(TypedDict):
    """A run of positions with one ledger number."""

    ledgerId: Annotated[int, "its number; -1: there is none"]
    entries: Annotated[int, "in it; -1: there is none", "entries"]
    size: Annotated[int, "of it; -1: there is none", "bytes"]
    offloaded: Annotated[bool, "always false"]
    underReplicated: Annotated[bool, "always false"]


class PulsarCursor(TypedDict):
    """Cursor of a subscription: the messages that it has acknowledged."""

    markDeletePosition: Annotated[str, "up to which all is acknowledged", "ledger:entry"]
    readPosition: Annotated[str, "the first position behind it", "ledger:entry"]
    waitingReadOp: Annotated[bool, "whether consumers wait for messages"]
    messagesConsumedCounter: Annotated[int, "acknowledged, of those that are stored", "entries"]
    individuallyDeletedMessages: Annotated[str, "ranges acknowledged beyond it"]
    lastLedgerSwitchTimestamp: Annotated[str, "when the worker started", "ISO 8601"]
    state: Annotated[str, "always `Open`"]
    active: Annotated[bool, "whether consumers are connected"]
    numberOfEntriesSinceFirstNotAckedMessage: Annotated[int, "behind the mark-delete position", "entries"]
    totalNonContiguousDeletedMessagesRange: Annotated[int, "ranges acknowledged beyond it", "ranges"]
    pendingReadOps: Annotated[int, NOT_COUNTED]
    cursorLedger: Annotated[int, "always -1: it is in the worker's store"]
    cursorLedgerLastEntry: Annotated[int, "always -1"]
    subscriptionHavePendingRead: Annotated[bool, NOT_COUNTED]
    subscriptionHavePendingReplayRead: Annotated[bool, NOT_COUNTED]
    properties: Annotated[dict[str, int], "always empty"]


class PulsarInternalStats(TypedDict):
    """The inside of a topic: ledgers and cursors."""

    entriesAddedCounter: Annotated[int, "stored", "entries"]
    numberOfEntries: Annotated[int, "stored", "entries"]
    totalSize: Annotated[int, "stored", "bytes"]
    currentLedgerEntries: Annotated[int, "in the last ledger", "entries"]
    currentLedgerSize: Annotated[int, "of the last ledger", "bytes"]
    lastLedgerCreatedTimestamp: Annotated[str, "when the worker started", "ISO 8601"]
    lastConfirmedEntry: Annotated[str, "the last position", "ledger:entry"]
    state: Annotated[str, "`LedgerOpened`, or `Terminated`"]
    ledgers: Annotated[list[PulsarLedger], "all ledgers"]
    cursors: Annotated[dict[str, PulsarCursor], "by subscription"]
    compactedLedger: Annotated[PulsarLedger, "what compaction has made"]
    schemaLedgers: Annotated[list[Any], "always empty"]
    waitingCursorsCount: Annotated[int, NOT_COUNTED]
    pendingAddEntriesCount: Annotated[int, NOT_COUNTED]


class CompactionStatus(TypedDict):
    """Progress of a compaction."""

    status: Annotated[str, "`NOT_RUN`, `RUNNING`, `SUCCESS` or `ERROR`"]
    lastError: Annotated[str, "why it failed"]


class PulsarMessageId(TypedDict):
    """The id of a message."""

    ledgerId: Annotated[int, "of its position; -1: there is no message"]
    entryId: Annotated[int, "of its position; -1: there is no message"]
    partitionIndex: Annotated[int, "the number of its partition; -1: the topic has none"]
    batchIndex: Annotated[int, "its place in its batch; -1: not said"]
    batchSize: Annotated[int, "always 0"]


class PulsarRetention(TypedDict):
    """How long and how much consumed data is kept after every subscription has consumed it; -1 means no limit."""

    retentionTimeInMinutes: Annotated[int, "how old it may be", "min"]
    retentionSizeInMB: Annotated[int, "how large it may be", "MiB"]


class PulsarQuota(TypedDict):
    """A quota of a topic's backlog."""

    limit: NotRequired[Annotated[int, "how large it may be; -1: no limit", "bytes"]]
    limitSize: Annotated[int, "the same", "bytes"]
    limitTime: Annotated[int, "how old it may be; -1: no limit", "s"]
    policy: Annotated[str, "what happens then"]


class PulsarAutoTopics(TypedDict):
    """Whether a topic is made when a client names it."""

    allowAutoTopicCreation: Annotated[bool, "whether they are"]
    topicType: Annotated[str, "`partitioned` or `non-partitioned`"]
    defaultNumPartitions: NotRequired[Annotated[int, "how many partitions they have", "partitions"]]


class PulsarAutoSubscriptions(TypedDict):
    """Whether a subscription is made when a client names it."""

    allowAutoSubscriptionCreation: Annotated[bool, "whether they are"]


class NamespacePolicies(TypedDict):
    """Policies that are set for a namespace, under Pulsar's names. A policy that is not set is absent."""

    replication_clusters: Annotated[list[str], "the clusters that it is copied to; all that are linked unless chosen"]
    autoTopicCreationOverride: Annotated[PulsarAutoTopics, "whether topics are made by naming them"]
    autoSubscriptionCreationOverride: Annotated[PulsarAutoSubscriptions, "whether subscriptions are"]
    backlog_quota_map: Annotated[dict[str, PulsarQuota], "by `destination_storage` and `message_age`"]
    retention_policies: NotRequired[Annotated[PulsarRetention, "how long and how much consumed data is kept"]]
    message_ttl_in_seconds: NotRequired[Annotated[int, "after what time a message counts as consumed"]]
    deduplicationEnabled: NotRequired[Annotated[bool, "whether messages that a producer sends again are dropped"]]
    compaction_threshold: NotRequired[Annotated[int, "after how much topics are compacted; 0: never", "bytes"]]
    max_unacked_messages_per_consumer: NotRequired[Annotated[int, "0: no limit", "messages"]]
    max_unacked_messages_per_subscription: NotRequired[Annotated[int, "0: no limit", "messages"]]
    max_producers_per_topic: NotRequired[Annotated[int, "0: no limit", "producers"]]
    max_consumers_per_topic: NotRequired[Annotated[int, "0: no limit", "consumers"]]
    replicate_subscription_state: NotRequired[Annotated[bool, "whether new subscriptions are replicated"]]
    schema_compatibility_strategy: Annotated[str, "which schemas may follow; `UNDEFINED`: not set"]
    is_allow_auto_update_schema: Annotated[bool, "whether producers and consumers register schemas"]
    schema_validation_enforced: Annotated[bool, "whether a topic with a schema refuses producers without one"]
    auth_policies: Annotated[dict[str, Any], "always empty: `GET …/permissions` has the permissions"]
    allowed_clusters: Annotated[list[str], "always empty"]
    bundles: Annotated[dict[str, Any], "always one: a cluster is one worker"]
    clusterDispatchRate: Annotated[dict[str, Any], "always empty"]
    topicDispatchRate: Annotated[dict[str, Any], "always empty"]
    subscriptionDispatchRate: Annotated[dict[str, Any], "always empty"]
    replicatorDispatchRate: Annotated[dict[str, Any], "always empty"]
    clusterSubscribeRate: Annotated[dict[str, Any], "always empty"]
    publishMaxMessageRate: Annotated[dict[str, Any], "always empty"]
    latency_stats_sample_rate: Annotated[dict[str, Any], "always empty"]
    deleted: Annotated[bool, "always false"]
    encryption_required: Annotated[bool, "always false"]
    subscription_auth_mode: Annotated[str, "always `None`: `GET …/subscriptionAuthMode` has it"]
    offload_threshold: Annotated[int, "always -1"]
    offload_threshold_in_seconds: Annotated[int, "always -1"]
    subscription_types_enabled: Annotated[list[str], "always empty: all are"]
    properties: Annotated[dict[str, str], "always empty"]
    migrated: Annotated[bool, "always false"]
