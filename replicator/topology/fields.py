"""The sections of a topology file: which fields each has, and their defaults.

What makes a single value valid is in :mod:`replicator.topology.scalars`; what must hold between fields is checked in
:mod:`replicator.topology.reader`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from replicator.engine.log.entry import ENTRY_BYTES_MAX, MESSAGE_BYTES_LIMIT, MESSAGE_BYTES_MAX
from replicator.engine.log.segments.settings import FREE_KEPT, SEGMENT_BYTES, SegmentSettings
from replicator.engine.policies import (
    BacklogQuota,
    KeyAssignment,
    KeyOrdering,
    QuotaPolicy,
    Retention,
    SchemaStrategy,
    TopicPolicies,
)
from replicator.running.byte_budget import UNPACKED_BYTES_LIMIT, UNPACKED_BYTES_MAX, UNPACKED_BYTES_MIN
from replicator.topology.apache import BROKER_SUFFIX, EMBEDDED_KIND, KINDS, PULSAR_KIND, ApacheSettings
from replicator.topology.scalars import (
    DURATION_KIND,
    EMBEDDED,
    SECRET,
    SIZE_KIND,
    UNLIMITED,
    Count,
    Duration,
    Flag,
    Size,
    check_address,
    check_batch,
    check_conf,
    check_database,
    check_end_after,
    check_host_name,
    check_listen,
    check_master,
    check_origin,
    check_segment,
    choice,
    data_path,
    format_duration,
    format_size,
    limit,
    mask_password,
    one_of,
    parse_duration,
    parse_size,
)
from replicator.topology.sections import Section

STORE_SIZE_BYTES_MIN: Final = 1024 * 1024
STORE_SIZE_BYTES_MAX: Final = 64 * 1024**4
"""Limit of the store's size: LMDB maps the store into the address space, and a process has 128 TiB on the common
machines.
"""
MESSAGE_BYTES_MIN: Final = 64 * 1024
"""Clients send commands of a few kilobytes beside it, and their batches are as large as 128 KiB by default."""

IN_USE_TIMEOUT_MS_MAX: Final = 20_000
"""Upper limit of the setting: official clients wait 30 s for the answer to an unsubscribe."""
SPARK: Final = "spark"
CLOSED: Final = "closed"
OPEN: Final = "open"
ENGINES: Final = (SPARK, EMBEDDED)
WAIT_FOR_STATES_SECONDS_MAX: Final = 24 * 3600
RECLAIM: Final = "reclaim"
REFUSE: Final = "refuse"
START: Final = "start"
ON_EMPTY_STORE: Final = (RECLAIM, REFUSE, START)
ASK_PEERS_SECONDS_MAX: Final = 600
DRIVERS: Final = ("worker", "external")


_DEFAULT: Final = TopicPolicies()


class RetentionSettings(Section):
    """How much consumed data is kept after every subscription has consumed it. Here 0 is a limit: nothing is kept."""

    age: Annotated[int | None, limit(DURATION_KIND, parse_duration, off_at_0=False)] = None
    size: Annotated[int | None, limit(SIZE_KIND, parse_size, off_at_0=False)] = None


class BacklogQuotaSettings(Section):
    """How far the slowest subscription may lag, and what happens when it does."""

    size: Size = None
    age: Duration = None
    policy: Annotated[QuotaPolicy, one_of(QuotaPolicy)] = QuotaPolicy.PRODUCER_REQUEST_HOLD


class PolicySettings(Section):
    """Policies of the topics that have none of their own, under the names of the topology file."""

    retention: RetentionSettings = RetentionSettings()
    message_ttl: Duration = None
    backlog_quota: BacklogQuotaSettings = BacklogQuotaSettings()
    deduplication: Flag = _DEFAULT.deduplication
    compaction_threshold: Size = None
    max_unacked_messages_per_consumer: Count = _DEFAULT.max_unacked_messages_per_consumer
    max_unacked_messages_per_subscription: Count = _DEFAULT.max_unacked_messages_per_subscription
    max_producers: Count = None
    max_consumers: Count = None
    max_message_size: Annotated[int | None, limit(SIZE_KIND, parse_size, most=ENTRY_BYTES_MAX)] = None
    delayed_delivery: Flag = _DEFAULT.delayed_delivery
    replicate_subscription_state: Flag = _DEFAULT.replicate_subscription_state
    key_assignment: Annotated[KeyAssignment, one_of(KeyAssignment)] = _DEFAULT.key_assignment
    key_ordering: Annotated[KeyOrdering, one_of(KeyOrdering)] = _DEFAULT.key_ordering
    schema_compatibility: Annotated[SchemaStrategy, one_of(SchemaStrategy)] = _DEFAULT.schema_compatibility
    schema_auto_update: Flag = _DEFAULT.schema_auto_update
    schema_validation_enforced: Flag = _DEFAULT.schema_validation_enforced

    def topic_policies(self) -> TopicPolicies:
        """Return the policies in the engine's form."""
        return TopicPolicies(
            retention=Retention(age_seconds_max=self.retention.age, bytes_max=self.retention.size),
            message_ttl_seconds=self.message_ttl,
            backlog_quota=BacklogQuota(
                bytes_max=self.backlog_quota.size,
                age_seconds_max=self.backlog_quota.age,
                policy=self.backlog_quota.policy,
            ),
            deduplication=self.deduplication,
            compaction_threshold_bytes=self.compaction_threshold,
            max_unacked_messages_per_consumer=self.max_unacked_messages_per_consumer,
            max_unacked_messages_per_subscription=self.max_unacked_messages_per_subscription,
            max_producers=self.max_producers,
            max_consumers=self.max_consumers,
            max_message_bytes=self.max_message_size,
            delayed_delivery=self.delayed_delivery,
            replicate_subscription_state=self.replicate_subscription_state,
            key_assignment=self.key_assignment,
            key_ordering=self.key_ordering,
            schema_compatibility=self.schema_compatibility,
            schema_auto_update=self.schema_auto_update,
            schema_validation_enforced=self.schema_validation_enforced,
        )

    def changed(self) -> dict[str, Any]:
        """Return the values that differ from the defaults, in the form of the file; reading it gives an equal value."""
        return _changed(self, PolicySettings())


