"""Subscriptions under ``/admin/v2/persistent/{tenant}/{namespace}/{topic}``.

On a partitioned topic a request is for every partition. What can be refused is refused before the first of them is
touched.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from aiohttp import web

from replicator.api.admin.errors import (
    NotExpired,
    NotOnPartitioned,
    PreconditionFailed,
    SubscriptionExists,
)
from replicator.api.admin.message_ids import NO_INDEX, Target, read_target
from replicator.api.admin.requests import (
    ENGINE,
    flag_field,
    flag_parameter,
    logs_of,
    no_content,
    number_of,
    object_field,
    one_topic,
    read_json,
    subscription_name,
    text_field,
    topic_name,
)
from replicator.engine.errors import InvalidSeek, SubscriptionNotFound, TopicNotFound
from replicator.engine.subscriptions.deleting import delete_together
from replicator.engine.subscriptions.subscription import Subscription
from replicator.engine.topic import Topic
from snapshots.position import BEFORE_ALL, Position

SKIP_MESSAGES_MAX: Final = 10_000_000
"""Limit of messages skipped at once: skipping reads them."""
PROPERTIES_MAX: Final = 100
TOPIC: Final = "/admin/v2/persistent/{tenant}/{namespace}/{topic}"
SUBSCRIPTION: Final = f"{TOPIC}/subscription/{{subscription}}"


def routes() -> list[web.RouteDef]:
    """Return the routes of subscriptions."""
    return [
        web.get(f"{TOPIC}/subscriptions", list_subscriptions),
        web.put(SUBSCRIPTION, create),
        web.get(f"{SUBSCRIPTION}/properties", show_properties),
        web.put(f"{SUBSCRIPTION}/properties", set_properties),
        web.post(f"{SUBSCRIPTION}/analyzeBacklog", analyze),
        web.delete(SUBSCRIPTION, delete),
        web.post(f"{SUBSCRIPTION}/resetcursor/{{timestamp}}", seek_to_time),
        web.post(f"{SUBSCRIPTION}/resetcursor", seek_to_message),
        web.post(f"{SUBSCRIPTION}/skip/{{messages}}", skip),
        web.post(f"{SUBSCRIPTION}/skip_all", clear),
        web.get(f"{SUBSCRIPTION}/replicatedSubscriptionStatus", show_replicated),
        web.post(f"{SUBSCRIPTION}/replicatedSubscriptionStatus", set_replicated),
        web.post(f"{SUBSCRIPTION}/expireMessages/{{seconds}}", expire),
        web.post(f"{SUBSCRIPTION}/expireMessages", expire_through),
        web.post(f"{TOPIC}/all_subscription/expireMessages/{{seconds}}", expire_all),
    ]


async def list_subscriptions(request: web.Request) -> web.Response:
    """Answer with the sorted names of subscriptions; for a partitioned topic, those of any partition."""
    topics = await logs_of(request)
    return web.json_response(sorted({name for topic in topics for name in topic.subscriptions}))


async def create(request: web.Request) -> web.Response:
    """Make a subscription that stands at the message that the body names; at the end of the topic without one. Without
    ``replicated`` the policies of the topic say whether it is."""
    name = subscription_name(request)
    body = await read_json(request)
    target, properties = read_target(body), _properties(body)
    replicated = flag_parameter(request, "replicated") if "replicated" in request.query else None
    topics = await _topics_made_by_use(request)
    target_topics = _topics_of(request, topics, target)
    if any(name in topic.subscriptions for topic in topics):
        raise SubscriptionExists(f"{topic_name(request)} has a subscription {name!r} already")
    starts = [_start(topic, target if topic in target_topics else Target(BEFORE_ALL)) for topic in topics]
    for topic, start in zip(topics, starts, strict=True):
        await topic.subscriptions.create(name, start, replicated=replicated, properties=dict(properties))
    return no_content()


async def delete(request: web.Request) -> web.Response:
    """Delete a subscription, unless consumers use it in any cluster; with ``force=true``, delete it even then.

    The path names a topic, or a partitioned topic; then every partition loses the subscription. Without force, a
    consumer in any cluster means an error, and nothing is deleted. With force, consumers are disconnected.
    """
    force = flag_parameter(request, "force")
    subscriptions = await _subscriptions(request)
    await delete_together(subscriptions, force=force)
    return no_content()


async def seek_to_time(request: web.Request) -> web.Response:
    """Move the subscription, so that the first message published at a time (ms since the epoch) or later comes next."""
    published_ms = number_of(request.match_info["timestamp"], "timestamp")
    for subscription in await _subscriptions(request):
        await subscription.moves.seek(published_ms)
    return no_content()


async def seek_to_message(request: web.Request) -> web.Response:
    """Move the subscription, so that the message in the body comes next, or with ``excluded`` the one after it."""
    target = read_target(await read_json(request))
    subscriptions = await _subscriptions(request)
    chosen = _topics_of(request, [each.topic for each in subscriptions], target)
    subscriptions = [each for each in subscriptions if each.topic in chosen]
    for subscription in subscriptions:  # of several topics only for a place that each of them has
        await subscription.moves.seek(target.next_position)
    return no_content()


async def skip(request: web.Request) -> web.Response:
    """Treat the next messages as consumed."""
    messages = number_of(request.match_info["messages"], "messages", most=SKIP_MESSAGES_MAX)
    await (await _one_subscription(request)).moves.skip(messages)
    return no_content()


async def clear(request: web.Request) -> web.Response:
    """Treat everything that is in the topic as consumed."""
    for subscription in await _subscriptions(request):
        await subscription.moves.clear_backlog()
    return no_content()


async def show_replicated(request: web.Request) -> web.Response:
    """Answer with a boolean for each topic or partition: whether the subscription is replicated."""
    return web.json_response({each.topic.name: each.replicated for each in await _subscriptions(request)})


async def set_replicated(request: web.Request) -> web.Response:
    """Tell other clusters of a subscription from now on, or not any more."""
    replicated = flag_field(await read_json(request), "replicatedSubscriptionStatus")
    for subscription in await _subscriptions(request):
        await subscription.set_replicated(replicated)
    return no_content()


async def expire(request: web.Request) -> web.Response:
    """Treat messages older than the path's seconds as consumed, for one subscription."""
    seconds = number_of(request.match_info["seconds"], "seconds")
    for subscription in await _subscriptions(request):
        await subscription.moves.expire(_ago_ms(request, seconds))
    return no_content()


