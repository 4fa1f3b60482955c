"""Subscriptions: what is consumed, who gets what, and saving it."""
