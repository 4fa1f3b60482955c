"""Types of the JSON of backups, with one line of meaning for each field.

docs/reference/json.md is made from here.
"""

from __future__ import annotations

from typing import Annotated, TypedDict


class BackupAnswer(TypedDict):
    """A backup."""

    id: Annotated[str, "its id"]
    cluster: Annotated[str, "whose"]
    made_at_ms: Annotated[int, "when it was made"]
    bytes: Annotated[int, "of the store in it"]
    written_bytes: Annotated[int, "that were new at the destination"]
    topics: Annotated[int, "in it", "topics"]
    damaged_blocks: Annotated[int, "that are not in it, as they were damaged in the store", "blocks"]
    version: Annotated[str, "of the program that made it"]


class SoundBackup(TypedDict):
    """A backup that is undamaged."""

    id: Annotated[str, "its id"]
    topics: Annotated[int, "in it", "topics"]
    blocks: Annotated[int, "that were checked", "blocks"]
    bytes: Annotated[int, "of the store in it"]
    damaged_blocks: Annotated[int, "that were damaged in the store when it was made", "blocks"]


class BackupsVerified(TypedDict):
    """Result of reading backups."""

    sound: Annotated[list[SoundBackup], "those that are as they were made"]
    problems: Annotated[list[str], "what is wrong with others"]


class BackupsPruned(TypedDict):
    """Deleted backups and chunks."""

    backups: Annotated[list[str], "ids of backups"]
    chunks: Annotated[int, "pieces that no backup needs", "pieces"]
    freed_bytes: Annotated[int, "of these"]


class ReclaimedTopic(TypedDict):
    """Messages of a topic that came back."""

    name: Annotated[str, "its whole name"]
    messages: Annotated[int, "that came back", "messages"]
    after: Annotated[str, "the last position that the store had before", "ledger:entry"]
    upto: Annotated[str, "the last position that came back", "ledger:entry"]
    made_anew: Annotated[bool, "whether the topic was made for this, since the store had none, or an older life of it"]
    holes: Annotated[int, "ranges of positions that no cluster that was asked has", "ranges"]
    below: Annotated[bool, "whether it was put back below what the store had, as an earlier life of the topic is"]
    between: Annotated[bool, "whether it is of the life that goes on, and lies between what the store had"]


class SettingsTakenBack(TypedDict):
    """Policies and permissions that a reclaim took back."""

    peer: Annotated[str, "the cluster that kept them"]
    version: Annotated[int, "their version; 0 if nobody kept any"]
    silent: Annotated[list[str], "clusters that did not say what they keep"]
    missing: Annotated[list[str], "namespaces with messages whose settings nobody kept"]
    refused: Annotated[list[str], "rows that this version cannot read"]


class ReclaimAnswer(TypedDict):
    """Messages, policies and permissions that a cluster took back from the others."""

    topics: Annotated[list[ReclaimedTopic], "lives of topics whose messages came back"]
    epoch_before: Annotated[int, "the failover epoch that the store had before"]
    epoch: Annotated[int, "the failover epoch now"]
    lost: Annotated[list[str], "what is known to be lost, or was not asked for"]
    deleted: Annotated[list[str], "lives of topics that were deleted on purpose and that others still have"]
    begun: Annotated[list[str], "topics that begin a new life, as a later one than theirs was deleted"]
    settings: Annotated[
        SettingsTakenBack | None, "policies and permissions that came back; null: the store has the newest"
    ]


class PlannedTopic(TypedDict):
    """Messages of one life of a topic that a reclaim would take back."""

    name: Annotated[str, "its whole name"]
    incarnation: Annotated[str, "the life"]
    after: Annotated[str, "the last position that the store has", "ledger:entry"]
    upto: Annotated[str, "the last position that a cluster has", "ledger:entry"]
    made_anew: Annotated[bool, "whether the topic would be made for this"]
    below: Annotated[bool, "whether it is to be put back below what the store has, as an earlier life is"]
    between: Annotated[bool, "whether it is of the life that goes on, and lies between what the store has"]
    sources: Annotated[dict[str, str], "the last position that it has, by cluster", "ledger:entry"]
    messages: Annotated[int | None, "that would come back; null: a cluster cannot count them", "messages"]
    messages_of: Annotated[dict[str, int | None], "that a cluster has of them, by cluster; null: it cannot count them"]
    missing: Annotated[list[list[str]], "ranges that no cluster that was asked has: after the first, up to the second"]


class ReclaimPlanAnswer(TypedDict):
    """Plan of a reclaim: what it would take back. Nothing was changed."""

    topics: Annotated[list[PlannedTopic], "lives of topics whose messages would come back"]
    lost: Annotated[list[str], "what is known to be lost, or would not be asked for"]
    deleted: Annotated[list[str], "lives of topics that were deleted on purpose and that others still have"]
    begun: Annotated[list[str], "topics that begin a new life, as a later one than theirs was deleted"]


class RestoreAnswer(TypedDict):
    """Result of a restore."""

    cluster: Annotated[str, "whose backup"]
    into: Annotated[str, "the directory"]
    backup: Annotated[str | None, "its id; null: there was a store, and nothing was restored (`--if-empty`)"]
    aside: Annotated[str | None, "where the store is that was there before"]
    damaged_blocks: Annotated[int, "that the backup does not have", "blocks"]
    reclaimed: Annotated[ReclaimAnswer | None, "what came back from other clusters; null: they were not asked"]


class RepairAnswer(TypedDict):
    """Result of repairing a store."""

    blocks: Annotated[int, "that were mended", "blocks"]
    rows: Annotated[int, "other rows that were gone, and were made again", "rows"]
    left: Annotated[list[str], "what is damaged still"]
    lost: Annotated[list[str], "what no cluster has and `--accept-loss` gave up"]
