"""``replicator doctor``: what is wrong with a machine and with what its workers need, and what to do about it."""
