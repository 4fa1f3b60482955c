"""Policies of one topic, in three layers: the engine's, then its namespace's, then its own.

A later layer overrides an earlier one. The topic's own policies are durable in the store. Those of its namespace are in
the catalog.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext

from replicator.engine.log.store import Store
from replicator.engine.log.store_tables import TOPIC_KEY
from replicator.engine.log.writer import Writer
from replicator.engine.policies import PolicyOverrides, TopicPolicies
from replicator.engine.policies_codec import decode_overrides, encode_overrides
from replicator.engine.topics.catalog_index import Namespace
from replicator.running.short_tasks import awaited, heard


class LayeredPolicies:
    """Effective policies of one topic. ``changed`` is called whenever they may have changed."""

    __slots__ = (
        "_changed",
        "_check_there",
        "_default",
        "_namespace",
        "_topic_id",
        "_writer",
        "changing",
        "effective",
        "on_own",
        "own",
    )

    def __init__(
        self,
        topic_id: int,
        store: Store,
        writer: Writer,
        default: TopicPolicies,
        namespace: Namespace,
        *,
        check_there: Callable[[], None],
        changed: Callable[[], None],
    ) -> None:
        self._topic_id = topic_id
        self._writer = writer
        self._default = default
        self._namespace = namespace
        self._check_there = check_there
        self._changed = changed
        self.on_own: Callable[[], None] = lambda: None
        """Called when the topic's own policies changed."""
        self.changing: Callable[[], AbstractAsyncContextManager[None]] = nullcontext
        """Context in which a change is made, so that it does not overlap with a replacement of all settings."""
        own = store.policies(topic_id)
        self.own = None if own is None else decode_overrides(own)
        """Policies that were set for this topic; None if it uses those of its namespace, or the engine's default."""
        self.effective = self._in_effect()
        """Policies in effect. Read them once for a piece of work."""

    @property
    def inherited(self) -> TopicPolicies:
        """Policies without those of the topic: its namespace's, over the engine's."""
        of_namespace = self._namespace.policies.topic_policies
        return self._default if of_namespace is None else of_namespace.over(self._default)

    async def set(self, policies: PolicyOverrides | TopicPolicies | None) -> None:
        """Set the topic's own policies durably: some of them, or all. Unset ones come from its namespace, or else from
        the engine. With None, all do."""
        self._check_there()
        overrides = PolicyOverrides.of(policies) if isinstance(policies, TopicPolicies) else policies or None
        stored = None if overrides is None else encode_overrides(overrides)
        # A cancelled caller cannot undo the change in the store, so it is made here, too.
        setting = awaited(self._set(overrides, stored))
        setting.add_done_callback(heard)
        await asyncio.shield(setting)

    def set_default(self, policies: TopicPolicies) -> None:
        """Set the engine's default policies. They count where neither the topic nor its namespace sets anything."""
        self._default = policies
        self.apply()

    def apply(self) -> None:
        """Update the effective policies, after the topic's or the namespace's policies changed."""
        self.effective = self._in_effect()
        self._changed()

    async def _set(self, policies: PolicyOverrides | None, stored: bytes | None) -> None:
        async with self.changing():
            await self._writer.put("policies", TOPIC_KEY.pack(self._topic_id), stored)
            self.take_over(policies)

    def take_over(self, own: PolicyOverrides | None) -> None:
        """Use ``own`` as the topic's own policies; the store has them already."""
        if own != self.own:
            self.own = own
            self.apply()
            self.on_own()

    def _in_effect(self) -> TopicPolicies:
        inherited = self.inherited
        return inherited if self.own is None else self.own.over(inherited)
