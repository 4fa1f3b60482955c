"""The command line as a process: ``replicator``, or ``python -m replicator.cli`` where that is not on the path."""

from replicator.running.collector import made_to_stay


def main() -> None:
    """Entry point."""
    with made_to_stay():
        from replicator.cli.main import app
    app()


if __name__ == "__main__":
    main()
