"""The command line as a process: ``replicator``, or ``python -m replicator.cli`` where that is not on the path."""

import sys

from replicator.running.collector import made_to_stay


def main() -> None:
    """Entry point."""
    with made_to_stay():
        import structlog

        from replicator.cli.main import app
    # Standard output has the answer of a command, which a program may read.
    structlog.configure(logger_factory=lambda *_: structlog.PrintLogger(sys.stderr))
    app()


if __name__ == "__main__":
    main()
