"""Producers, consumers and readers over WebSockets, in the shape of Pulsar's own: for browsers and shells."""
