"""Tools by which other packages keep their tasks alive: the supervisor, and the helpers for short tasks."""
