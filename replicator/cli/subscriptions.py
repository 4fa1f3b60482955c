"""``replicator subscriptions``: subscriptions of a topic, over its worker's admin paths."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Final

import typer

from replicator.api.admin.json_types import PulsarSubscription
from replicator.cli.admin import (
    Force,
    SubscriptionArgument,
    Switch,
    TopicArgument,
    WorkerOptions,
    duration_seconds,
    on_off,
    rows_table,
    takes_worker_options,
)
from replicator.cli.commands import Commands
from replicator.cli.json_types import PeekedMessage
from replicator.cli.output import Shown

app = Commands(help="Subscriptions of a topic: make, put elsewhere, skip, look into, delete.", no_args_is_help=True)

EARLIEST: Final = {"ledgerId": -1, "entryId": -1}
LATEST: Final = {"ledgerId": 2**63 - 1, "entryId": 2**63 - 1}
PEEK_MAX: Final = 1_000
PAYLOAD_CHARS_MAX: Final = 60
"""Number of a payload's characters that a table shows. JSON has all of them."""

Where = Annotated[
    str | None,
    typer.Option(
        "--to",
        metavar="PLACE",
        help="Where the subscription is put: earliest, latest, or LEDGER:ENTRY of the message that it gets first.",
    ),
]


@app.command("list", watched=True)
@takes_worker_options
def list_subscriptions(topic: TopicArgument, *, worker: WorkerOptions) -> Shown[dict[str, PulsarSubscription]]:
    """List the subscriptions of a topic, with their types, backlogs and consumers."""
    from replicator.operating.admin_client import AdminClient, topic_path

    async def work(client: AdminClient) -> Any:
        found = await client.call("GET", topic_path(topic, "partitions"))
        kind, more = ("partitioned-stats", {"perPartition": "false"}) if found["partitions"] else ("stats", {})
        return (await client.call("GET", topic_path(topic, kind), **more))["subscriptions"]

    answer = worker.ask(work)
    rows = [
        (name, each["type"] or "–", each["msgBacklog"], each["unackedMessages"], len(each["consumers"]), _yes(each))
        for name, each in answer.items()
    ]
    columns = ("subscription", "type", "backlog", "unacked", "consumers", "replicated")
    return Shown(answer, rows_table(columns, rows))


@app.command("create")
@takes_worker_options
def create(
    topic: TopicArgument,
    subscription: SubscriptionArgument,
    to: Where = "latest",
    replicated: Annotated[
        bool | None,
        typer.Option(
            "--replicated/--not-replicated",
            help="Whether the other clusters keep the same state of the subscription.",
            show_default="as the topic's policies say",
        ),
    ] = None,
    *,
    worker: WorkerOptions,
) -> None:
    """Make a subscription without a consumer."""
    from replicator.operating.admin_client import subscription_path

    body = _message_id(to or "latest")
    parameters = {} if replicated is None else {"replicated": str(replicated).lower()}
    worker.call("PUT", subscription_path(topic, subscription), body, **parameters)


@app.command("set-replicated")
@takes_worker_options
def set_replicated(
    topic: TopicArgument, subscription: SubscriptionArgument, switch: Switch, *, worker: WorkerOptions
) -> None:
    """Keep a subscription in step in the other clusters from now on, or not any more. It goes on as it is."""
    from replicator.operating.admin_client import subscription_path

    path = subscription_path(topic, subscription, "replicatedSubscriptionStatus")
    worker.call("POST", path, on_off(switch))


@app.command("delete")
@takes_worker_options
def delete(
    topic: TopicArgument, subscription: SubscriptionArgument, force: Force = False, *, worker: WorkerOptions
) -> None:
    """Delete a subscription, and forget which messages it has not consumed."""
    from replicator.operating.admin_client import subscription_path

    worker.call("DELETE", subscription_path(topic, subscription), force=str(force).lower())


@app.command("seek")
@takes_worker_options
def seek(
    topic: TopicArgument,
    subscription: SubscriptionArgument,
    to: Where = None,
    time: Annotated[
        str | None,
        typer.Option(
            "--time",
            metavar="TIME",
            help="Move to the first message published since this time: ISO 8601; UTC if it has no time zone.",
        ),
    ] = None,
    ago: Annotated[
        str | None,
        typer.Option(
            "--ago", metavar="DURATION", help="Move to the first message of this last period, such as 90s, 2h or 7d."
        ),
    ] = None,
    *,
    worker: WorkerOptions,
) -> None:
    """Put a subscription elsewhere. Consumers stay connected."""
    from replicator.operating.admin_client import subscription_path

    if sum(each is not None for each in (to, time, ago)) != 1:
        raise typer.BadParameter("give exactly one of --to, --time and --ago, to say where the subscription is put")
    if to is not None:
        path, body = subscription_path(topic, subscription, "resetcursor"), _message_id(to)
    else:
        published_ms = _time_ms(time) if time is not None else _ago_ms(ago or "")
        path, body = subscription_path(topic, subscription, "resetcursor", str(published_ms)), None
    worker.call("POST", path, body)


