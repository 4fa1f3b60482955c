"""What stands between a producer and the log: who may publish, what is refused, what is stored already."""
