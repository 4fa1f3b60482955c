"""Types of a worker's status in JSON, with one line of meaning for each field.

docs/reference/json.md is made from here.
"""

from __future__ import annotations

from typing import Annotated, Any, NotRequired, TypedDict

from replicator.engine.json_types import DiskStatus, RestoredStatus, SegmentsStatus, StagingStatus, TopicStatus
from replicator.failover.json_types import ClusterServing
from replicator.links.json_types import LinkStatus


class DatabaseStatus(TypedDict):
    """The worker's Postgres."""

    state: Annotated[str, "`up`, `starting` or `down`"]
    detail: Annotated[str, "why it is away"]
    rows_refused: NotRequired[
        Annotated[int, "rows that it did not take since the worker started; they are not in the index", "rows"]
    ]


class AuditStatus(TypedDict):
    """Entries of the audit log that are not in Postgres."""

    waiting: Annotated[int, "to be written when it is there", "entries"]
    dropped: Annotated[int, "given up since the start", "entries"]


class DamagedBlock(TypedDict):
    """A block that the worker does not serve, because it is damaged."""

    topic: Annotated[str, "its topic"]
    position: Annotated[str, "its first position", "ledger:entry"]
    reason: Annotated[str, "why it could not be mended"]


class StoreStatus(TypedDict):
    """The store of a worker."""

    failed: Annotated[str | None, "why it writes nothing any more"]
    bytes: Annotated[int, "its size"]
    bytes_max: Annotated[int, "how large it may get"]
    commits: Annotated[int, "since the start", "commits"]
    full: Annotated[
        str | None, "why the worker takes no messages because disk or store is full; null while it takes them"
    ]
    disk: Annotated[DiskStatus, "the disk below it"]
    segments: Annotated[SegmentsStatus, "the files of large blocks"]
    mended: Annotated[int, "damaged blocks that were replaced by other clusters' since the start", "blocks"]
    damaged: Annotated[list[DamagedBlock], "blocks that are damaged now"]


class BusyClient(TypedDict):
    """A client that the worker's event loop worked for."""

    address: Annotated[str, "where its connection comes from, as `host:port`"]
    role: Annotated[str, "its role; empty where nobody is told apart"]
    seconds: Annotated[float, "time of the event loop in the last minute", "seconds"]


class ClientsStatus(TypedDict):
    """Connections of Pulsar's protocol, and what clients of all protocols cost."""

    connections: Annotated[int, "open now", "connections"]
    accepted: Annotated[int, "since the start", "connections"]
    busiest: Annotated[list[BusyClient], "the three that used the most time of the event loop in the last minute"]


class FileRefusedStatus(TypedDict):
    """Topology file that a running worker did not take; it would not start with it either."""

    at_ms: Annotated[int, "when it was read"]
    problems: Annotated[list[str], "what is wrong, with line and field; at most 20"]


class TopologyStatus(TypedDict):
    """The topology that a worker runs."""

    digest: Annotated[str, "the same for files that mean the same"]
    file: Annotated[str | None, "the path of its file there"]
    loaded_at_ms: Annotated[int, "when it was read"]
    reloads: Annotated[int, "how often it was read again since the start", "reloads"]
    refused: Annotated[FileRefusedStatus | None, "why the file is not what runs, if its last reload was refused"]


class DriverStatus(TypedDict):
    """The driver of live copy."""

    driver: Annotated[str, "its state"]
    detail: Annotated[str, "what is wrong"]
    pid: Annotated[int | None, "its process, where the worker runs it"]
    starts: Annotated[int, "since the worker started", "starts"]
    master: Annotated[str, "the Spark that it runs on"]


class FailingTask(TypedDict):
    """A long-lived task that ended five times within ten minutes."""

    name: Annotated[str, "name of the task"]
    kind: Annotated[str, "kind of the task"]
    ends: Annotated[int, "since the start", "ends"]
    cause: Annotated[str, "why it ended last"]


class TasksStatus(TypedDict):
    """The worker's long-lived tasks."""

    restarts: Annotated[dict[str, int], "by kind, how often tasks were started again", "starts"]
    failing: Annotated[list[FailingTask], "those that end again and again"]


class UnpackingStatus(TypedDict):
    """Uncompressed bytes that a worker has in memory for others."""

    bytes_max: Annotated[int, "the budget of clients, `store.unpacked_max`", "bytes"]
    bytes: Annotated[int, "that clients have of it", "bytes"]
    waiting: Annotated[int, "entries and bodies that wait until they fit", "claims"]
    internal_bytes_max: Annotated[int, "the budget of compaction", "bytes"]
    internal_bytes: Annotated[int, "that compaction has of it", "bytes"]
    links_bytes_max: NotRequired[Annotated[int, "the budget of frames that links send here", "bytes"]]
    links_bytes: NotRequired[Annotated[int, "that frames have of it", "bytes"]]


