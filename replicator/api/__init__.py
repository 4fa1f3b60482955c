"""The worker's HTTP surface: data plane, client sockets, status, metrics."""
