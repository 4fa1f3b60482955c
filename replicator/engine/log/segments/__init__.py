"""Large bodies of blocks, in files of fixed size that all topics of a worker share (DESIGN §6)."""