class EventLoopStatus(TypedDict):
    """Delays of the worker's event loop."""

    lag_max_seconds: Annotated[float, "greatest lag of the event loop within the last one to two minutes", "seconds"]


class SharedNameStatus(TypedDict):
    """Name of a producer that is active in two clusters at the same time."""

    topic: Annotated[str, "the topic"]
    producer: Annotated[str, "the name of the producer"]
    cluster: Annotated[str, "the other cluster where the name is active"]


class DeduplicationStatus(TypedDict):
    """Count of messages with the same producer name and sequence id in two clusters, but different content."""

    other_content: Annotated[int, "since the start, messages whose ids another cluster used for others", "messages"]
    hidden_differing: Annotated[int, "messages that an earlier version hid as duplicates and that differ", "messages"]
    shared_names: Annotated[int, "producer names that are active in two clusters", "names"]
    names: Annotated[list[SharedNameStatus], "the first of these names"]


class SyncCounters(TypedDict):
    """Work to keep subscriptions in step, in sums over all topics since the start."""

    requests: Annotated[int, "snapshot requests written here", "markers"]
    answers: Annotated[int, "answers written here, for others", "markers"]
    responses: Annotated[int, "answers of other clusters, to whomever", "markers"]
    mappings: Annotated[int, "snapshot mappings made", "mappings"]
    timeouts: Annotated[int, "requests that some cluster did not answer in time", "requests"]
    skipped: Annotated[int, "answers of no use, and updates that point past the log", "markers"]
    updates_sent: Annotated[int, "subscriptions told of, summed over markers", "updates"]
    updates_applied: Annotated[int, "updates of others that changed something here", "updates"]
    updates_ignored: Annotated[int, "updates of others that changed nothing", "updates"]
    markers_corrupt: Annotated[int, "markers that could not be read", "markers"]
    answers_unprovable: Annotated[int, "answers not given, as what is here could not be proved", "markers"]


class KeptLives(TypedDict):
    """A topic that keeps earlier lives, in a cluster that sends mark-delete positions only."""

    topic: Annotated[str, "its whole name"]
    lives: Annotated[list[str], "the lives, as `origin/incarnation`"]


class TwinStatus(TypedDict):
    """Another run of the worker's store, as a destination of its links reported it: somebody copied the data
    directory."""

    peer: Annotated[str, "the cluster that named it"]
    link: Annotated[str, "the link over which it did"]
    served: Annotated[bool, "whether that cluster serves it, and takes nothing from this worker"]
    id: Annotated[str, "its id"]
    host: Annotated[str, "the host name of its machine"]
    started_at_ms: Annotated[int, "when it started, by its own clock"]


class RunStatus(TypedDict):
    """Present run of a worker: one start of the worker on its store."""

    id: Annotated[str, "its id"]
    host: Annotated[str, "the host name of its machine"]
    started_at_ms: Annotated[int, "when it started"]
    twins: Annotated[list[TwinStatus], "other live copies of its store; empty if all is well"]


class ToldStatus(TypedDict):
    """Policies and permissions of this cluster that one other worker keeps."""

    kept: Annotated[bool, "whether it has the newest version"]
    reason: Annotated[str, "why it was not told"]


class NewerSettings(TypedDict):
    """Newer policies and permissions than those that were taken back, which a cluster named too late."""

    peer: Annotated[str, "the cluster that keeps them; this cluster itself, if they were replaced here"]
    store: Annotated[str, "the store that they are of"]
    version: Annotated[int, "their version"]
    set_at: NotRequired[Annotated[int, "version in which somebody last set something; 0: nobody did"]]
    set_in: NotRequired[Annotated[str, "store in which that was; empty if it is this one"]]


class TakenBackStatus(TypedDict):
    """Policies and permissions that a new store took back from other clusters."""

    at_ms: Annotated[int, "when"]
    peer: Annotated[str, "the cluster that kept them"]
    store: Annotated[str, "the earlier store that they are of"]
    version: Annotated[int, "their version"]
    set_at: NotRequired[Annotated[int, "version in which somebody last set something; 0: nobody did"]]
    set_in: NotRequired[Annotated[str, "store in which that was"]]
    own_version: NotRequired[Annotated[int, "version of the settings here from which versions count on"]]
    permissions: Annotated[list[str], "tenants, namespaces and topics with permissions, while a cluster is silent"]
    silent: Annotated[list[str], "clusters that did not answer yet, and may keep a newer version"]
    damaged: Annotated[list[str], "clusters whose newest version was not whole, so that it was not used"]
    missing: Annotated[list[str], "namespaces that were taken back, whose policies and permissions nobody kept"]
    refused: Annotated[list[str], "rows that this version cannot read"]
    passed_over: NotRequired[
        Annotated[
            list[NewerSettings],
            "older settings that these never knew, so that they do not count; those of this cluster were replaced",
        ]
    ]
    paused: NotRequired[Annotated[list[str], "links that are paused again"]]
    newer: NotRequired[Annotated[list[NewerSettings], "what was named too late: settings were changed here before"]]


