"""The embedded durable log and subscription engine of one cluster; no network, no SQL."""
