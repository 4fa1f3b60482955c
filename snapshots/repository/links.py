"""Link states: the last report of each link of this cluster on each topic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import delete, select

from snapshots.limits import DETAIL_CHARS_MAX, WORD_CHARS_MAX
from snapshots.models import LinkStateRow
from snapshots.position import Position
from snapshots.repository.rows import Rows, shown


@dataclass(frozen=True, slots=True)
class LinkState:
    """Progress of a link with a topic: ``acknowledged`` is the source's position that the destination has."""

    link_key: str
    topic: str
    state: str
    acknowledged: Position
    backlog_entries: int
    detail: str = ""


class LinkStates(Rows):
    """Part of the repository that holds link states."""

    async def save_link_states(self, states: Sequence[LinkState]) -> None:
        """Write states. If several are of one link and topic, the last one counts."""
        rows = {
            (state.link_key, state.topic): {
                "cluster": self._cluster,
                "link_key": state.link_key,
                "topic": state.topic,
                "state": shown(state.state, WORD_CHARS_MAX),
                "acknowledged_ledger": state.acknowledged.ledger,
                "acknowledged_entry": state.acknowledged.entry,
                "backlog_entries": state.backlog_entries,
                "detail": shown(state.detail, DETAIL_CHARS_MAX),
            }
            for state in states
        }
        await self._upsert(LinkStateRow, list(rows.values()), "updated_at")

    async def link_states(self, link_key: str | None = None) -> list[LinkState]:
        """Return the states of all links, or of one, ordered by link and topic."""
        row = LinkStateRow
        query = select(
            row.link_key,
            row.topic,
            row.state,
            row.acknowledged_ledger,
            row.acknowledged_entry,
            row.backlog_entries,
            row.detail,
        ).where(row.cluster == self._cluster)
        if link_key is not None:
            query = query.where(row.link_key == link_key)
        async with self._connection() as connection:
            found = (await connection.execute(query.order_by(row.link_key, row.topic))).all()
        return [
            LinkState(key, topic, state, Position(ledger, entry), backlog, detail)
            for key, topic, state, ledger, entry, backlog, detail in found
        ]

    async def delete_link(self, link_key: str) -> int:
        """Remove the states of a deleted link; return their number."""
        statement = delete(LinkStateRow).where(LinkStateRow.cluster == self._cluster, LinkStateRow.link_key == link_key)
        async with self._connection() as connection:
            return int((await connection.execute(statement)).rowcount)
