"""The protocol that keeps subscriptions in step across clusters; pure but for its Postgres repository."""
