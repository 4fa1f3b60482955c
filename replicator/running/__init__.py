"""What every room may use to keep its tasks alive: the supervisor, and the helpers for short tasks."""
