"""The protobuf messages of an entry's metadata, in Pulsar's field numbers: below the engine and the protocol."""
