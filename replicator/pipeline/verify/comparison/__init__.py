"""Comparison of the logs of clusters by blocks: pure, vectorised over batches of blocks, no network and no Spark."""
