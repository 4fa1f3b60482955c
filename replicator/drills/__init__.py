"""Failover drills: scenario, measurements, report."""
