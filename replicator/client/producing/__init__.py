"""Producers: batches, chunks, compression, encryption, routing."""
