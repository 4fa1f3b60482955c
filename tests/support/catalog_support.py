"""Helpers of the tests of the catalog: a follower of its events, and a search for rows without an owner."""

from __future__ import annotations

from replicator.engine.log.store import Store
from replicator.engine.log.store_tables import TABLES_OF_TOPICS, TOPIC_KEY
from replicator.engine.topic import Topic
from replicator.engine.topic_listener import TopicListener
from replicator.engine.topics.topic_deletion import TOPIC_FACTS


class Follower(TopicListener[Topic]):
    """Set of names that consumers can subscribe to, kept only by events of the engine."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.created: list[str] = []
        self.deleted: list[str] = []

    def on_topic_created(self, topic_name: str) -> None:
        assert topic_name not in self.names, f"{topic_name} was made twice"
        self.names.add(topic_name)
        self.created.append(topic_name)

    def on_topic_deleted(self, topic_name: str) -> None:
        self.names.remove(topic_name)
        self.deleted.append(topic_name)


def rows_of_nobody(store: Store) -> set[tuple[str, int]]:
    """Return the tables with rows of topics that are not in the catalog, and those topics' ids."""
    live = {record.topic_id for record in store.topics()}
    found: set[tuple[str, int]] = {("deleted", topic_id) for topic_id in store.deleted_topics()}
    with store.env.begin() as txn:
        for table in TABLES_OF_TOPICS:
            for key in txn.cursor(db=store.tables[table]).iternext(keys=True, values=False):
                (topic_id,) = TOPIC_KEY.unpack(bytes(key)[: TOPIC_KEY.size])
                if topic_id not in live:
                    found.add((table, topic_id))
        for key in txn.cursor(db=store.tables["meta"]).iternext(keys=True, values=False):
            fact, _, number = bytes(key).decode().rpartition(" ")
            if fact in TOPIC_FACTS and int(number) not in live:
                found.add(("meta", int(number)))
    return found
