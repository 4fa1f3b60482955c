"""The drill's producers, consumers and watchers: clients as applications use them, which record what they see.

All follow :class:`~replicator.drills.traffic.active.ActiveCluster`: they leave a cluster when the operator moves the
clients, or when their connection breaks, and then wait for the move. Nothing here knows what the scenario does next.
"""
