"""Producers and consumers, over the embedded engine or over the network."""
