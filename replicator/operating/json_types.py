"""Types of the JSON of an operator's commands, with one line of meaning for each field.

docs/reference/json.md is made from here. Classes in two parts have a field that is a word of Python.
"""

from __future__ import annotations

from typing import Annotated, Any, NotRequired, TypedDict


class RunningDigest(TypedDict):
    """Topology that a worker runs, as a digest."""

    digest: Annotated[str | None, "of it; null: the worker does not answer"]
    same: Annotated[bool, "whether that is the file's"]
    error: Annotated[str | None, "why it does not answer"]


class TopologyChange(TypedDict):
    """A difference between the file and what a worker runs."""

    kind: Annotated[str, "how it differs, in a word"]
    subject: Annotated[str, "the cluster, the link or the section"]
    field: Annotated[str | None, "which field of it; null: all of it"]
    before: Annotated[Any, "as it runs"]
    after: Annotated[Any, "as the file says"]
    restart: Annotated[list[str], "clusters whose workers take it only by a restart"]
    text: Annotated[str, "the same in words"]


class WorkersChanges(TypedDict):
    """Changes at some workers."""

    workers: Annotated[list[str], "their clusters"]
    changes: Annotated[list[TopologyChange], "what changes there"]


class RolloutAnswer(TypedDict):
    """A topology beside what the workers run."""

    digest: Annotated[str, "of the file"]
    running: Annotated[dict[str, RunningDigest], "by cluster, what its worker runs"]
    changes: Annotated[list[WorkersChanges], "what the file changes"]
    to_be_started: Annotated[list[str], "clusters whose workers are to be started"]
    to_be_stopped: Annotated[list[str], "clusters whose workers are to be stopped"]


class ReloadOutcome(TypedDict):
    """Answer of a worker to a reload."""

    changed: Annotated[list[str], "what it changed"]
    problems: Annotated[list[str], "why it refuses"]


class ApplyAnswer(RolloutAnswer):
    """Result of applying a file."""

    applied: Annotated[bool, "whether all workers run it"]
    workers: Annotated[dict[str, ReloadOutcome], "by cluster, what its worker said; empty where none was asked"]
    problems: Annotated[list[str], "why it was not applied"]


class PlannedCluster(TypedDict):
    """A cluster of a topology."""

    name: Annotated[str, "its name"]
    address: Annotated[str, "where its worker serves"]
    data: Annotated[str, "the directory of its store"]
    database: Annotated[str, "its Postgres, without its password"]
    database_file: NotRequired[Annotated[str, "the file that has the database's URL"]]
    pulsar: Annotated[str | None, "where Pulsar's clients connect"]
    reachable: Annotated[bool | None, "whether its worker answers"]
    detail: Annotated[str | None, "what it says, or why it does not answer"]


_PlannedEnds = TypedDict(
    "_PlannedEnds",
    {"from": Annotated[str, "the cluster that it leaves"], "to": Annotated[str, "the cluster that it leads to"]},
)


class PlannedLink(_PlannedEnds):
    """A link of a topology, with those fields of the file that are not as by default (topology.md)."""

    name: NotRequired[Annotated[str, "its name"]]
    forward: NotRequired[Annotated[bool, "whether it copies what other clusters published"]]
    topics: NotRequired[Annotated[list[str], "patterns of topics that it copies"]]
    exclude: NotRequired[Annotated[list[str], "patterns of topics that it does not copy"]]
    rate: NotRequired[Annotated[str, "the limit of its rate, as the file has it"]]
    compression: NotRequired[Annotated[str, "of frames"]]
    on_gap: NotRequired[Annotated[str, "what is done at a gap"]]
    hold: NotRequired[Annotated[dict[str, str], "how much is kept for it, as the file has it"]]
    engine: NotRequired[Annotated[str, "what carries it"]]
    where: NotRequired[Annotated[str, "which messages it copies, in SQL"]]
    select: NotRequired[Annotated[str, "what it makes of them, in SQL"]]


class PlannedStore(TypedDict):
    """Limits of stores."""

    size_max_bytes: Annotated[int, "how large a store may get", "bytes"]
    message_size_max_bytes: Annotated[int, "how large a message may be", "bytes"]


class PlanWarning(TypedDict):
    """Something in a plan that deserves a second look."""

    kind: Annotated[str, "kind of the warning"]
    subject: Annotated[str, "cluster or link that it is about"]
    text: Annotated[str, "in words"]


class PlanAnswer(TypedDict):
    """A topology as it is resolved. Passwords and other secrets are masked."""

    path: Annotated[str | None, "its file"]
    clusters: Annotated[list[PlannedCluster], "its clusters"]
    links: Annotated[list[PlannedLink], "its links, one way each"]
    pipeline: Annotated[dict[str, Any], "the section `pipeline` of the file, with defaults (topology.md)"]
    sync: Annotated[dict[str, Any], "the section `sync`, with defaults"]
    store: Annotated[PlannedStore, "limits of stores"]
    policies: Annotated[dict[str, dict[str, Any]], "by cluster, what its policies change of the defaults"]
    rollout: Annotated[RolloutAnswer | None, "what the file changes at the workers that run"]
    warnings: Annotated[list[PlanWarning], "what deserves a second look"]


class DoctorCounts(TypedDict):
    """Numbers of findings."""

    ok: Annotated[int, "checks that found nothing wrong", "findings"]
    warning: Annotated[int, "findings that deserve a look", "findings"]
    error: Annotated[int, "findings that keep workers from running well", "findings"]


class DoctorFinding(TypedDict):
    """Result of one check."""

    check: Annotated[
        str,
        "what was looked at: `python`, `extras`, `java`, `open-files`, `port`, `disk`, `file-system`, `o-direct`, "
        "`database`, `migrations`, `certificate`, `worker` or `clock`",
    ]
    subject: Annotated[str, "a cluster, or `this machine`"]
    level: Annotated[str, "`ok`, `warning` or `error`"]
    text: Annotated[str, "what was found"]
    remedy: Annotated[str, "what to do; empty where nothing is to be done"]


class DoctorAnswer(TypedDict):
    """Result of the doctor. Clocks are compared with this machine's. The difference of two workers is that of their
    offsets, plus or minus at most the sum of both errors.
    """

    counts: Annotated[DoctorCounts, "how many findings there are"]
    findings: Annotated[list[DoctorFinding], "all of them"]
