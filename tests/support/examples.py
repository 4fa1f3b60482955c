"""Number of examples that a property test tries: few with every change, because they are the same each time; many in a
soak, which draws others each time."""

from __future__ import annotations

import os
from typing import Final

_SOAK: Final = os.environ.get("HYPOTHESIS_PROFILE") == "soak"


def examples(count: int) -> int:
    """``count`` in the suite, twenty times as many in ``make soak``; for what is too slow for the profile's number."""
    return 20 * count if _SOAK else count
