"""Types of the commands' JSON that no room below makes, with one line of meaning for each field.

docs/reference/json.md is made from here. Classes in two parts have a field that is a word of Python.
"""

from __future__ import annotations

from typing import Annotated, Any, NotRequired, TypedDict

from replicator.api.json_types import AuditAnswer


class Done(TypedDict):
    """Output of a command that did what was asked, and has nothing to show."""

    done: Annotated[bool, "true"]


class Unanswered(TypedDict):
    """A worker that does not answer, or refuses."""

    error: Annotated[str, "why"]
    status: Annotated[int | None, "of HTTP, if it refuses; null: it does not answer"]


class StoreUnknown(TypedDict):
    """The store of a worker that does not answer, or refuses."""

    error: Annotated[str, "why"]


class ClientsClosed(TypedDict):
    """Connections of a client that were closed."""

    cluster: Annotated[str, "whose worker closed them"]
    address: Annotated[str, "where the client is"]
    closed: Annotated[int, "how many", "connections"]


class BridgedTopic(TypedDict):
    """A topic that a worker copies from and to its Apache Pulsar brokers. The output has more fields than these."""

    cluster: Annotated[str, "whose brokers"]
    topic: Annotated[str, "the topic"]
    halted: Annotated[bool, "whether an operator has to look"]
    errors: Annotated[dict[str, str], "what is wrong, by part, such as `reading`"]
    remedies: NotRequired[Annotated[dict[str, str], "by part that halted, the command that ends it"]]
    comparison: NotRequired[
        Annotated[dict[str, Any], "with the brokers: `age_seconds`, `brokers_end`, `unread` entries, `differences`"]
    ]
    read_through: Annotated[str | None, "all up to there was read; null: reading has not begun"]
    published: Annotated[dict[str, Any], "by origin: the first and the last run that lies at the brokers"]
    publishing_waits: Annotated[bool, "whether messages for the brokers wait"]


class RenewedTopic(TypedDict):
    """Result of a renewal for a topic, or its plan."""

    cluster: Annotated[str, "at whose brokers"]
    topic: Annotated[str, "the topic"]
    way: Annotated[str, "`nothing`, `behind`, `earliest` or `anew`"]
    text: Annotated[str, "the same in words, with what is missing"]


class AcknowledgedTopic(TypedDict):
    """Places of a topic where messages may be missing, and which an operator has acknowledged."""

    cluster: Annotated[str, "at whose brokers"]
    topic: Annotated[str, "the topic"]
    places: Annotated[list[dict[str, Any]], "each place, as `may_be_missing` had it"]


class AuditEntry(AuditAnswer):
    """An entry of the audit log."""

    cluster: Annotated[str, "in whose log it is"]


class InitAnswer(TypedDict):
    """A topology that was written."""

    file: Annotated[str, "where"]
    clusters: Annotated[list[str], "its clusters"]
    links: Annotated[list[str], "its links, as `FROM>TO`"]
    engine: Annotated[str, "what carries them"]
    next: Annotated[list[str], "commands that come next"]


class HealthAnswer(TypedDict):
    """Health of a worker, as it answers."""

    cluster: Annotated[str, "its cluster"]
    answer: Annotated[str, "`alive`, or with `--ready` `ready`"]


class RoundtripAnswer(TypedDict):
    """Result of messages that were sent around."""

    cluster: Annotated[str, "where they were published"]
    messages: Annotated[int, "how many", "messages"]
    seen: Annotated[list[str], "what was seen"]


class DatabaseRevision(TypedDict):
    """The schema of a database."""

    revision: Annotated[str | None, "its revision"]


class TokenAnswer(TypedDict):
    """A token."""

    token: Annotated[str, "the token"]


class TokenContents(TypedDict):
    """Contents of a token."""

    header: Annotated[dict[str, Any], "its header"]
    claims: Annotated[dict[str, Any], "its claims: `sub` is the role, `exp` its end in s since 1970"]
    counts: NotRequired[Annotated[bool, "with a key: whether it counts"]]


