"""Failover: which cluster serves the clients of which, and the switch from one to another (DESIGN §4.5)."""
