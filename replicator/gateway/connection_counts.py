"""How many connections of the binary protocol one address and one role may have: nobody takes the others' place.

Far above what clients need, which have one connection each; what comes beyond is closed at once (invariant 11).
"""

from __future__ import annotations

from collections import Counter
from typing import Final

OF_ADDRESS_MAX: Final = 10_000
OF_ROLE_MAX: Final = 10_000


class ConnectionCounts:
    """Counts those that are open."""

    def __init__(self, of_address_max: int = OF_ADDRESS_MAX, of_role_max: int = OF_ROLE_MAX) -> None:
        self._of_address_max = of_address_max
        self._of_role_max = of_role_max
        self._addresses: Counter[str] = Counter()
        self._roles: Counter[str] = Counter()

    def came(self, address: str) -> str | None:
        """One more from there; returns why it is too many, if it is. It counts until :meth:`went` in any case."""
        self._addresses[address] += 1
        if self._addresses[address] > self._of_address_max:
            return f"{self._of_address_max} connections from {address} are open, the limit"
        return None

    def admitted(self, role: str) -> str | None:
        """The same of a role; the empty one, of all where nobody is told apart, is not counted."""
        if not role:
            return None
        self._roles[role] += 1
        if self._roles[role] > self._of_role_max:
            return f"{self._of_role_max} connections of role {role[:100]!r} are open, the limit"
        return None

    def went(self, address: str, role: str) -> None:
        """One that came from there, and was admitted as ``role`` if it was."""
        for counter, key in ((self._addresses, address), (self._roles, role)):
            if key and key in counter:
                counter[key] -= 1
                if not counter[key]:
                    del counter[key]
