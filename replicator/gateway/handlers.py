"""Handlers of commands, by type; SEND goes to its producer's session straight away."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from replicator.gateway import asking, lookups, opening, schemas, transactions, watching
from replicator.gateway.connection import Handler
from replicator.protocol.commands_pb2 import BaseCommand

T = BaseCommand.Type

HANDLERS: Final[Mapping[int, Handler]] = {
    T.PRODUCER: opening.produce,
    T.CLOSE_PRODUCER: opening.close_producer,
    T.SUBSCRIBE: opening.subscribe,
    T.CLOSE_CONSUMER: opening.close_consumer,
    T.UNSUBSCRIBE: opening.unsubscribe,
    T.FLOW: asking.flow,
    T.REDELIVER_UNACKNOWLEDGED_MESSAGES: asking.redeliver,
    T.SEEK: asking.seek,
    T.RESTARTED: asking.restarted,
    T.GET_LAST_MESSAGE_ID: asking.last_message_id,
    T.CONSUMER_STATS: asking.stats,
    T.PARTITIONED_METADATA: lookups.partitions,
    T.LOOKUP: lookups.lookup,
    T.GET_TOPICS_OF_NAMESPACE: lookups.topics_of_namespace,
    T.WATCH_TOPIC_LIST: watching.watch,
    T.WATCH_TOPIC_LIST_CLOSE: watching.close_watch,
    T.GET_SCHEMA: schemas.get,
    T.GET_OR_CREATE_SCHEMA: schemas.get_or_create,
    T.TC_CLIENT_CONNECT_REQUEST: transactions.refuse,
    T.NEW_TXN: transactions.refuse,
    T.ADD_PARTITION_TO_TXN: transactions.refuse,
    T.ADD_SUBSCRIPTION_TO_TXN: transactions.refuse,
    T.END_TXN: transactions.refuse,
    T.END_TXN_ON_PARTITION: transactions.refuse,
    T.END_TXN_ON_SUBSCRIPTION: transactions.refuse,
}
