"""Identity of a client: a value. The modules beside this one make it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from snapshots import limits

ROLE_CHARS_MAX: Final = limits.ROLE_CHARS_MAX
TOKEN_CHARS_MAX: Final = 16 * 1024


@dataclass(frozen=True, slots=True)
class Identity:
    """Role of a client, and until when it is valid."""

    role: str
    expires_at: float | None = None
    """Time at which the identity expires, in seconds since the epoch; None: never."""