class StoreChecked(TypedDict):
    """Result of checking a store."""

    topics: Annotated[int, "in it", "topics"]
    blocks: Annotated[int, "that were checked", "blocks"]
    problems: Annotated[list[str], "what is wrong"]


class StoreCompacted(TypedDict):
    """Result of compacting a store."""

    freed_bytes: Annotated[int, "that are free now"]
    dead_bytes: Annotated[int, "that are dead still"]


class PackageAnswer(TypedDict):
    """An archive for Spark's executors."""

    path: Annotated[str, "where it is"]
    size_bytes: Annotated[int, "its size"]
    distributions: Annotated[list[str], "the packages in it"]
    python: Annotated[str, "the version of Python that it is for"]
    platform: Annotated[str, "the platform that it is for"]
    spark_archives: Annotated[str, "the value of `spark.archives`"]


class LeftOutAnswer(TypedDict):
    """An entry that an operator passed over, because Apache Pulsar's brokers refuse it."""

    origin: Annotated[str, "who published it first"]
    entry: Annotated[str, "of its origin", "ledger:entry"]
    bytes: Annotated[int, "its size"]
    reason: Annotated[str, "why the brokers refuse it"]
    left_out_at_ms: Annotated[int, "when it was passed over", "ms since 1970"]


class FoundPosition(TypedDict):
    """Position of an entry in a cluster."""

    cluster: Annotated[str, "which cluster"]
    position: Annotated[str, "there", "ledger:entry"]
    source: Annotated[str, "where it was looked up: `postgres`, `store` or `log`"]


class EntryIdentity(TypedDict):
    """Identity of an entry, the same in all clusters."""

    origin: Annotated[str, "the cluster that published it"]
    incarnation: Annotated[str, "of its topic there; text, as it may be larger than what JavaScript counts to"]
    position: Annotated[str, "of the entry there", "ledger:entry"]


_TranslatedEnds = TypedDict(
    "_TranslatedEnds",
    {
        "from": Annotated[FoundPosition, "where it was asked about"],
        "to": Annotated[FoundPosition, "where it was looked for"],
    },
)


class TranslateAnswer(_TranslatedEnds):
    """Positions of an entry in two clusters."""

    topic: Annotated[str, "its topic"]
    identity: Annotated[EntryIdentity, "which entry it is"]
    source: Annotated[str, "where it was looked up in all: `postgres`, `store` or `log`"]


class KnownRun(TypedDict):
    """Run of a worker: one start of the worker on its store."""

    id: Annotated[str, "its id"]
    earlier: Annotated[list[str], "the runs of the same store before it, the newest first"]
    host: Annotated[str, "the host name of its machine"]
    started_at_ms: Annotated[int, "when it started, by its own clock"]


class RunsOfSource(TypedDict):
    """Runs of one cluster's worker, as another cluster knows them. The worker announced them over its links."""

    peer: Annotated[str, "the cluster that knows them"]
    cluster: Annotated[str, "whose runs they are"]
    role: Annotated[str, "the role that the worker showed; empty where nobody is asked"]
    served: Annotated[KnownRun, "the run from which messages are taken"]
    connected: Annotated[bool, "whether it is connected now"]
    twins: Annotated[list[KnownRun], "other live copies of its store, from which nothing is taken"]
    dismissed: Annotated[list[KnownRun], "runs that an operator dismissed in favour of another one"]


class StaysAnswer(TypedDict):
    """Answer of ``links stays``: the run that the operator keeps, and the clusters that recorded the decision."""

    cluster: Annotated[str, "whose store had two live copies"]
    run: Annotated[str, "the run that stays"]
    told: Annotated[list[str], "the clusters that were told"]


class PeekedMessage(TypedDict):
    """An entry of a backlog, shown as its first message."""

    id: Annotated[str, "the message's id"]
    published: Annotated[str, "when, by the producer's clock", "ISO 8601"]
    producer: Annotated[str | None, "who published it"]
    key: Annotated[str | None, "its key"]
    properties: Annotated[dict[str, str], "its properties"]
    messages: Annotated[int, "in the entry", "messages"]
    payload: Annotated[str, "its payload, read as UTF-8"]
