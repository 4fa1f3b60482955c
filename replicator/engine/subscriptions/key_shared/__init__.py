"""Assignment of keys to Key_Shared consumers: hashing and the selectors. Pure."""
