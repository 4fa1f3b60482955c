"""Tools for every room to keep its tasks alive: the supervisor, and the helpers for short tasks."""
