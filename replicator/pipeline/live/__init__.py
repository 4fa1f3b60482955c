"""Live copy: the links of a worker carried by Structured Streaming."""