class SettingsStatus(TypedDict):
    """Policies and permissions of this cluster, and those that it keeps for others."""

    version: Annotated[int, "of this cluster's own; 0: nothing was ever set"]
    told: Annotated[dict[str, ToldStatus], "by other cluster, what it keeps of them"]
    kept_of: Annotated[dict[str, int], "by other cluster, the newest version that is kept here"]
    taken_back: Annotated[TakenBackStatus | None, "what was taken back after a lost disk"]


class UntoldSubscription(TypedDict):
    """A subscription whose state no other cluster told."""

    topic: Annotated[str, "its topic"]
    subscription: Annotated[str, "its name"]


class StatesStatus(TypedDict):
    """States of subscriptions that other clusters have to tell, after the store was new or restored."""

    since_ms: Annotated[int, "when the wait began"]
    kept: Annotated[str, "`everything`: nothing is trimmed or expired; `untold`: nothing is trimmed"]
    clusters: Annotated[dict[str, str], "clusters that have not told theirs, each with the reason"]
    subscriptions: Annotated[list[UntoldSubscription], "subscriptions here that nobody told, the first 1,000"]


class StartStatus(TypedDict):
    """Start of a worker on its store."""

    state: Annotated[str, "`serving`; `replaced` if another store took the place of its store, so that it ends"]
    how: Annotated[str, "`usual`; with a new store `first`, `empty` (an operator said so) or `reclaimed`"]
    database: Annotated[str, "rows of an earlier store in Postgres: `none`, `earlier`, or `away`"]
    first_at_ms: Annotated[int | None, "when a worker first served on this store"]
    lost: Annotated[list[str], "what the first start found to be lost"]
    topics_taken_back: NotRequired[Annotated[int, "topics here that have `taken_back`", "topics"]]
    unasked: Annotated[dict[str, str], "clusters that have not answered since the start, each with the reason"]
    nobody_asked: Annotated[bool, "whether no cluster has answered since the start"]


class SeenStore(TypedDict):
    """Newest store of another cluster that links announced."""

    store: Annotated[str, "its id"]
    since_ms: Annotated[int | None, "when it was first heard of"]
    earlier: Annotated[list[str], "stores that were the newest before, the last one first"]


class WorkerStatus(TypedDict):
    """Status of a worker."""

    cluster: Annotated[str, "its cluster"]
    version: Annotated[str, "of the program"]
    pid: Annotated[int, "its process"]
    started_at_ms: Annotated[int, "when it started"]
    database: Annotated[DatabaseStatus, "its Postgres"]
    audit: Annotated[AuditStatus, "entries of the audit log that wait"]
    store: Annotated[StoreStatus, "its store"]
    clients: Annotated[ClientsStatus, "connections of clients"]
    run: NotRequired[Annotated[RunStatus, "this start of it"]]
    settings: NotRequired[Annotated[SettingsStatus, "policies and permissions that are told to others"]]
    states: NotRequired[Annotated[StatesStatus, "states of subscriptions that others have to tell; missing if none"]]
    start: NotRequired[Annotated[StartStatus, "how it began"]]
    stores: NotRequired[Annotated[dict[str, SeenStore], "by cluster"]]
    restored: Annotated[RestoredStatus | None, "the last restore from a backup"]
    exposed: Annotated[list[str], "where others reach it although it asks nobody who they are"]
    topology: Annotated[TopologyStatus, "the topology that it runs"]
    failover: Annotated[ClusterServing, "whom it serves"]
    links: Annotated[list[LinkStatus], "the links that leave its cluster"]
    pipeline: Annotated[DriverStatus, "the driver of live copy"]
    counters: Annotated[SyncCounters, "what was done to keep subscriptions in step"]
    kept_lives: NotRequired[Annotated[list[KeptLives], "topics with earlier lives, the first of them"]]
    staging: Annotated[StagingStatus, "what Spark jobs have brought"]
    apache: NotRequired[Annotated[dict[str, Any], "beside Apache Pulsar: its bridge (apache-pulsar.md)"]]
    traces: NotRequired[Annotated[dict[str, Any], "with traces: what is traced (traces.md)"]]
    event_loop: NotRequired[Annotated[EventLoopStatus, "its event loop"]]
    unpacking: NotRequired[Annotated[UnpackingStatus, "uncompressed bytes in memory"]]
    deduplication: NotRequired[Annotated[DeduplicationStatus, "conflicts of sequence ids"]]
    tasks: Annotated[TasksStatus, "its long-lived tasks"]
    topics: Annotated[list[TopicStatus], "its topics"]