async def expire_all(request: web.Request) -> web.Response:
    """Treat messages older than the path's seconds as consumed, for every subscription of the topic."""
    seconds = number_of(request.match_info["seconds"], "seconds")
    for topic in await logs_of(request):
        for subscription in list(topic.subscriptions.values()):
            await subscription.moves.expire(_ago_ms(request, seconds))
    return no_content()


async def expire_through(request: web.Request) -> web.Response:
    """Treat all up to the message of the body as consumed, or with ``excluded`` all before it."""
    target = read_target(await read_json(request))
    subscription = await _one_subscription(request)
    if target.partition != subscription.topic.partition:
        raise PreconditionFailed(
            f"partitionIndex of the message id is {target.partition}, and that of {topic_name(request)} is "
            f"{subscription.topic.partition}: give the id of a message of this topic"
        )
    if not target.anywhere and not subscription.topic.reading.has_position(target.position):
        raise NotExpired(f"{topic_name(request)} has no message at {target.position}")
    through = target.position
    if target.excluded and not target.anywhere:
        through = Position(through.ledger, through.entry - 1)
    if through != BEFORE_ALL:
        await subscription.moves.consume_through(subscription.topic.log.clamp(through))
    return no_content()


async def show_properties(request: web.Request) -> web.Response:
    """Answer with the properties that a subscription was given; for a partitioned topic, those on any partition."""
    shown: dict[str, str] = {}
    for subscription in await _subscriptions(request):
        shown |= subscription.cursor.state.properties
    return web.json_response(shown)


