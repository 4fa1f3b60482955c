"""The catalog of topics: names, namespaces, partitions, patterns, and who watches them."""