_DURATION_FIELDS: Final = frozenset({"age", "message_ttl"})
_SIZE_FIELDS: Final = frozenset({"size", "compaction_threshold", "max_message_size"})


def _changed(settings: Section, default: Section) -> dict[str, Any]:
    changed: dict[str, Any] = {}
    for name in type(settings).model_fields:
        value, usual = getattr(settings, name), getattr(default, name)
        if value != usual:
            changed[name] = _changed(value, usual) if isinstance(value, Section) else _as_written(name, value)
    return changed


def _as_written(name: str, value: object) -> object:
    if value is None:
        return UNLIMITED
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, int) and name in _DURATION_FIELDS:
        return format_duration(value)
    if isinstance(value, int) and name in _SIZE_FIELDS:
        return format_size(value)
    return value


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``base`` with the values of ``over`` in their places, mapping by mapping; empty values change nothing."""
    both = dict(base)
    for key, value in over.items():
        below = both.get(key)
        if isinstance(value, Mapping) and isinstance(below, Mapping):
            both[key] = merged(below, value)
        elif value is not None:
            both[key] = value
    return both


def flattened(settings: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    """Yield the values with names such as ``retention.age``."""
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from flattened(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


class TlsSettings(Section):
    """The files of TLS, in PEM. They are read when the worker starts, and by each reload."""

    certificate: Annotated[Path, BeforeValidator(data_path)]
    """The worker's own, with those between it and its authority behind it."""
    key: Annotated[Path, BeforeValidator(data_path)]
    ca: Annotated[Path, BeforeValidator(data_path)] | None = None
    """Clients must show a certificate of one of these authorities; without it they need none."""

    def __str__(self) -> str:
        return ", ".join(f"{name} {path}" for name, path in self.written().items())

    def written(self) -> dict[str, str]:
        """Return the fields that are set, in the form of the topology file."""
        return {name: str(path) for name, path in self if path is not None}