async def set_properties(request: web.Request) -> web.Response:
    """Give a subscription these properties in the place of those that it has."""
    properties = properties_of(await read_json(request))
    for subscription in await _subscriptions(request):
        await subscription.set_properties(properties)
    return no_content()


async def analyze(request: web.Request) -> web.Response:
    """Answer with the backlog of a subscription in entries and messages; no filter is applied."""
    subscription = await _one_subscription(request)
    entries, messages = subscription.cursor.backlog_entries(), subscription.backlog_messages()
    log = subscription.topic.log
    first = log.next_after(subscription.cursor.mark_delete)
    return web.json_response(
        {
            "entries": entries,
            "messages": messages,
            "filterRejectedEntries": 0,
            "filterAcceptedEntries": entries,
            "filterRescheduledEntries": 0,
            "filterRejectedMessages": 0,
            "filterAcceptedMessages": messages,
            "filterRescheduledMessages": 0,
            "aborted": False,
            **({} if first is None else {"firstMessageId": str(first), "lastMessageId": str(log.last)}),
        }
    )


async def find_subscription(request: web.Request) -> Subscription:
    """Return the subscription of the path, on a topic that is not partitioned; raise an error if there is none."""
    return await _one_subscription(request)


async def _topics_made_by_use(request: web.Request) -> list[Topic]:
    """Return the topics of :func:`logs_of`. Create the topic first if it does not exist and its namespace lets use
    create topics."""
    engine, name = request.app[ENGINE], str(topic_name(request))
    if not await engine.by_use.partitions(name):
        await engine.topic(name)
    return await logs_of(request)


async def _one_subscription(request: web.Request) -> Subscription:
    topic, name = await one_topic(request), subscription_name(request)
    subscription = topic.subscriptions.get(name)
    if subscription is None:
        raise _not_found(request, name)
    return subscription


async def _subscriptions(request: web.Request) -> list[Subscription]:
    """Return the subscription of the path, on every partition that has it."""
    name = subscription_name(request)
    topics = await logs_of(request)
    found = [topic.subscriptions[name] for topic in topics if name in topic.subscriptions]
    if not found:
        raise _not_found(request, name)
    return found


def _not_found(request: web.Request, name: str) -> SubscriptionNotFound:
    return SubscriptionNotFound(f"{topic_name(request)} has no subscription {name!r}")


def _topics_of(request: web.Request, topics: list[Any], target: Target) -> list[Any]:
    """Return the topics that ``target`` refers to: one partition for a message id, all for the ends of the topic."""
    name = topic_name(request)
    if not request.app[ENGINE].partitioned.count(str(name)) or target.anywhere:
        return topics
    if target.partition == NO_INDEX:
        raise NotOnPartitioned(
            f"{name} is partitioned: add partitionIndex, the number of the message's partition, to the message id"
        )
    chosen = [topic for topic in topics if topic.partition == target.partition]
    if not chosen:
        raise TopicNotFound(
            f"{name} has no partition {target.partition} here, or that partition lacks this subscription: correct "
            "partitionIndex"
        )
    return chosen


def _start(topic: Topic, target: Target) -> Position:
    """Return the last position before the start of a new subscription at ``target``."""
    if target.position == BEFORE_ALL:
        return BEFORE_ALL
    return topic.reading.position_before(target.next_position)


def _properties(body: Any) -> Mapping[str, str]:
    return properties_of(object_field(body, "message id").get("properties") if body is not None else None)


def properties_of(body: Any) -> Mapping[str, str]:
    """Return the properties of a subscription in a body; raise :class:`BadRequest` or :class:`InvalidSeek`."""
    if body is None:
        return {}
    fields = object_field(body, "properties")
    if len(fields) > PROPERTIES_MAX:
        raise InvalidSeek(
            f"{len(fields)} properties are more than {PROPERTIES_MAX}, the limit of a subscription: send fewer"
        )
    return {key: text_field(value, f"properties.{key}") for key, value in fields.items()}


def _ago_ms(request: web.Request, seconds: int) -> int:
    return max(0, request.app[ENGINE].writer.wall_clock_ms() - seconds * 1000)
