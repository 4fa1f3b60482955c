"""One table of limits of names and texts, for the engine that takes them and for the columns that hold them.

A test writes each column at its limit, so a name that the engine takes is one that the database takes.
"""

from __future__ import annotations

from typing import Final

CLUSTER_CHARS_MAX: Final = 64
LINK_NAME_CHARS_MAX: Final = 64
LINK_CHARS_MAX: Final = 200
"""``SOURCE>DESTINATION#NAME``: two names of clusters, and one of a link."""
TOPIC_NAME_BYTES_MAX: Final = 400
"""A topic's name is a key of the store, where keys end at 511 bytes."""
SUBSCRIPTION_NAME_BYTES_MAX: Final = 400
"""A subscription's name is a part of such a key."""
ROLE_CHARS_MAX: Final = 1_000
SNAPSHOT_ID_CHARS_MAX: Final = 128
DETAIL_CHARS_MAX: Final = 1_000
WORD_CHARS_MAX: Final = 64
SUBJECT_CHARS_MAX: Final = 2_000
"""Subject of an audit entry: a path of ``/admin/v2`` with the longest topic and subscription has about 900."""
