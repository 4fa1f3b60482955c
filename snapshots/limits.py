"""Limits of names and texts, for the engine that takes them and for the columns that hold them.

A test writes each column at its limit, so that the database takes every name that the engine takes.
"""

from __future__ import annotations

from typing import Final

CLUSTER_CHARS_MAX: Final = 64
LINK_NAME_CHARS_MAX: Final = 64
LINK_CHARS_MAX: Final = 200
"""Limit of a link's key ``SOURCE>DESTINATION#NAME``: two names of clusters, and one of a link."""
TOPIC_NAME_BYTES_MAX: Final = 400
"""Limit of a topic's name. It is a key of the store, whose keys have at most 511 bytes."""
SUBSCRIPTION_NAME_BYTES_MAX: Final = 400
"""Limit of a subscription's name. It is a part of a key of the store."""
ROLE_CHARS_MAX: Final = 1_000
SNAPSHOT_ID_CHARS_MAX: Final = 128
DETAIL_CHARS_MAX: Final = 1_000
WORD_CHARS_MAX: Final = 64
SUBJECT_CHARS_MAX: Final = 2_000
"""Limit of the subject of an audit entry: an ``/admin/v2`` path with the longest names has about 900 characters."""
