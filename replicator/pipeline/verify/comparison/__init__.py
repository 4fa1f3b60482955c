"""Comparing the logs of clusters by blocks: pure, vectorised over whole batches of blocks, no network and no Spark."""
