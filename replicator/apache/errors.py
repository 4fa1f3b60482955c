"""Errors between a worker and the brokers that it runs beside."""

from __future__ import annotations

from http import HTTPStatus

from replicator.engine.errors import EngineError
from replicator.engine.log.store_tables import HighWater


class BridgeError(Exception):
    """Error that time or an operator may heal. The status shows it, and the worker tries again."""


class AdminFailed(BridgeError):
    """The brokers' admin API did not answer, or refused."""

    def __init__(self, text: str, status: int = 0) -> None:
        super().__init__(text)
        self.status = status
        """HTTP status of the answer; 0 if there was none."""

    @property
    def is_refusal(self) -> bool:
        """Return whether the brokers answered, and refused just this request."""
        return bool(self.status)


class AdminLimited(AdminFailed):
    """The admin API takes no more requests for now."""

    def __init__(
        self, text: str, status: int = HTTPStatus.TOO_MANY_REQUESTS, said_seconds: float | None = None
    ) -> None:
        super().__init__(text, status)
        self.said_seconds = said_seconds
        """Seconds after which to try again, as the answer said; None if it did not say."""

    @property
    def is_refusal(self) -> bool:
        """Return False: the brokers take no request for now."""
        return False


class ClientsRemain(EngineError):
    """The brokers' clients could not be kept out, so that a planned switch cannot be made."""

    status = 409


class EntryNotRefused(EngineError):
    """The entry is not the one that the brokers refuse now, so that it cannot be passed over."""

    status = 409


class NotBridged(EngineError):
    """The worker does not bridge that topic."""

    status = 404


class BridgeHalted(BridgeError):
    """Error where going on would lose or repeat messages. An operator has to look.

    ``remedy`` is the command that ends it; the text ends with it.
    """

    def __init__(self, text: str, remedy: str = "") -> None:
        super().__init__(f"{text}. To go on: `{remedy}`" if remedy else text)
        self.remedy = remedy


class BrokersPutBack(BridgeHalted):
    """The brokers were put back to an older copy of their data, or were set up anew: they have other entries at
    positions that were read.

    ``elsewhere`` is the last of these positions that another cluster has, if the worker's store has none of them.
    ``goes_on`` is the incarnation of a life that an earlier store has begun and that goes on; 0 if a new one begins.
    ``subscription`` is the incarnation that the bridge's subscription bears, if the store has nothing of the topic. The
    subscription keeps it in later lives.
    """

    def __init__(self, text: str, elsewhere: HighWater | None = None, *, goes_on: int = 0) -> None:
        super().__init__(text)
        self.elsewhere = elsewhere
        self.goes_on = goes_on
        self.subscription: int | None = None


def entries_hidden(topic: str, afterwards: str) -> str:
    """Return an error text: the worker's role may not view entries of ``topic``, and what to do. ``afterwards`` ends
    it."""
    return (
        f"{topic} may be another one at the brokers, and they do not show the worker's role its entries, so nobody can "
        "tell which of them were read. Let the role view messages (`GET "
        f"/admin/v2/persistent/…/ledger/…/entry/…`){afterwards}"
    )


class RenewalRefused(EngineError):
    """Error for a renewal of reading that would lose messages which only one side has."""

    status = 409
