"""The four tables, as SQLAlchemy Core describes them; `migrations/` makes them, and a test holds
the two to each other.

Every key starts with the namespace, so that no tenant's row can meet another's and a distributed
Postgres can be sharded by it. A session's row carries the counter that gives out positions, and
repeats its header's fields for `get` and `list`; the header itself is entry 0, so that one
statement reads a session. A payload is text that we serialise ourselves: JSON and JSONB reorder
keys, refuse NUL, and change numbers. Attachment bytes lie once per namespace under their sha256.

All names have a prefix: a host's own `sessions` is never met. The schema, where one is wanted, is
put in by a translate map on our connections.
"""

from datetime import UTC, datetime

from sqlalchemy import (
    BigInteger,
    Column,
    DateTime,
    Dialect,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
    text,
)
from sqlalchemy.types import TypeDecorator, TypeEngine

PREFIX = "turnkeep_"
VERSION_TABLE = "turnkeep_version"


class Utc(TypeDecorator[datetime]):
    """An aware datetime in UTC to the microsecond: timestamptz on Postgres, text of one width on
    SQLite.
    """

    impl = DateTime(timezone=True)
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[object]:
        """What the column is made of."""
        return dialect.type_descriptor(Text() if dialect.name == "sqlite" else self.impl_instance)

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> object:
        """The instant as the database takes it."""
        if value is None or dialect.name != "sqlite":
            return value
        return utc_text(value)

    def process_result_value(self, value: object, dialect: Dialect) -> datetime | None:  # noqa: ARG002
        """The instant that the database gave, in UTC whatever zone its session is set to; None
        where that is none.
        """
        try:
            instant = datetime.fromisoformat(value) if isinstance(value, str) else value
            return instant.astimezone(UTC) if isinstance(instant, datetime) else None
        except (ValueError, OverflowError):
            return None


def utc_text(instant: datetime) -> str:
    """An aware *instant* as SQLite holds it: texts of one width sort as the times do."""
    return instant.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


# Compared by bytes on both databases: a collation could hold different ids for equal, and orders
# them by the server's mood.
Key = Text().with_variant(Text(collation="C"), "postgresql")

metadata = MetaData()

sessions = Table(
    "turnkeep_sessions",
    metadata,
    Column("namespace", Key, nullable=False),
    Column("id", Key, nullable=False),
    Column("schema_version", Integer, nullable=False),
    Column("cwd", Text, nullable=False),
    Column("cwd_digest", LargeBinary(32), nullable=False),  # an index can't hold an unbounded cwd
    Column("created_at", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("riffer_rig_version", Text, nullable=False),
    Column("riffer_version", Text, nullable=False),
    Column("title", Text, nullable=False),
    Column("updated_at", Utc, nullable=False),
    Column("last_position", BigInteger, nullable=False),
    Column("last_recorded_at", Key, nullable=False),  # "" before the first: it compares below all
    PrimaryKeyConstraint("namespace", "id", name="turnkeep_sessions_pkey"),
    Index("turnkeep_sessions_updated", "namespace", "updated_at", "id"),
    Index("turnkeep_sessions_cwd", "namespace", "cwd_digest", "updated_at", "id"),
)

entries = Table(
    "turnkeep_entries",
    metadata,
    Column("namespace", Key, nullable=False),
    Column("session_id", Key, nullable=False),
    Column("position", BigInteger, nullable=False),
    Column("type", Text, nullable=False),
    Column("idempotency_key", Key, nullable=True),
    Column("recorded_at", Key, nullable=True),
    Column("attachments", Integer, nullable=False),  # how many were lifted out of the payload
    Column("payload", Text, nullable=False),
    PrimaryKeyConstraint("namespace", "session_id", "position", name="turnkeep_entries_pkey"),
    ForeignKeyConstraint(
        ["namespace", "session_id"],
        ["turnkeep_sessions.namespace", "turnkeep_sessions.id"],
        name="turnkeep_entries_session_fkey",
        ondelete="CASCADE",
    ),
    Index(
        "turnkeep_entries_key",
        "namespace",
        "session_id",
        "idempotency_key",
        unique=True,
        sqlite_where=text("idempotency_key IS NOT NULL"),
        postgresql_where=text("idempotency_key IS NOT NULL"),
    ),
)

blobs = Table(
    "turnkeep_blobs",
    metadata,
    Column("namespace", Key, nullable=False),
    Column("digest", LargeBinary(32), nullable=False),
    Column("size", BigInteger, nullable=False),
    Column("data", LargeBinary, nullable=False),
    PrimaryKeyConstraint("namespace", "digest", name="turnkeep_blobs_pkey"),
)

attachments = Table(
    "turnkeep_attachments",
    metadata,
    Column("namespace", Key, nullable=False),
    Column("session_id", Key, nullable=False),
    Column("position", BigInteger, nullable=False),
    Column("ordinal", Integer, nullable=False),
    Column(
        "path", Text, nullable=False
    ),  # a JSON array, ASCII only, of the keys and indexes that lead there
    Column("digest", LargeBinary(32), nullable=False),
    Column("mime", Text, nullable=True),
    Column("filename", Text, nullable=True),
    PrimaryKeyConstraint(
        "namespace", "session_id", "position", "ordinal", name="turnkeep_attachments_pkey"
    ),
    ForeignKeyConstraint(
        ["namespace", "session_id", "position"],
        [
            "turnkeep_entries.namespace",
            "turnkeep_entries.session_id",
            "turnkeep_entries.position",
        ],
        name="turnkeep_attachments_entry_fkey",
        ondelete="CASCADE",
    ),
    ForeignKeyConstraint(
        ["namespace", "digest"],
        ["turnkeep_blobs.namespace", "turnkeep_blobs.digest"],
        name="turnkeep_attachments_blob_fkey",
    ),
    Index("turnkeep_attachments_digest", "namespace", "digest"),
)

TABLES = (sessions, entries, attachments, blobs)
