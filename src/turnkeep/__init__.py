"""Agent conversations in SQL: every turn, tool call and attachment, in the database that the app
already runs.
"""

from turnkeep.async_store import AsyncSQLStore
from turnkeep.calls import AttachmentInfo, Page
from turnkeep.engine import default_url
from turnkeep.entries import (
    Entry,
    Header,
    MessageEntry,
    ModelEntry,
    ReasoningEntry,
    SkillEntry,
    UnknownEntry,
)
from turnkeep.errors import (
    Conflict,
    Corrupt,
    HistoryError,
    InvalidArgument,
    InvalidEntry,
    NotErased,
    SchemaError,
    SessionExists,
    TurnkeepError,
    Unavailable,
    UnknownSession,
)
from turnkeep.history import Attachment, History, Message, Thinking, Tokens, ToolCall
from turnkeep.jsonl import JSONLStore
from turnkeep.limits import Limits
from turnkeep.loader import AsyncLoader, Loader
from turnkeep.protocols import AsyncStore, Store
from turnkeep.retention import Pruned
from turnkeep.session import AsyncSession, Session
from turnkeep.snapshot import Snapshot
from turnkeep.stats import DirectoryUsage, Stats, Usage
from turnkeep.store import SQLStore
from turnkeep.tracing import Step, Turn, trace
from turnkeep.transcript import export_history, import_history
from turnkeep.verification import Finding, Orphans

__all__ = [
    "AsyncLoader",
    "AsyncSQLStore",
    "AsyncSession",
    "AsyncStore",
    "Attachment",
    "AttachmentInfo",
    "Conflict",
    "Corrupt",
    "DirectoryUsage",
    "Entry",
    "Finding",
    "Header",
    "History",
    "HistoryError",
    "InvalidArgument",
    "InvalidEntry",
    "JSONLStore",
    "Limits",
    "Loader",
    "Message",
    "MessageEntry",
    "ModelEntry",
    "NotErased",
    "Orphans",
    "Page",
    "Pruned",
    "ReasoningEntry",
    "SQLStore",
    "SchemaError",
    "Session",
    "SessionExists",
    "SkillEntry",
    "Snapshot",
    "Stats",
    "Step",
    "Store",
    "Thinking",
    "Tokens",
    "ToolCall",
    "Turn",
    "TurnkeepError",
    "Unavailable",
    "UnknownEntry",
    "UnknownSession",
    "Usage",
    "default_url",
    "export_history",
    "import_history",
    "trace",
]
