"""Backfill: a region that joins gets another one's history by Spark, then the live link continues."""
