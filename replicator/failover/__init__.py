"""Failover: the assignment of clients to the clusters that serve them, and the switch from one to another (DESIGN
§4.5).
"""
