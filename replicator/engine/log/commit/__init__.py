"""What one transaction of the writer does: the group of requests, and one part for each kind of work in it."""
