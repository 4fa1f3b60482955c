from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class MarkersMessageIdData(_message.Message):
    __slots__ = ("ledger_id", "entry_id")
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    ENTRY_ID_FIELD_NUMBER: _ClassVar[int]
    ledger_id: int
    entry_id: int
    def __init__(self, ledger_id: _Optional[int] = ..., entry_id: _Optional[int] = ...) -> None: ...

class ClusterMessageId(_message.Message):
    __slots__ = ("cluster", "message_id")
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    message_id: MarkersMessageIdData
    def __init__(self, cluster: _Optional[str] = ..., message_id: _Optional[_Union[MarkersMessageIdData, _Mapping]] = ...) -> None: ...

class ReplicatedSubscriptionsSnapshotRequest(_message.Message):
    __slots__ = ("snapshot_id", "source_cluster", "position", "vector")
    SNAPSHOT_ID_FIELD_NUMBER: _ClassVar[int]
    SOURCE_CLUSTER_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    VECTOR_FIELD_NUMBER: _ClassVar[int]
    snapshot_id: str
    source_cluster: str
    position: MarkersMessageIdData
    vector: _containers.RepeatedCompositeFieldContainer[ClusterMessageId]
    def __init__(self, snapshot_id: _Optional[str] = ..., source_cluster: _Optional[str] = ..., position: _Optional[_Union[MarkersMessageIdData, _Mapping]] = ..., vector: _Optional[_Iterable[_Union[ClusterMessageId, _Mapping]]] = ...) -> None: ...

class ReplicatedSubscriptionsSnapshotResponse(_message.Message):
    __slots__ = ("snapshot_id", "cluster", "vector", "requested_by")
    SNAPSHOT_ID_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    VECTOR_FIELD_NUMBER: _ClassVar[int]
    REQUESTED_BY_FIELD_NUMBER: _ClassVar[int]
    snapshot_id: str
    cluster: ClusterMessageId
    vector: _containers.RepeatedCompositeFieldContainer[ClusterMessageId]
    requested_by: str
    def __init__(self, snapshot_id: _Optional[str] = ..., cluster: _Optional[_Union[ClusterMessageId, _Mapping]] = ..., vector: _Optional[_Iterable[_Union[ClusterMessageId, _Mapping]]] = ..., requested_by: _Optional[str] = ...) -> None: ...

class ReplicatedSubscriptionsSnapshot(_message.Message):
    __slots__ = ("snapshot_id", "local_message_id", "clusters", "covers")
    SNAPSHOT_ID_FIELD_NUMBER: _ClassVar[int]
    LOCAL_MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    CLUSTERS_FIELD_NUMBER: _ClassVar[int]
    COVERS_FIELD_NUMBER: _ClassVar[int]
    snapshot_id: str
    local_message_id: MarkersMessageIdData
    clusters: _containers.RepeatedCompositeFieldContainer[ClusterMessageId]
    covers: bool
    def __init__(self, snapshot_id: _Optional[str] = ..., local_message_id: _Optional[_Union[MarkersMessageIdData, _Mapping]] = ..., clusters: _Optional[_Iterable[_Union[ClusterMessageId, _Mapping]]] = ..., covers: _Optional[bool] = ...) -> None: ...

class PositionRange(_message.Message):
    __slots__ = ("after", "upto")
    AFTER_FIELD_NUMBER: _ClassVar[int]
    UPTO_FIELD_NUMBER: _ClassVar[int]
    after: MarkersMessageIdData
    upto: MarkersMessageIdData
    def __init__(self, after: _Optional[_Union[MarkersMessageIdData, _Mapping]] = ..., upto: _Optional[_Union[MarkersMessageIdData, _Mapping]] = ...) -> None: ...

class LedgerAcks(_message.Message):
    __slots__ = ("ledger_id", "entries")
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    ledger_id: int
    entries: bytes
    def __init__(self, ledger_id: _Optional[int] = ..., entries: _Optional[bytes] = ...) -> None: ...

class PartAcks(_message.Message):
    __slots__ = ("message_id", "indexes")
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    INDEXES_FIELD_NUMBER: _ClassVar[int]
    message_id: MarkersMessageIdData
    indexes: bytes
    def __init__(self, message_id: _Optional[_Union[MarkersMessageIdData, _Mapping]] = ..., indexes: _Optional[bytes] = ...) -> None: ...

class OriginAcks(_message.Message):
    __slots__ = ("origin", "incarnation", "ranges", "ledgers", "parts")
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    RANGES_FIELD_NUMBER: _ClassVar[int]
    LEDGERS_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    origin: str
    incarnation: int
    ranges: _containers.RepeatedCompositeFieldContainer[PositionRange]
    ledgers: _containers.RepeatedCompositeFieldContainer[LedgerAcks]
    parts: _containers.RepeatedCompositeFieldContainer[PartAcks]
    def __init__(self, origin: _Optional[str] = ..., incarnation: _Optional[int] = ..., ranges: _Optional[_Iterable[_Union[PositionRange, _Mapping]]] = ..., ledgers: _Optional[_Iterable[_Union[LedgerAcks, _Mapping]]] = ..., parts: _Optional[_Iterable[_Union[PartAcks, _Mapping]]] = ...) -> None: ...

