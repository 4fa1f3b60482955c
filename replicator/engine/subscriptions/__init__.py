"""Subscriptions: their acknowledgement state, its storage, and dispatch to consumers."""