class Cluster(Section):
    """One cluster: its name, where its worker serves, its data directory and its database."""

    name: str
    address: Annotated[str, AfterValidator(check_address)]
    data: Annotated[Path, BeforeValidator(data_path)]
    database: Annotated[str, AfterValidator(check_database)] = Field(default=EMBEDDED, repr=False)
    """``embedded`` or a URL; show it through :attr:`database_masked`. What counts is said by
    :func:`replicator.topology.database_file.database_of`."""
    database_file: Annotated[Path, BeforeValidator(data_path)] | None = None
    """A file with the URL, so that no password stands in the topology. It need be there for the cluster's own worker
    alone."""
    listen: Annotated[str, AfterValidator(check_listen)] | None = None
    """Address that the worker binds, if others reach it elsewhere. Its host counts for the other ports too."""
    insecure: Flag = False
    """Whether it may bind where other hosts reach it, although it asks nobody who they are."""
    hosts: tuple[Annotated[str, AfterValidator(check_host_name)], ...] = Field(default=(), strict=False)
    """Names by which it is called over HTTP, besides those of the addresses."""
    origins: tuple[Annotated[str, AfterValidator(check_origin)], ...] = Field(default=(), strict=False)
    """The sites of pages that may use it from a browser, besides its own."""
    policies: PolicySettings = PolicySettings()
    """Policies of all its topics: those of the file's top level, and over them the cluster's own."""
    pulsar: Annotated[str, AfterValidator(check_address)] | None = None
    """A further address of the binary protocol alone, such as one with port 6650."""
    pulsar_tls: Annotated[str, AfterValidator(check_address)] | None = None
    """Address of the binary protocol's own port with TLS, such as one with port 6651; needs :attr:`tls`."""
    tls: TlsSettings | None = None
    """Files of TLS. With them TLS is served at :attr:`address`, too, beside unencrypted connections."""
    advertised: Annotated[str, AfterValidator(check_address)] | None = None
    """Address at which clients of the binary protocol reach the worker, if it is not the one at which it listens."""
    pulsar_while_fenced: Annotated[str, choice((CLOSED, OPEN))] = CLOSED
    """Whether that further address can be connected to while another cluster serves the clients of this one."""
    namespaces_by_use: Flag = True
    """Whether tenants and namespaces are made by who uses a topic of theirs, or must be there."""
    broker_entry_metadata: Flag = False
    """Whether clients that ask for it are told the index and the time of each entry."""
    token_file: Annotated[Path, BeforeValidator(data_path)] | None = None
    """File with the token that its worker shows to others, if that is not ``auth.token_file``."""
    kind: Annotated[str, choice(KINDS)] = EMBEDDED_KIND
    """``embedded``: the worker's own engine is the cluster. ``pulsar``: it runs beside an Apache Pulsar cluster."""
    apache: ApacheSettings | None = None
    """Settings by which the worker of a cluster of ``kind: pulsar`` reaches its brokers."""
    tls_required: bool = False
    """Whether nothing but TLS is spoken; the file has that once, as ``tls.required``."""

    def places(self) -> dict[str, Any]:
        """Return the settings of where and how clients are served, in the form of the topology file."""
        places: dict[str, Any] = {
            name: given for name in ("pulsar", "pulsar_tls", "advertised") if (given := getattr(self, name)) is not None
        }
        if self.listen is not None:
            places["listen"] = self.listen
        if self.insecure:
            places["insecure"] = True
        places |= {name: list(given) for name in ("hosts", "origins") if (given := getattr(self, name))}
        if self.pulsar_while_fenced != CLOSED:
            places["pulsar_while_fenced"] = self.pulsar_while_fenced
        if not self.namespaces_by_use:
            places["namespaces_by_use"] = False
        if self.broker_entry_metadata:
            places["broker_entry_metadata"] = True
        for name in ("token_file", "database_file"):
            if (file := getattr(self, name)) is not None:
                places[name] = str(file)
        if self.kind != EMBEDDED_KIND:
            places["kind"] = self.kind
        if self.apache is not None:
            places["apache"] = self.apache.written()
        return places if self.tls is None else {**places, "tls": self.tls.written()}

    def bound_at(self) -> dict[str, str]:
        """Return the addresses that the worker binds, by field."""
        if self.listen is None:
            bound = {"address": self.address}
            host = None
        else:
            bound = {"listen": self.listen}
            host = self.listen.rpartition(":")[0]
        for field in ("pulsar", "pulsar_tls"):
            place: str | None = getattr(self, field)
            if place is not None:
                bound[field] = place if host is None else f"{host}:{place.rpartition(':')[2]}"
        return bound

    def hosts_of_places(self) -> Iterable[str]:
        """Yield the host names in the addresses at which others reach the worker."""
        for place in (self.address, self.advertised, self.pulsar, self.pulsar_tls, self.listen):
            if place is not None:
                yield place.rpartition(":")[0].strip("[]").lower()

    @property
    def broker_origin(self) -> str | None:
        """Return the origin of messages that producers publish at the brokers beside the worker; None if it has
        none.
        """
        return f"{self.name}{BROKER_SUFFIX}" if self.kind == PULSAR_KIND else None

    @property
    def name_at_brokers(self) -> str | None:
        """The name that the brokers beside the worker have for their cluster; None if it runs beside none."""
        return None if self.apache is None else self.apache.cluster_name or self.name

    @property
    def pulsar_url(self) -> str:
        """Return the URL that lookups answer."""
        if self.apache is not None and self.apache.service_url.startswith("pulsar://"):
            return self.apache.service_url
        if self.tls_required and self.pulsar_tls_url is not None:
            return self.pulsar_tls_url
        return f"pulsar://{self.advertised or self.pulsar or self.address}"

    @property
    def pulsar_tls_url(self) -> str | None:
        """Return the URL that lookups answer to clients that use TLS; None without TLS."""
        if self.apache is not None:
            return self.apache.service_url if self.apache.service_url.startswith("pulsar+ssl://") else None
        if self.tls is None:
            return None
        return f"pulsar+ssl://{self.pulsar_tls or self.advertised or self.address}"

    @property
    def client_url(self) -> str:
        """Return the URL at which clients reach HTTP: at ``advertised``, unless that is for a port of the binary
        protocol only.
        """
        place = self.advertised if self.advertised and self.pulsar is None else self.address
        return f"{self.http_scheme}://{place}"

    @property
    def host(self) -> str:
        """Return the host to bind or connect to, without the brackets of IPv6."""
        return self.address.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    @property
    def url(self) -> str:
        return f"{self.http_scheme}://{self.address}"

    @property
    def http_scheme(self) -> str:
        return "https" if self.tls_required else "http"

    @property
    def database_masked(self) -> str:
        return mask_password(self.database)

    @property
    def database_shown(self) -> str:
        """Return the place of the database for people, without passwords."""
        return self.database_masked if self.database_file is None else f"as {self.database_file} says"


