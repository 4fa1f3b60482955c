"""Types of the JSON of failovers, with one line of meaning for each field.

docs/reference/json.md is made from here. Classes in two parts have a field that is a word of Python.
"""

from __future__ import annotations

from typing import Annotated, NotRequired, TypedDict


class SubscriptionSwitch(TypedDict):
    """A replicated subscription at the source and at the target of a switch."""

    name: Annotated[str, "its name"]
    equal: Annotated[bool | None, "whether both have the same state"]
    evidence: Annotated[str, "how that is known"]
    may_be_repeated: Annotated[int | None, "acknowledged at the source and not known so at the target", "messages"]
    held_entries: Annotated[int, "given out and not acknowledged: they are given out again", "entries"]


class TopicSwitch(TypedDict):
    """A topic in a switch."""

    topic: Annotated[str, "its whole name"]
    carried: Annotated[bool, "whether a link copies it to the target"]
    source_last: Annotated[str | None, "the position of the source's last message", "ledger:entry"]
    target_has: Annotated[str | None, "the position of the source up to which the target has all", "ledger:entry"]
    missing_messages: Annotated[int | None, "that the target does not have", "messages"]
    exact: Annotated[bool, "whether that is a count; else it is an upper bound"]
    subscriptions: Annotated[list[SubscriptionSwitch], "its replicated subscriptions"]


class SwitchStep(TypedDict):
    """A step of a switch."""

    step: Annotated[str, "what was done"]
    seconds: Annotated[float, "how long it took"]


_SwitchEnds = TypedDict(
    "_SwitchEnds",
    {"from": Annotated[str, "the cluster that served the clients"], "to": Annotated[str, "that serves them now"]},
)


class SwitchAnswer(_SwitchEnds):
    """A switch that was made, or would be."""

    kind: Annotated[str, "`planned`, `unplanned`, `failback` or `promote`"]
    homes: Annotated[list[str], "the clusters whose clients move"]
    outcome: Annotated[str, "`done`, `dry run` or `refused`"]
    reason: Annotated[str, "why it was refused"]
    epoch_before: Annotated[int, "the number of the assignment before"]
    epoch: Annotated[int | None, "its number now; null: nothing was changed"]
    source_answers: Annotated[bool, "whether the source could be asked"]
    unknown_since_ms: Annotated[int | None, "if not: when the target heard of it last"]
    not_received: Annotated[int | None, "that the target does not have (RPO)", "messages"]
    may_be_repeated: Annotated[int | None, "acknowledged, and not known so at the target", "messages"]
    told: Annotated[dict[str, str], "by cluster, how it learned of the switch"]
    steps: Annotated[list[SwitchStep], "the steps that were begun"]
    notes: Annotated[list[str], "what else there is to know"]
    differences: Annotated[list[str] | None, "what clients find otherwise at the target"]
    topics: Annotated[list[TopicSwitch], "all topics"]


class EpochRecord(TypedDict):
    """An assignment of clients to clusters."""

    epoch: Annotated[int, "its number; the greatest counts"]
    writer: Annotated[str, "the cluster that wrote it"]
    record_id: Annotated[str, "random; tells apart what was written twice under one number"]
    at_ms: Annotated[int, "when, by the writer's clock"]
    kind: Annotated[str, "the kind of switch that made it"]
    source: Annotated[str, "the cluster that was left; empty for the first"]
    target: Annotated[str, "the cluster that serves since; empty for the first"]
    serving: Annotated[dict[str, str], "by home cluster, who serves its clients, where that is another one"]
    consumers_kept: Annotated[list[str], "clusters whose consumers stay although they serve nobody"]


class ClusterServing(TypedDict):
    """Clients that a cluster serves, in its worker's own words."""

    cluster: Annotated[str, "its name"]
    record: Annotated[EpochRecord, "the newest assignment that it knows"]
    epoch: Annotated[int, "its number"]
    serves: Annotated[list[str], "the home clusters whose clients it serves; none: it is fenced"]
    served_by: Annotated[str, "the cluster that serves its own clients"]
    fenced: Annotated[bool, "whether it takes no clients"]
    learned: Annotated[bool, "whether it has asked the others since it started"]
    producers: Annotated[str, "`open`, or why producers are refused"]
    consumers: Annotated[str, "`open`, or why consumers are refused"]
    switching_to: Annotated[str | None, "the target of a planned switch that is being made"]
    heard_ms: Annotated[dict[str, int], "by cluster, when it was heard of last", "ms since 1970"]
    silent: Annotated[dict[str, str], "by cluster, why it cannot be asked"]
    clients_unknown: Annotated[str, "why it may lack what its clients did while it was away"]


class UnansweredCluster(TypedDict):
    """A cluster whose worker does not answer, or refuses."""

    error: Annotated[str, "why"]
    status: NotRequired[Annotated[int | None, "of HTTP, if it refuses; null: it does not answer"]]


class StrandedMessages(TypedDict):
    """Messages that the source of a switch took and its target had not received then."""

    topic: Annotated[str, "its whole name"]
    messages: Annotated[int, "how many", "messages"]
    exact: Annotated[bool, "whether that is a count; else it is an upper bound"]
    flowed: Annotated[bool, "whether the target has them by now"]


class FailoverStatus(TypedDict):
    """Clusters that serve each cluster's clients, and the outcome of the newest switch."""

    epoch: Annotated[int, "the greatest number of an assignment that any cluster knows"]
    writer: Annotated[str, "the cluster that wrote it"]
    agreed: Annotated[bool, "whether all that answer know the same one"]
    clusters: Annotated[dict[str, ClusterServing | UnansweredCluster], "by cluster, its worker's own word"]
    switch: Annotated[EpochRecord | None, "the newest switch"]
    stranded: Annotated[list[StrandedMessages] | None, "null: there was no switch, or one of the two does not answer"]
    stranded_unknown: Annotated[str, "why that is not known, or not all of it; empty otherwise"]
