"""``python -m replicator.cli``: the command line, where the installed command is not on the path."""

from replicator.cli.main import main

main()