class PipelineSettings(Section):
    """Engine that copies, and Spark settings of the pipeline."""

    engine: Annotated[str, choice(ENGINES)] = SPARK
    """The engine of links that do not name one."""
    master: Annotated[str, AfterValidator(check_master)] = "local[2]"
    driver: Annotated[str, choice(DRIVERS)] = "worker"
    """Starter of the live copy's driver: ``worker``, each worker starts its own; or ``external``, the operator does."""
    batch: Annotated[int, BeforeValidator(check_batch)] = 10
    """Seconds that a micro-batch of live copy lasts at most."""
    conf: Annotated[dict[str, str], BeforeValidator(check_conf)] = Field(default={}, repr=False)
    """Settings of Spark; show them through :attr:`conf_masked`."""

    @property
    def conf_masked(self) -> dict[str, str]:
        return {key: "***" if SECRET.search(key) else value for key, value in self.conf.items()}


class SyncSettings(Section):
    """Replicated state of subscriptions, and its pace. With ``mark-delete``, acknowledgements out of order stay where
    they are given, as with brokers that replicate only the mark-delete position.
    """

    mode: Literal["exact", "mark-delete"] = "exact"
    snapshot_interval_ms: int = Field(default=200, ge=10, le=3_600_000)
    snapshot_timeout_ms: int = Field(default=30_000, ge=100, le=3_600_000)
    update_interval_ms: int = Field(default=5, ge=1, le=60_000)
    in_use_timeout_ms: int = Field(default=5_000, ge=0, le=IN_USE_TIMEOUT_MS_MAX)

    def written(self) -> dict[str, Any]:
        """Return the fields in the form of the topology file.

        ``in_use_timeout_ms`` is left out while it has its default: the previous release does not know it.
        """
        fields = self.model_dump()
        if self.in_use_timeout_ms == SyncSettings.model_fields["in_use_timeout_ms"].default:
            del fields["in_use_timeout_ms"]
        return fields


