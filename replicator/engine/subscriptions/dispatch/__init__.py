"""Which consumer of a subscription gets which entry: one dispatcher a subscription type, all of them pure."""
