"""The dashboard at ``/`` of each worker: pages of all clusters, for who runs them. docs/dashboard.md is for its users.

Pages are made here as HTML, and read and used without a script; a small script morphs what changes (server-sent
events). What is shown of other clusters is asked of their workers in this worker's name, once for all open pages
(:mod:`replicator.dashboard.feeds`); what is changed is asked for in the name of who signed in, so that each worker
decides by itself who may (:mod:`replicator.dashboard.fan_out`).
"""