class MetricsSettings(Section):
    """Limits of the series in ``/metrics``, so that a scrape stays bounded."""

    topics: int = Field(default=1000, ge=0, le=100_000)
    """Topics that have series of their own; the others are summed."""
    subscriptions: int = Field(default=2000, ge=0, le=100_000)
    """Subscriptions of those topics that have."""
    old_names: bool = True
    """Whether metrics that were renamed also stand under the names of the version before."""

    def written(self) -> dict[str, Any]:
        """Return the fields that differ from their defaults, in the form of the topology file."""
        return _changed(self, MetricsSettings())


class WatchdogSettings(Section):
    """Settings of the watchdog: how long the event loop must stand still before the worker ends itself."""

    end_after: Annotated[int, BeforeValidator(parse_duration), AfterValidator(check_end_after)] | None = None
    """Seconds; 0 means never. None means that the worker's option ``--end-when-stuck`` decides."""

    def written(self) -> dict[str, Any]:
        """Return the fields that are set, in the form of the topology file."""
        return {} if self.end_after is None else {"end_after": format_duration(self.end_after)}


class StoreSettings(Section):
    """Limits of each worker's store, the same in all clusters: so none gets what its clients cannot read."""

    size_max: Annotated[int, BeforeValidator(parse_size), Field(ge=STORE_SIZE_BYTES_MIN, le=STORE_SIZE_BYTES_MAX)] = (
        64 * 1024**3
    )
    """Bytes."""
    message_size_max: Annotated[
        int, BeforeValidator(parse_size), Field(ge=MESSAGE_BYTES_MIN, le=MESSAGE_BYTES_LIMIT)
    ] = MESSAGE_BYTES_MAX
    """Bytes: the largest message that clients may publish, and what they are told of it."""
    segment: Annotated[int, BeforeValidator(parse_size), AfterValidator(check_segment)] = SEGMENT_BYTES
    """Bytes of each file that large bodies are written to; 0 keeps them in the store's table."""
    segments_kept: int = Field(default=FREE_KEPT, ge=0, le=1000)
    """Files that nothing lives in any more and that are kept to be used again."""
    wait_for_states_seconds: int = Field(default=600, ge=0, le=WAIT_FOR_STATES_SECONDS_MAX)
    """Seconds for which a worker on a new or restored store trims and expires nothing, until other clusters have told
    the states of its subscriptions."""
    on_empty_store: Annotated[str, choice(ON_EMPTY_STORE)] = RECLAIM
    """Action of a worker whose store is new while other clusters have messages of its cluster: it takes them back, does
    not start, or starts empty."""
    ask_peers_seconds: int = Field(default=5, ge=0, le=ASK_PEERS_SECONDS_MAX)
    """Seconds for which a starting worker asks other clusters that do not answer; with 0 it asks nobody."""
    unpacked_max: Annotated[int, BeforeValidator(parse_size), Field(ge=UNPACKED_BYTES_MIN, le=UNPACKED_BYTES_LIMIT)] = (
        UNPACKED_BYTES_MAX
    )
    """Bytes: uncompressed content that a worker has in memory for WebSockets and requests for messages at once."""

    def written(self) -> dict[str, str | int]:
        """Return the fields in the form of the topology file; some are left out while they have their defaults."""
        sizes: dict[str, str | int] = {"size_max": format_size(self.size_max)}
        if self.message_size_max != MESSAGE_BYTES_MAX:
            sizes["message_size_max"] = format_size(self.message_size_max)
        if self.segment != SEGMENT_BYTES:
            sizes["segment"] = format_size(self.segment)
        if self.segments_kept != FREE_KEPT:
            sizes["segments_kept"] = self.segments_kept
        if self.wait_for_states_seconds != StoreSettings.model_fields["wait_for_states_seconds"].default:
            sizes["wait_for_states_seconds"] = self.wait_for_states_seconds  # the previous release does not know it
        if self.unpacked_max != UNPACKED_BYTES_MAX:
            sizes["unpacked_max"] = format_size(self.unpacked_max)  # the previous release does not know it
        for name in ("on_empty_store", "ask_peers_seconds"):  # the previous release does not know them
            if getattr(self, name) != StoreSettings.model_fields[name].default:
                sizes[name] = getattr(self, name)
        return sizes

    def segments(self) -> SegmentSettings:
        return SegmentSettings(segment_bytes=self.segment, free_kept=self.segments_kept)
