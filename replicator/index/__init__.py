"""The worker's side of the Postgres index: what waits to be written, the exact mapping, and its rebuilding."""
