"""Answers of the admin paths: their status, keys and types, for a topic that has been used in every way."""

from __future__ import annotations

from typing import Any

import pulsar
from differential.harness import At, batch, program, send_all, take


def shape(value: Any) -> Any:
    """Keys and types; of a list, the shapes that it has."""
    if isinstance(value, dict):
        return {key: shape(each) for key, each in sorted(value.items())}
    if isinstance(value, list):
        return [shape(each) for each in value[:1]]
    return "number" if isinstance(value, int | float) and not isinstance(value, bool) else type(value).__name__


def used(at: At) -> None:
    """Use a topic: one producer and one consumer that stay, a batch, a hole in the acknowledgements."""
    send_all(at.producer(producer_name="p"), range(4))
    batch(at, range(3))
    consumer = at.consumer(consumer_name="c", consumer_type=pulsar.ConsumerType.Shared)
    consumer.acknowledge(take(consumer, 4)[2])


PATHS = {
    "stats": ("GET", "persistent/public/default/{}/stats"),
    "internal stats": ("GET", "persistent/public/default/{}/internalStats"),
    "subscriptions": ("GET", "persistent/public/default/{}/subscriptions"),
    "partitions": ("GET", "persistent/public/default/{}/partitions"),
    "last message id": ("GET", "persistent/public/default/{}/lastMessageId"),
    "skip": ("POST", "persistent/public/default/{}/subscription/s/skip/1"),
    "skip all": ("POST", "persistent/public/default/{}/subscription/s/skip_all"),
    "delete of one in use": ("DELETE", "persistent/public/default/{}/subscription/s"),
    "delete of a topic in use": ("DELETE", "persistent/public/default/{}"),
    "compaction": ("GET", "persistent/public/default/{}/compaction"),
    "no such topic": ("GET", "persistent/public/default/{}-nosuch/stats"),
    "no such subscription": ("DELETE", "persistent/public/default/{}/subscription/nosuch"),
    "topics": ("GET", "persistent/public/default"),
    "tenants": ("GET", "tenants"),
    "tenant": ("GET", "tenants/public"),
    "namespaces": ("GET", "namespaces/public"),
    "clusters": ("GET", "clusters"),
    "no such tenant": ("GET", "namespaces/nosuch-{}"),
    "permissions": ("GET", "persistent/public/default/{}/permissions"),
}


@program(each=PATHS)
def answers_of_admin_paths(at: At, method: str, path: str) -> Any:
    used(at)
    status, answer = at.admin(method, path.format(at.name))
    if status >= 300:  # what ours says beside the reason is for our own tools
        return status, isinstance(answer, dict) and isinstance(answer["reason"], str)
    return status, shape(answer)
