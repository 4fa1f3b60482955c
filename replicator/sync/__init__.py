"""Subscription sync: the shell around the cores of :mod:`snapshots`, for every topic of one worker."""
