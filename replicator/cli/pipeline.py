"""``replicator pipeline``: what runs the data pipeline on a Spark cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from replicator.cli.admin import spark_master

app = typer.Typer(help="The data pipeline on a Spark cluster.", no_args_is_help=True)

ArchivePath = Annotated[
    Path, typer.Argument(metavar="FILE", help="Where to write it: a name that ends with .tar.gz, .tgz or .zip.")
]


@app.command("package")
def package(archive: ArchivePath) -> None:
    """Write an archive of what Spark's executors need of this installation; docs/spark-clusters.md shows its use.

    Nodes need a Python of the same minor version, on the same platform, and nothing installed in it.
    """
    from replicator.pipeline.spark.shipping import UNPACKED_AS, write_archive

    written = write_archive(archive)
    typer.echo(
        f"{written.path}: {written.size_bytes / 1e6:.0f} MB, {len(written.distributions)} distributions, "
        f"for Python {written.python} on {written.platform}"
    )
    typer.echo(f'In the topology: pipeline: {{conf: {{"spark.archives": "{written.path.resolve()}#{UNPACKED_AS}"}}}}')


@app.command("run")
def run(
    worker: Annotated[str, typer.Argument(metavar="URL", help="The worker whose links are copied, http://HOST:PORT.")],
    master: Annotated[
        str | None, typer.Option(metavar="URL", help="The Spark master; default: pipeline.master of the topology.")
    ] = None,
) -> None:
    """Run the driver of live copy for a worker, here instead of beside it; docs/live-copy.md says when.

    For a topology with `pipeline: {driver: external}`. Ends on SIGTERM and Ctrl-C.
    """
    from replicator.pipeline.live.driver import run_until_told

    raise typer.Exit(run_until_told(worker, spark_master(master)))
