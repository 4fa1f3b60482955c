"""Protocol that keeps subscriptions in step across clusters. It is pure, except for its Postgres repository."""
