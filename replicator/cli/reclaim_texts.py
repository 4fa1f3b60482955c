"""Output of a reclaim and of its plan: lines for an operator, and JSON; and what a backup says of damaged blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from replicator.backup.json_types import PlannedTopic, ReclaimAnswer, ReclaimPlanAnswer
from replicator.running.naming import named

if TYPE_CHECKING:
    from replicator.backup.dry_run import ReclaimPlan
    from replicator.backup.manifest import Manifest
    from replicator.backup.reclaiming import Reclaimed
    from snapshots.position import Position

NAMED_MAX: Final = 10
"""Most lives or ranges that a text names; the JSON has all."""


def settings_lines(note: dict[str, Any] | None) -> list[str]:
    """Return what came back of the policies and permissions of a cluster, in words."""
    if note is None:
        return []
    lines = [f"took back policies and permissions of version {note['version']} from {note['peer']}"] * bool(
        note["peer"]
    )
    if note["silent"]:
        silent = ", ".join(note["silent"])
        lines.append(f"not asked for policies and permissions: {silent}. The worker asks when it runs")
    if note["missing"]:
        missing = ", ".join(note["missing"][:NAMED_MAX])
        lines.append(
            f"no cluster kept policies and permissions of {missing}: grant them again, else nobody has any there"
        )
    return lines + [
        f"cannot be read by this version, and not taken back: {each}" for each in note["refused"][:NAMED_MAX]
    ]


def reclaimed_lines(cluster: str, done: Reclaimed, settings: dict[str, Any] | None = None) -> list[str]:
    lines: list[str] = []
    with_messages = {topic.name for topic in done.topics if topic.messages}
    for topic in done.topics:
        if not topic.messages:  # only markers came back; nobody published them
            if topic.made_anew and topic.name in with_messages:
                lines.append(f"{topic.name} was made again in its newest life, which has no messages of {cluster}")
            elif topic.made_anew:
                lines.append(f"{topic.name} was not here in that life: it is back, with no messages of {cluster}")
            continue
        how = " (the topic was made again)" if topic.made_anew else ""
        how = " (an earlier life, below what was here)" if topic.below else how
        how = " (between what was here)" if topic.between else how
        lines.append(
            f"took back {topic.messages} messages of {topic.name}{how}, after {topic.after} up to {topic.upto}"
        )
    if not lines:
        # Nothing is missing only if every cluster was asked, and nothing is named as lost.
        lines.append(
            "nothing came back"
            if done.lost or done.deleted or done.begun
            else f"the other clusters have nothing of {cluster}'s messages that it lacks"
        )
    if done.epoch != done.epoch_before:
        lines.append(f"there was a failover: epoch {done.epoch} (this store had {done.epoch_before})")
    lines += _not_taken(done.deleted)
    lines += done.begun
    lines += [f"lost: {lost}" for lost in done.lost]
    lines += settings_lines(settings)
    lines.append(
        "The worker can be started. By their links the others bring what they published, and what was acknowledged. "
        f"Consumers that connect to {cluster} before that may be given again what they had acknowledged. "
        "If that matters, fail over to another cluster before you start it (--unplanned), and back afterwards."
    )
    return lines


def plan_lines(cluster: str, plan: ReclaimPlan) -> list[str]:
    lines: list[str] = []
    for number, topic in enumerate(plan.topics):
        counted = plan.counted(number)
        if counted.messages == 0 and not topic.holes and not topic.made_anew:
            continue  # only markers would come back; nobody published them
        where = "an earlier life, below what is here" if topic.below else "the topic is made again"
        where = "between what is here" if topic.between else where
        how = f" ({where})" if topic.below or topic.made_anew else ""
        sources = ", ".join(
            f"{peer} (up to {upto}{_count(counted.of_peer.get(peer), ', ')})"
            for peer, upto in sorted(topic.sources.items())
        )
        nobody = "nobody that was asked" if plan.without else "nobody"
        lines.append(
            f"{topic.name}{how}:{_count(counted.messages, ' ')} after {topic.after} up to {topic.upto}, from "
            f"{sources or nobody}"
            + "".join(
                f"; missing after {after} up to {upto}{_bound(after, upto)}" for after, upto in topic.holes[:NAMED_MAX]
            )
            + (f"; and {len(topic.holes) - NAMED_MAX} more ranges" if len(topic.holes) > NAMED_MAX else "")
        )
    if any(topic.holes for topic in plan.topics):
        lines.append("No cluster that was asked has what is missing, so nobody can count its messages")
    if not lines:
        lines.append(
            "nothing would come back"
            if plan.lost or plan.deleted or plan.begun
            else f"the other clusters have nothing of {cluster}'s messages that it lacks"
        )
    lines += _not_taken(plan.deleted)
    lines += plan.begun
    lines += [f"lost: {lost}" for lost in plan.lost]
    if any(each.messages for each in plan.counts):
        lines.append("Messages were counted, and not read: those in a damaged block count, too.")
    lines.append("Nothing was changed.")
    return lines


def _count(messages: int | None, before: str) -> str:
    """Return a number of messages in words, with ``before`` before it; "" if nobody counted them."""
    if messages is None:
        return ""
    return f"{before}{messages} message{'' if messages == 1 else 's'}"


def _bound(after: Position, upto: Position) -> str:
    """Return in words how many entries a range has at most; "" if it reaches over several ledgers."""
    if after.ledger != upto.ledger:
        return ""
    entries = upto.entry - after.entry
    return f" (at most {entries} entr{'y' if entries == 1 else 'ies'})"


def _not_taken(deleted: Sequence[str]) -> list[str]:
    lines = [f"not taken back: {each}" for each in deleted[:NAMED_MAX]]
    if len(deleted) > NAMED_MAX:
        lines.append(f"not taken back: {len(deleted) - NAMED_MAX} more lives of topics that were deleted on purpose")
    return lines


def damage_lines(manifests: list[Manifest]) -> list[str]:
    """Return a sentence for each backup that lacks damaged blocks."""
    said: list[str] = []
    for manifest in [each for each in manifests if each.damaged]:
        said.append(
            f"not whole: backup {manifest.id} lacks {len(manifest.damaged)} blocks that were damaged in the store: "
            f"{named([str(each) for each in manifest.damaged])} ({manifest.damaged[0].reason}). All else is in it. "
            "Mend the store (docs/store.md), and make another one."
        )
    return said


def reclaimed_json(done: Reclaimed, settings: dict[str, Any] | None) -> ReclaimAnswer:
    topics: Any = [{**asdict(topic), "after": str(topic.after), "upto": str(topic.upto)} for topic in done.topics]
    return {
        "topics": topics,
        "epoch_before": done.epoch_before,
        "epoch": done.epoch,
        "lost": done.lost,
        "deleted": done.deleted,
        "begun": done.begun,
        "settings": None
        if settings is None
        else {
            "peer": settings["peer"],
            "version": settings["version"],
            "silent": settings["silent"],
            "missing": settings["missing"],
            "refused": settings["refused"],
        },
    }


def plan_json(plan: ReclaimPlan) -> ReclaimPlanAnswer:
    topics: list[PlannedTopic] = [
        {
            "name": topic.name,
            "incarnation": str(topic.incarnation),
            "after": str(topic.after),
            "upto": str(topic.upto),
            "made_anew": topic.made_anew,
            "below": topic.below,
            "between": topic.between,
            "sources": {peer: str(upto) for peer, upto in sorted(topic.sources.items())},
            "messages": plan.counted(number).messages,
            "messages_of": dict(sorted(plan.counted(number).of_peer.items())),
            "missing": [[str(after), str(upto)] for after, upto in topic.holes],
        }
        for number, topic in enumerate(plan.topics)
    ]
    return {"topics": topics, "lost": list(plan.lost), "deleted": list(plan.deleted), "begun": list(plan.begun)}
