"""What ``GET /metrics`` shows: which metrics there are, how they are filled, and the page that lists them."""

from __future__ import annotations
