"""Metrics of ``GET /metrics``: their declarations, how they are filled, and the page that lists them."""

from __future__ import annotations
