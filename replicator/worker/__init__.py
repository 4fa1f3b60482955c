"""One worker put together: the parts of a cluster's process, their start, reload and end."""
