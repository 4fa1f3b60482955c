"""Parts of one transaction of the writer: the group of requests, and one part for each kind of work in it."""
