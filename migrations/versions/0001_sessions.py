"""Sessions, entries, blobs and attachments.

Revision: 0001
"""

import sqlalchemy as sa
from alembic import op

from turnkeep.errors import SchemaError

revision: str = "0001"
down_revision: str | None = None
branch_labels: str | None = None
depends_on: str | None = None

STORE_AS_IT_IS = "ALTER TABLE %(fullname)s ALTER COLUMN data SET STORAGE EXTERNAL"
COMPRESS_BY_LZ4 = "ALTER TABLE %(fullname)s ALTER COLUMN payload SET COMPRESSION lz4"
HAS_LZ4 = "SELECT 'lz4' = ANY (enumvals) FROM pg_settings WHERE name = 'default_toast_compression'"

# Names stand in op.f(), or a host's naming convention would be put on top of them.
KEY = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
UTC = sa.DateTime(timezone=True).with_variant(sa.Text(), "sqlite")


def upgrade() -> None:
    """Make the four tables."""
    op.create_table(
        "turnkeep_sessions",
        sa.Column("namespace", KEY, nullable=False),
        sa.Column("id", KEY, nullable=False),
        sa.Column("schema_version", sa.Integer(), nullable=False),
        sa.Column("cwd", sa.Text(), nullable=False),
        sa.Column("cwd_digest", sa.LargeBinary(32), nullable=False),
        sa.Column("created_at", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("riffer_rig_version", sa.Text(), nullable=False),
        sa.Column("riffer_version", sa.Text(), nullable=False),
        sa.Column("title", sa.Text(), nullable=False),
        sa.Column("updated_at", UTC, nullable=False),
        sa.Column("last_position", sa.BigInteger(), nullable=False),
        sa.Column("last_recorded_at", KEY, nullable=False),
        sa.PrimaryKeyConstraint("namespace", "id", name=op.f("turnkeep_sessions_pkey")),
    )
    op.create_index(
        "turnkeep_sessions_updated", "turnkeep_sessions", ["namespace", "updated_at", "id"]
    )
    op.create_index(
        "turnkeep_sessions_cwd",
        "turnkeep_sessions",
        ["namespace", "cwd_digest", "updated_at", "id"],
    )
    entries = op.create_table(
        "turnkeep_entries",
        sa.Column("namespace", KEY, nullable=False),
        sa.Column("session_id", KEY, nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("type", sa.Text(), nullable=False),
        sa.Column("idempotency_key", KEY, nullable=True),
        sa.Column("recorded_at", KEY, nullable=True),
        sa.Column("attachments", sa.Integer(), nullable=False),
        sa.Column("payload", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint(
            "namespace", "session_id", "position", name=op.f("turnkeep_entries_pkey")
        ),
        sa.ForeignKeyConstraint(
            ["namespace", "session_id"],
            ["turnkeep_sessions.namespace", "turnkeep_sessions.id"],
            name=op.f("turnkeep_entries_session_fkey"),
            ondelete="CASCADE",
        ),
    )
    op.create_index(
        "turnkeep_entries_key",
        "turnkeep_entries",
        ["namespace", "session_id", "idempotency_key"],
        unique=True,
        sqlite_where=sa.text("idempotency_key IS NOT NULL"),
        postgresql_where=sa.text("idempotency_key IS NOT NULL"),
    )
    blobs = op.create_table(
        "turnkeep_blobs",
        sa.Column("namespace", KEY, nullable=False),
        sa.Column("digest", sa.LargeBinary(32), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("namespace", "digest", name=op.f("turnkeep_blobs_pkey")),
    )
    op.create_table(
        "turnkeep_attachments",
        sa.Column("namespace", KEY, nullable=False),
        sa.Column("session_id", KEY, nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("ordinal", sa.Integer(), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("digest", sa.LargeBinary(32), nullable=False),
        sa.Column("mime", sa.Text(), nullable=True),
        sa.Column("filename", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint(
            "namespace", "session_id", "position", "ordinal", name=op.f("turnkeep_attachments_pkey")
        ),
        sa.ForeignKeyConstraint(
            ["namespace", "session_id", "position"],
            [
                "turnkeep_entries.namespace",
                "turnkeep_entries.session_id",
                "turnkeep_entries.position",
            ],
            name=op.f("turnkeep_attachments_entry_fkey"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["namespace", "digest"],
            ["turnkeep_blobs.namespace", "turnkeep_blobs.digest"],
            name=op.f("turnkeep_attachments_blob_fkey"),
        ),
    )
    op.create_index("turnkeep_attachments_digest", "turnkeep_attachments", ["namespace", "digest"])
    if op.get_context().dialect.name == "postgresql":
        # Pictures don't compress. Payloads do, but Postgres' own pglz takes 18 ms for 1 MB, and lz4
        # a sixth of that.
        execute(STORE_AS_IT_IS, blobs)
        if op.get_context().as_sql:
            execute(f"DO $$ BEGIN IF ({HAS_LZ4}) THEN {COMPRESS_BY_LZ4}; END IF; END $$", entries)
        elif op.get_bind().scalar(sa.text(HAS_LZ4)):
            execute(COMPRESS_BY_LZ4, entries)


def downgrade() -> None:
    """Drop the four tables, unless that would lose somebody's sessions."""
    if op.get_context().as_sql:
        raise SchemaError("a downgrade can't be printed as SQL: it looks first what would be lost")
    # A Table, not a table(): only that is looked for in the schema that the connection names.
    sessions = sa.Table("turnkeep_sessions", sa.MetaData(), sa.Column("id", KEY))
    if op.get_bind().execute(sa.select(sessions.c.id).limit(1)).first():
        raise SchemaError("turnkeep_sessions holds sessions: delete them before this downgrade")
    for table in ("attachments", "blobs", "entries", "sessions"):
        op.drop_table(f"turnkeep_{table}")


def execute(statement: str, table: sa.Table) -> None:
    """Run *statement* on *table*, whatever schema that lies in."""
    op.execute(sa.DDL(statement).against(table))  # type: ignore[no-untyped-call]
