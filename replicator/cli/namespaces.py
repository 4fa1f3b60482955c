"""``replicator namespaces`` and ``replicator tenants``, over a worker's admin paths."""

from __future__ import annotations

from typing import Annotated

import typer

from replicator.cli.admin import (
    NamespaceArgument,
    WorkerOptions,
    names_table,
    takes_worker_options,
)
from replicator.cli.commands import Commands
from replicator.cli.output import Shown
from replicator.cli.policies import (
    Kind,
    add_policy_commands,
    namespace_policies,
    set_auto_topic_creation,
    set_replication_clusters,
)

app = Commands(no_args_is_help=True)
tenants = Commands(help="Tenants of a cluster: the owners of its namespaces.", no_args_is_help=True)

TenantArgument = Annotated[str, typer.Argument(metavar="TENANT", help="Name of the tenant.")]


@app.callback()
def namespaces(context: typer.Context) -> None:
    """Namespaces of a cluster, and the policies of all topics in them."""
    context.obj = Kind.NAMESPACE


@app.command("list")
@takes_worker_options
def list_namespaces(
    tenant: Annotated[
        str | None,
        typer.Argument(metavar="[TENANT]", help="Show only namespaces of this tenant. Default: all tenants."),
    ] = None,
    *,
    worker: WorkerOptions,
) -> Shown[list[str]]:
    """List the namespaces of a tenant, or all of them."""
    from replicator.operating.admin_client import AdminClient, namespaces_path

    async def work(client: AdminClient) -> list[str]:
        of_tenants = [tenant] if tenant is not None else await client.call("GET", "tenants")
        return [name for each in of_tenants for name in await client.call("GET", namespaces_path(each))]

    names = worker.ask(work)
    return Shown(names, names_table(names))


@app.command("create")
@takes_worker_options
def create(namespace: NamespaceArgument, *, worker: WorkerOptions) -> None:
    """Make a namespace, and its tenant if there is none. Naming a topic in it does the same."""
    from replicator.operating.admin_client import namespace_path

    worker.call("PUT", namespace_path(namespace))


@app.command("delete")
@takes_worker_options
def delete(
    namespace: NamespaceArgument,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Delete the namespace with all its topics, also those that clients are connected to."
        ),
    ] = False,
    *,
    worker: WorkerOptions,
) -> None:
    """Delete a namespace. In this cluster only."""
    from replicator.operating.admin_client import namespace_path

    worker.call("DELETE", namespace_path(namespace), force=str(force).lower())


@tenants.command("list")
@takes_worker_options
def list_tenants(*, worker: WorkerOptions) -> Shown[list[str]]:
    """List the tenants of a cluster."""
    names = worker.call("GET", "tenants")
    return Shown(names, names_table(names))


@tenants.command("create")
@takes_worker_options
def create_tenant(tenant: TenantArgument, *, worker: WorkerOptions) -> None:
    """Make a tenant."""
    from replicator.operating.admin_client import tenant_path

    worker.call("PUT", tenant_path(tenant))


@tenants.command("delete")
@takes_worker_options
def delete_tenant(tenant: TenantArgument, *, worker: WorkerOptions) -> None:
    """Delete a tenant that has no namespaces."""
    from replicator.operating.admin_client import tenant_path

    worker.call("DELETE", tenant_path(tenant))


app.command("policies")(namespace_policies)
add_policy_commands(app)
app.command("set-replication-clusters")(set_replication_clusters)
app.command("set-auto-topic-creation")(set_auto_topic_creation)
