"""Schemas of topics: what they are, which of them go together, and where they are kept."""
