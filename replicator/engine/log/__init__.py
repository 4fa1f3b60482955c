"""The durable log: blocks and entries, the store, its one writer, and what is known of a log in memory."""