@app.command("skip")
@takes_worker_options
def skip(
    topic: TopicArgument,
    subscription: SubscriptionArgument,
    messages: Annotated[int, typer.Option("--messages", "-n", min=1, metavar="N", help="Number of messages to skip.")],
    *,
    worker: WorkerOptions,
) -> None:
    """Treat the next messages as consumed."""
    from replicator.operating.admin_client import subscription_path

    worker.call("POST", subscription_path(topic, subscription, "skip", str(messages)))


@app.command("clear")
@takes_worker_options
def clear(topic: TopicArgument, subscription: SubscriptionArgument, *, worker: WorkerOptions) -> None:
    """Treat everything that is in the topic as consumed."""
    from replicator.operating.admin_client import subscription_path

    worker.call("POST", subscription_path(topic, subscription, "skip_all"))


@app.command("expire")
@takes_worker_options
def expire(
    topic: TopicArgument,
    subscription: Annotated[
        str | None,
        typer.Argument(
            metavar="[SUBSCRIPTION]", help="Name of the subscription. Default: all subscriptions of the topic."
        ),
    ] = None,
    older_than: Annotated[
        str,
        typer.Option(
            "--older-than", metavar="DURATION", help="Skip messages that are older than this, such as 90s, 2h or 7d."
        ),
    ] = ...,  # type: ignore[assignment]
    *,
    worker: WorkerOptions,
) -> None:
    """Treat old messages as consumed."""
    from replicator.operating.admin_client import subscription_path, topic_path

    parts = ("expireMessages", str(duration_seconds(older_than, "--older-than")))
    if subscription is None:
        path = topic_path(topic, "all_subscription", *parts)
    else:
        path = subscription_path(topic, subscription, *parts)
    worker.call("POST", path)


@app.command("peek", watched=True)
@takes_worker_options
def peek(
    topic: TopicArgument,
    subscription: SubscriptionArgument,
    messages: Annotated[
        int,
        typer.Option(
            "--messages",
            "-n",
            min=1,
            max=PEEK_MAX,
            metavar="N",
            help="Number of entries to show; a batch of messages is one.",
        ),
    ] = 1,
    *,
    worker: WorkerOptions,
) -> Shown[list[PeekedMessage]]:
    """Show the next entries of a backlog, and consume nothing. A batch is one entry, shown as its first message."""
    from replicator.operating.admin_client import AdminClient, subscription_path
    from replicator.operating.errors import RequestRefused

    async def work(client: AdminClient) -> list[PeekedMessage]:
        found: list[PeekedMessage] = []
        for number in range(1, messages + 1):
            try:
                headers, payload = await client.message(subscription_path(topic, subscription, "position", str(number)))
            except RequestRefused as error:
                if error.code == "MessageNotFound":
                    break
                raise
            found.append(_shown_message(headers, payload))
        return found

    answer = worker.ask(work)
    rows = [(each["id"], each["published"], each["key"] or "–", each["payload"][:PAYLOAD_CHARS_MAX]) for each in answer]
    return Shown(answer, rows_table(("message", "published", "key", "payload"), rows))


def _shown_message(headers: Mapping[str, str], payload: bytes) -> PeekedMessage:
    in_batch = int(headers.get("X-Pulsar-num-batch-message", "0"))
    return {
        "id": headers["X-Pulsar-Message-ID"],
        "published": headers["X-Pulsar-publish-time"],
        "producer": headers.get("X-Pulsar-producer-name"),
        "key": headers.get("X-Pulsar-partition-key"),
        "properties": json.loads(headers.get("X-Pulsar-PROPERTY", "{}")),
        "messages": max(in_batch, 1),
        "payload": payload.decode("utf-8", "replace"),
    }


def _message_id(place: str) -> dict[str, int]:
    from snapshots.errors import InvalidPosition
    from snapshots.position import Position

    if place in ("earliest", "latest"):
        return EARLIEST if place == "earliest" else LATEST
    try:
        position = Position.parse(place)
    except InvalidPosition:
        raise typer.BadParameter(f"--to: {place[:40]!r} is not earliest, latest or LEDGER:ENTRY") from None
    return {"ledgerId": position.ledger, "entryId": position.entry}


def _time_ms(text: str) -> int:
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(f"--time: {text[:40]!r} is not a time such as 2026-07-28T09:30:00Z") from None
    if time.tzinfo is None:
        time = time.replace(tzinfo=UTC)
    return max(0, int(time.timestamp() * 1000))


def _ago_ms(text: str) -> int:
    return max(0, int(datetime.now(UTC).timestamp() * 1000) - duration_seconds(text, "--ago") * 1000)


def _yes(stats: Mapping[str, Any]) -> str:
    return "yes" if stats["isReplicated"] else "no"
