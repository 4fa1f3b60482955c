"""``replicator pipeline``: what runs the data pipeline on a Spark cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from replicator.cli.admin import spark_master
from replicator.cli.commands import Commands
from replicator.cli.json_types import Done, PackageAnswer
from replicator.cli.output import DONE, Shown

app = Commands(help="The data pipeline on a Spark cluster.", no_args_is_help=True)

ArchivePath = Annotated[
    Path, typer.Argument(metavar="FILE", help="File to write; its name ends with .tar.gz, .tgz or .zip.")
]


@app.command("package")
def package(archive: ArchivePath) -> Shown[PackageAnswer]:
    """Write an archive with the part of this installation that Spark's executors need; docs/spark-clusters.md shows its
    use.

    Nodes need a Python of the same minor version, on the same platform, and nothing installed in it.
    """
    from replicator.pipeline.spark.shipping import UNPACKED_AS, write_archive

    written = write_archive(archive)
    archives = f"{written.path.resolve()}#{UNPACKED_AS}"
    value: PackageAnswer = {
        "path": str(written.path),
        "size_bytes": written.size_bytes,
        "distributions": list(written.distributions),
        "python": written.python,
        "platform": written.platform,
        "spark_archives": archives,
    }
    return Shown(
        value,
        f"{written.path}: {written.size_bytes / 1e6:.0f} MB, {len(written.distributions)} distributions, "
        f"for Python {written.python} on {written.platform}\n"
        f'In the topology: pipeline: {{conf: {{"spark.archives": "{archives}"}}}}',
    )


@app.command("run")
def run(
    worker: Annotated[
        str,
        typer.Argument(
            metavar="URL", help="Address of the worker whose links this Spark driver copies, as http://HOST:PORT."
        ),
    ],
    master: Annotated[
        str | None, typer.Option(metavar="URL", help="Spark master. Default: pipeline.master of the topology.")
    ] = None,
) -> Shown[Done]:
    """Run the driver of live copy for a worker, here instead of beside it; docs/live-copy.md says when.

    For a topology with `pipeline: {driver: external}`. Ends on SIGTERM and Ctrl-C.
    """
    from replicator.pipeline.live.driver import run_until_signal

    return Shown(DONE, status=run_until_signal(worker, spark_master(master)))
