"""JSON of a drill's report: names, types, and one line of meaning for each field. docs/drills.md defines the figures.

docs/reference/json.md is made from this module. The second text of a field is its unit, if its name does not give it.
"""

from __future__ import annotations

from typing import Annotated, Any, NotRequired, TypedDict


class LagPercentiles(TypedDict):
    """A lag; null without samples."""

    p50: Annotated[float | None, "the median", "ms"]
    p99: Annotated[float | None, "the 99th percentile", "ms"]
    samples: Annotated[int, "how many", "samples"]


class DrilledSubscription(TypedDict):
    """The figures of a subscription."""

    name: Annotated[str, "its name"]
    type: Annotated[str, "its type"]
    cumulative: Annotated[bool, "whether it acknowledges cumulatively"]
    deliveries: Annotated[int, "hand-overs to its consumers", "deliveries"]
    consumed_unique: Annotated[int, "messages that it received", "messages"]
    acknowledged: Annotated[int, "that it acknowledged", "messages"]
    lost: Annotated[int, "confirmed, and never received", "messages"]
    lost_with_disk: NotRequired[
        Annotated[
            int,
            "confirmed by a cluster before it lost its disk, and never seen in another one",
            "messages",
        ]
    ]
    repeated: Annotated[int, "beyond the first of a message", "deliveries"]
    repeated_acked_before_kill: Annotated[int, "of these: acknowledged before a cut", "deliveries"]
    repeated_acked_over_1s_before_kill: Annotated[int, "of these: acknowledged over 1 s before a cut", "deliveries"]
    repeated_acked_before_planned: Annotated[int, "of these: acknowledged before a planned failover", "deliveries"]
    out_of_order: Annotated[int | None, "first deliveries; null: it promises no order", "deliveries"]
    overtaken: Annotated[int | None, "messages that a newer one of their key overtook", "messages"]
    late: Annotated[int, "stranded, and after a newer one of their key", "messages"]
    sync_lag_ms: Annotated[LagPercentiles, "acknowledged here to settled there"]


class DrilledFailover(TypedDict):
    """A move of the clients. Times are since the first message was sent."""

    kind: Annotated[str, "what was done"]
    cluster: Annotated[str, "that clients left"]
    to: Annotated[str, "that they went to"]
    cut_at_seconds: Annotated[float | None, "from when on the old one could not be relied on"]
    at_seconds: Annotated[float | None, "when it was begun"]
    returned_at_seconds: Annotated[float | None, "when the old one was back"]
    rpo_messages: Annotated[int, "stranded", "messages"]
    rto_seconds: Annotated[float | None, "until traffic elsewhere"]
    first_confirm_seconds: Annotated[float | None, "until the first confirmation there"]
    first_delivery_seconds: Annotated[dict[str, float | None], "by subscription, until its first delivery there"]


class DrillPhase(TypedDict):
    """A part of a drill."""

    name: Annotated[str, "`before`, `during` or `after`"]
    at_seconds: Annotated[float | None, "when it began"]
    seconds: Annotated[float | None, "how long it was"]
    confirmed_per_second: Annotated[float | None, "published and confirmed", "messages/s"]
    copied_per_second: Annotated[float | None, "copied", "messages/s"]
    copy_lag_ms: Annotated[LagPercentiles, "confirmed here to seen there"]
    sync_lag_ms: Annotated[LagPercentiles, "acknowledged here to settled there"]
    counts_per_second: Annotated[dict[str, dict[str, float | None]], "by counter of workers and cluster, its growth"]


class FigureOverTopics(TypedDict):
    """A figure that each topic of a drill has, over all topics; null if none has it."""

    p50: Annotated[float | None, "the median"]
    p99: Annotated[float | None, "the 99th percentile"]
    worst: Annotated[float | None, "the greatest"]
    worst_topic: Annotated[str | None, "the topic that has it"]
    topics: Annotated[int, "how many topics have the figure", "topics"]


class FiguresOverTopics(TypedDict):
    """The figures of a drill, topic by topic."""

    lost: Annotated[FigureOverTopics, "confirmed, and never received"]
    repeated: Annotated[FigureOverTopics, "deliveries beyond the first of a message"]
    recover_seconds: Annotated[FigureOverTopics, "until traffic elsewhere, the longest of the failovers"]


class LostDisk(TypedDict):
    """A cluster that lost its disk in a drill, and started on a new store."""

    cluster: Annotated[str, "which one"]
    start_seconds: Annotated[float, "from the start of its worker until it served", "seconds"]
    seconds: Annotated[float, "from the loss until it served", "seconds"]
    state: Annotated[str, "what its worker said of its start at the end"]
    named_losses: Annotated[
        list[str], "messages that other clusters had and it could not take back, as its status names"
    ]
    nobody_had: NotRequired[Annotated[list[str], "what its status names as lost because no other cluster has it"]]
    reclaimed_messages: Annotated[int, "that it took back", "messages"]
    lost_messages: NotRequired[
        Annotated[int, "that it confirmed before the loss and that no client saw in another cluster", "messages"]
    ]
    named_messages: NotRequired[
        Annotated[int, "that it confirmed before the loss and whose loss its status names by `taken_back`", "messages"]
    ]
    differing_messages: NotRequired[
        Annotated[int, "lost and not named, or named and not lost; the drill fails unless this is 0", "messages"]
    ]


