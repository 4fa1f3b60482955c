"""Dispatchers: they decide which consumer of a subscription gets which entry. One for each subscription type; all are
pure."""
