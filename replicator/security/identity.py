"""Who somebody is. A value; what it is made from is in the modules beside this."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from snapshots import limits

ROLE_CHARS_MAX: Final = limits.ROLE_CHARS_MAX
TOKEN_CHARS_MAX: Final = 16 * 1024


@dataclass(frozen=True, slots=True)
class Identity:
    """Who somebody is, and until when that counts."""

    role: str
    expires_at: float | None = None
    """In seconds since the epoch."""