class DrillReport(TypedDict):
    """The report of one drill: `report.json`."""

    passed: Annotated[bool, "whether all promises held"]
    failures: Annotated[list[str], "which did not"]
    id: NotRequired[Annotated[str, "of the run in the database"]]
    kept: NotRequired[Annotated[str, "where that is, or why it was not kept"]]
    scenario: Annotated[str, "what was done"]
    system: Annotated[str, "what was drilled"]
    engine: Annotated[str, "what carried the links"]
    sync: Annotated[str, "what travelled of subscriptions"]
    links: Annotated[str, "`both-ways` or `one-way`"]
    seed: Annotated[int, "seed of all random choices"]
    rate: Annotated[int, "that was asked for", "messages/s"]
    input: Annotated[str, "where messages came from"]
    topic: Annotated[str, "the drill's topic; with several, the first"]
    topics: NotRequired[Annotated[int, "how many topics had traffic", "topics"]]
    over_topics: NotRequired[Annotated[FiguresOverTopics, "topic by topic: median, 99th percentile and the worst"]]
    client: Annotated[str, "whose producers and consumers"]
    secure: Annotated[bool, "whether it was run with `--secure`"]
    clusters: Annotated[list[str], "all clusters"]
    pair: Annotated[list[str], "the cluster that clients leave, and the one that they go to"]
    kinds: Annotated[dict[str, str] | None, "by cluster, embedded or beside a broker; null: all embedded"]
    judged: Annotated[list[str], "the kinds of failovers whose figures are judged"]
    configuration: Annotated[dict[str, dict[str, str]], "by part of the system, versions and what is not default"]
    lacks: Annotated[list[str], "fields for which the system has nothing"]
    started_at: Annotated[str, "when it began", "ISO 8601"]
    traffic_seconds: Annotated[float, "in which messages went"]
    wall_seconds: Annotated[float, "in all, verify included"]
    messages: Annotated[int, "that were sent", "messages"]
    published: Annotated[int, "that were sent", "messages"]
    confirmed: Annotated[int, "that a worker confirmed", "messages"]
    consumed_unique: Annotated[int, "that every subscription received", "messages"]
    lost: Annotated[int, "confirmed, and never received", "messages"]
    lost_with_disk: NotRequired[
        Annotated[
            int,
            "confirmed by a cluster before it lost its disk, and never seen in another one",
            "messages",
        ]
    ]
    repeated: Annotated[int, "beyond the first of a message", "deliveries"]
    repeated_acked_before_kill: Annotated[int, "of these: acknowledged before a cut", "deliveries"]
    repeated_acked_over_1s_before_kill: Annotated[int, "of these: acknowledged over 1 s before a cut", "deliveries"]
    repeated_acked_before_planned: Annotated[int, "of these: acknowledged before a planned failover", "deliveries"]
    out_of_order: Annotated[int, "first deliveries against the order of a key", "deliveries"]
    late: Annotated[int, "stranded, and after a newer one of their key", "messages"]
    rpo_messages: Annotated[int, "stranded", "messages"]
    rto_seconds: Annotated[float | None, "the longest of the failovers"]
    copy_lag_ms: Annotated[LagPercentiles, "confirmed here to seen there"]
    sync_lag_ms: Annotated[LagPercentiles, "acknowledged here to settled there"]
    snapshot_mappings: Annotated[int | None, "in the databases; null: the system has none", "mappings"]
    subscription_updates: Annotated[int | None, "update markers in the logs", "markers"]
    verify: Annotated[dict[str, int | None], "by fault, what verify found; null: it did not run"]
    verify_details: Annotated[dict[str, Any], "what else verify said"]
    subscriptions: Annotated[list[DrilledSubscription], "by subscription"]
    failovers: Annotated[list[DrilledFailover], "by failover"]
    kills: Annotated[list[DrilledFailover], "of these, the kills"]
    phases: Annotated[list[DrillPhase], "by part of the drill"]
    failover_reports: Annotated[list[dict[str, Any]], "what `replicator failover` and `failback` said"]
    lost_disks: NotRequired[Annotated[list[LostDisk], "clusters that lost their disks"]]
    differences: Annotated[list[str] | None, "what clients find otherwise at the other cluster"]
    connections: Annotated[dict[str, int] | None, "by cluster, connections that its worker accepted", "connections"]
    databases: Annotated[dict[str, str] | None, "by cluster, the state of its database at the end"]
    worker_tracebacks: Annotated[dict[str, int] | None, "by cluster, unexpected errors in its log", "errors"]
    not_checked: Annotated[list[str], "what a one-way link makes impossible"]
    tasks_ended: Annotated[str | None, "`REPLICATOR_END_TASKS`, if it was set"]
    unsettled: Annotated[str | None, "what had not settled in time"]


class DrillRuns(TypedDict):
    """Several drills of one call."""

    passed: Annotated[bool, "whether all passed"]
    runs: Annotated[list[DrillReport], "their reports"]
    left_out: Annotated[list[str], "scenarios that the topology cannot have, and why"]