class SubscriptionStart(_message.Message):
    __slots__ = ("origin", "incarnation", "message_id")
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    origin: str
    incarnation: int
    message_id: MarkersMessageIdData
    def __init__(self, origin: _Optional[str] = ..., incarnation: _Optional[int] = ..., message_id: _Optional[_Union[MarkersMessageIdData, _Mapping]] = ...) -> None: ...

class SubscriptionProperty(_message.Message):
    __slots__ = ("key", "value")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    key: str
    value: str
    def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...

class SubscriptionAnswer(_message.Message):
    __slots__ = ("cluster", "ask_id")
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    ASK_ID_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    ask_id: str
    def __init__(self, cluster: _Optional[str] = ..., ask_id: _Optional[str] = ...) -> None: ...

class ReplicatedSubscriptionsUpdate(_message.Message):
    __slots__ = ("subscription_name", "clusters", "generation", "more", "acks", "whole", "deleted", "asks", "properties", "read_compacted", "starts", "unless_in_use", "ask_id", "answers")
    SUBSCRIPTION_NAME_FIELD_NUMBER: _ClassVar[int]
    CLUSTERS_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    ACKS_FIELD_NUMBER: _ClassVar[int]
    WHOLE_FIELD_NUMBER: _ClassVar[int]
    DELETED_FIELD_NUMBER: _ClassVar[int]
    ASKS_FIELD_NUMBER: _ClassVar[int]
    PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    READ_COMPACTED_FIELD_NUMBER: _ClassVar[int]
    STARTS_FIELD_NUMBER: _ClassVar[int]
    UNLESS_IN_USE_FIELD_NUMBER: _ClassVar[int]
    ASK_ID_FIELD_NUMBER: _ClassVar[int]
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    subscription_name: str
    clusters: _containers.RepeatedCompositeFieldContainer[ClusterMessageId]
    generation: int
    more: _containers.RepeatedCompositeFieldContainer[ReplicatedSubscriptionsUpdate]
    acks: _containers.RepeatedCompositeFieldContainer[OriginAcks]
    whole: bool
    deleted: bool
    asks: bool
    properties: _containers.RepeatedCompositeFieldContainer[SubscriptionProperty]
    read_compacted: bool
    starts: _containers.RepeatedCompositeFieldContainer[SubscriptionStart]
    unless_in_use: bool
    ask_id: str
    answers: _containers.RepeatedCompositeFieldContainer[SubscriptionAnswer]
    def __init__(self, subscription_name: _Optional[str] = ..., clusters: _Optional[_Iterable[_Union[ClusterMessageId, _Mapping]]] = ..., generation: _Optional[int] = ..., more: _Optional[_Iterable[_Union[ReplicatedSubscriptionsUpdate, _Mapping]]] = ..., acks: _Optional[_Iterable[_Union[OriginAcks, _Mapping]]] = ..., whole: _Optional[bool] = ..., deleted: _Optional[bool] = ..., asks: _Optional[bool] = ..., properties: _Optional[_Iterable[_Union[SubscriptionProperty, _Mapping]]] = ..., read_compacted: _Optional[bool] = ..., starts: _Optional[_Iterable[_Union[SubscriptionStart, _Mapping]]] = ..., unless_in_use: _Optional[bool] = ..., ask_id: _Optional[str] = ..., answers: _Optional[_Iterable[_Union[SubscriptionAnswer, _Mapping]]] = ...) -> None: ...

class FailoverAssignment(_message.Message):
    __slots__ = ("home", "serving")
    HOME_FIELD_NUMBER: _ClassVar[int]
    SERVING_FIELD_NUMBER: _ClassVar[int]
    home: str
    serving: str
    def __init__(self, home: _Optional[str] = ..., serving: _Optional[str] = ...) -> None: ...

class FailoverEpoch(_message.Message):
    __slots__ = ("epoch", "writer", "record_id", "at_ms", "kind", "source", "target", "serving", "consumers_kept")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    WRITER_FIELD_NUMBER: _ClassVar[int]
    RECORD_ID_FIELD_NUMBER: _ClassVar[int]
    AT_MS_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    SERVING_FIELD_NUMBER: _ClassVar[int]
    CONSUMERS_KEPT_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    writer: str
    record_id: str
    at_ms: int
    kind: str
    source: str
    target: str
    serving: _containers.RepeatedCompositeFieldContainer[FailoverAssignment]
    consumers_kept: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, epoch: _Optional[int] = ..., writer: _Optional[str] = ..., record_id: _Optional[str] = ..., at_ms: _Optional[int] = ..., kind: _Optional[str] = ..., source: _Optional[str] = ..., target: _Optional[str] = ..., serving: _Optional[_Iterable[_Union[FailoverAssignment, _Mapping]]] = ..., consumers_kept: _Optional[_Iterable[str]] = ...) -> None: ...
