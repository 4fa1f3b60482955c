"""Every public name of the official Python client, as the package that is installed has them."""

from __future__ import annotations

import inspect
from typing import Any

import pulsar
import pulsar.asyncio
import pulsar.schema

CALLS = {
    "Client": pulsar.Client.__init__,
    "create_producer": pulsar.Client.create_producer,
    "subscribe": pulsar.Client.subscribe,
    "create_reader": pulsar.Client.create_reader,
    "create_table_view": pulsar.Client.create_table_view,
    "send": pulsar.Producer.send,
    "send_async": pulsar.Producer.send_async,
    "AutoClusterFailover": pulsar.AutoClusterFailover.__init__,
    "ServiceInfo": pulsar.ServiceInfo.__init__,
    "ConsumerBatchReceivePolicy": pulsar.ConsumerBatchReceivePolicy.__init__,
    "ConsumerKeySharedPolicy": pulsar.ConsumerKeySharedPolicy.__init__,
    "ConsumerDeadLetterPolicy": pulsar.ConsumerDeadLetterPolicy.__init__,
    "CryptoKeyReader": pulsar.CryptoKeyReader.__init__,
}
"""Calls whose arguments are listed one by one."""
CLASSES: dict[str, Any] = {
    "Client": pulsar.Client,
    "Producer": pulsar.Producer,
    "Consumer": pulsar.Consumer,
    "Reader": pulsar.Reader,
    "TableView": pulsar.TableView,
    "Message": pulsar.Message,
    "MessageId": pulsar.MessageId,
    "EncryptionContext": pulsar.EncryptionContext,
    "asyncio.Client": pulsar.asyncio.Client,
    "asyncio.Producer": pulsar.asyncio.Producer,
    "asyncio.Consumer": pulsar.asyncio.Consumer,
    "asyncio.Reader": pulsar.asyncio.Reader,
}
"""Classes whose methods are listed one by one."""
ENUMS = (
    "BatchingType",
    "CompressionType",
    "ConsumerCryptoFailureAction",
    "ConsumerType",
    "InitialPosition",
    "KeySharedMode",
    "PartitionsRoutingMode",
    "ProducerAccessMode",
    "RegexSubscriptionMode",
)
"""Enumerations whose members are listed one by one."""


def public_names() -> set[str]:
    """Return names as ``names.yaml`` writes them: ``call(argument)``, ``Class.method``, ``Enum.member``,
    ``Class``."""
    names = {f"{call}({name})" for call, made in CALLS.items() for name in inspect.signature(made).parameters}
    names = {name for name in names if not name.endswith("(self)")}
    for of, kind in CLASSES.items():
        names |= {f"{of}.{name}" for name in dir(kind) if not name.startswith("_")}
    for of in ENUMS:
        names |= {f"{of}.{name}" for name in getattr(pulsar, of).__members__}
    for name, value in vars(pulsar).items():
        own = inspect.isclass(value) and value.__module__.partition(".")[0] in ("pulsar", "_pulsar") and name[0] != "_"
        if own and not issubclass(value, Exception) and name not in {*CLASSES, *CALLS, *ENUMS}:
            names.add(name)
    schemas = (name for name, value in vars(pulsar.schema).items() if inspect.isclass(value) and name[0] != "_")
    return names | {f"schema.{name}" for name in schemas}
