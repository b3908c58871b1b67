"""The store over SQL, as an app sees it. What its methods do is in `calls`; how it reaches the
database, in `database`.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from datetime import datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Self, TypeAlias

from sqlalchemy import URL, Connection, Engine

from turnkeep import calls, retention, verification
from turnkeep.calls import AttachmentInfo, Call, Page, Scope
from turnkeep.database import Database, Joined, Runner
from turnkeep.engine import check_timeout, open_engine
from turnkeep.entries import Entry, Header
from turnkeep.folder import Dir
from turnkeep.folder_calls import Progress, export_folder, import_folder
from turnkeep.history import History
from turnkeep.limits import Limits
from turnkeep.plans import drive
from turnkeep.protocols import Entries, Headers
from turnkeep.retention import Pruned, PruneProgress
from turnkeep.stats import Stats, stats
from turnkeep.verification import Finding, Orphans, Verified

Attachments: TypeAlias = list[AttachmentInfo]
Lossy: TypeAlias = list[str]
Names: TypeAlias = list[str]


class SQLStore:
    """Sessions in SQLite or Postgres.

    A URL makes an engine that the store owns, sets up and closes; an engine that is handed in is
    borrowed: it is never closed and its settings stay as they are. A SQLite database that the store
    opened by URL is created and upgraded at first use; another is checked at first use, and is
    upgraded by `upgrade()` or the command line.

    One store serves many sessions and threads. Sessions of different namespaces never meet: not in
    a listing, not by an equal id, not by an equal attachment.

    ```python
    with SQLStore("sqlite:///chats.db") as store:
        store.append("s1", Header(id="s1", cwd="/w", created_at="2026-11-30T12:00:00Z", model="m"))
        store.append("s1", MessageEntry({"role": "user", "content": "Hello"}))
        header, hello = store.read("s1")
    ```

    Args:
        url_or_engine: a SQLAlchemy URL, or its text, or an Engine. `postgres://` and
            `postgresql://` mean psycopg 3.
        namespace: the tenant, user or project that all sessions of this store belong to; may be
            empty.
        schema: the Postgres schema of the tables; None is the connection's own. SQLite has none.
        migrate: whether the first use upgrades the database; None is the rule above.
        timeout: seconds to wait for a connection, and for a lock on SQLite.
        limits: how large what is written may be.

    Raises:
        InvalidArgument: one of these can't be used; a URL's driver is not installed.

    All methods raise, beyond what they say:
        SchemaError: the tables are not those of this version.
        Unavailable: the database can't be reached, refuses to serve, or is locked past the timeout.
        Corrupt: a stored row is not what was written; names session, position and path.
    """

    def __init__(
        self,
        url_or_engine: str | URL | Engine,
        *,
        namespace: str = "",
        schema: str | None = None,
        migrate: bool | None = None,
        timeout: float = 30.0,
        limits: Limits = Limits(),  # noqa: B008 (frozen)
    ) -> None:
        check_timeout(timeout)
        scope = Scope(namespace, limits)
        is_owned = not isinstance(url_or_engine, Engine)
        self._database = Database(
            url_or_engine
            if isinstance(url_or_engine, Engine)
            else open_engine(url_or_engine, timeout=timeout),
            is_owned=is_owned,
            schema=schema,
            migrate=migrate,
            timeout=timeout,
        )
        self._scope = scope
        self._runner: Runner = self._database

    def append(
        self,
        id: str,
        entry: Entry,
        *,
        idempotency_key: str | None = None,
        expected_position: int | None = None,
    ) -> int:
        """Append *entry* to session *id*, and give its position: 0 for the Header, then 1, 2, 3 …
        without gaps.

        A Header begins the session; one that equals the stored one changes nothing and gives 0.
        Positions are given out in the order of the commits, so what a reader has seen never
        changes. When this returns, the entry is stored and will survive a crash; when it raises,
        nothing was written, except that after `Unavailable` the outcome may be unknown. Attachments
        that a message carries as base64 are kept apart, once, and are part of the same transaction.
        An entry's `recorded_at` that lies before the session's last one is raised to that.

        Args:
            id: 1 to 255 bytes of UTF-8 without NUL.
            entry: what to append.
            idempotency_key: makes the call repeatable: a key that the session has under an equal
                entry (`recorded_at` aside) is a success, which gives that entry's position;
                *expected_position* is not looked at then.
            expected_position: the position that the caller believes to be the session's last.

        Raises:
            InvalidArgument: an id, key or position that none can be.
            InvalidEntry: *entry* is none, is too large, or is a Header for another session.
            UnknownSession: there is no session *id*, and *entry* is no Header.
            SessionExists: the session has another Header.
            Conflict: the last position is another, or the key names another entry.
        """
        return self._runner.run(
            calls.append(self._scope, id, entry, idempotency_key, expected_position)
        )

    def extend(
        self,
        id: str,
        entries: Iterable[Entry],
        *,
        idempotency_keys: Sequence[str | None] | None = None,
        expected_position: int | None = None,
    ) -> int:
        """Append *entries* to session *id* in one transaction, all or none, and give the position
        of the last.

        They stand in a row: no other writer's entry comes between. The first may be a Header, as in
        `append`. No entries write nothing, and give the session's last position.

        Args:
            id: as in `append`.
            entries: what to append, in order.
            idempotency_keys: one for each entry, or None for it. All known, with equal entries in a
                row, is a success that writes nothing; none known writes; a mix is a Conflict.
            expected_position: as in `append`.

        Raises:
            InvalidArgument, InvalidEntry, UnknownSession, SessionExists, Conflict: as `append`; a
                Header that isn't first is an InvalidEntry.
        """
        return self._runner.run(
            calls.extend(self._scope, id, entries, idempotency_keys, expected_position)
        )

    def read(self, id: str, *, attachments: bool = True) -> Entries:
        """All entries of session *id*, the Header first, as they were appended; none where there is
        no such session.

        Args:
            id: the session.
            attachments: False leaves the digest, in hex, in the place of an attachment's bytes, and
                fetches none.
        """
        return self._runner.run(calls.read(self._scope, id, attachments=attachments))

    def page(
        self,
        id: str,
        *,
        after: int | None = None,
        before: int | None = None,
        limit: int = 500,
        attachments: bool = True,
    ) -> Page:
        """A part of session *id*: the first entries behind position *after*, or the last in front
        of *before*.

        Without both it is the session's beginning. A page costs the same wherever it lies.

        Args:
            id: the session.
            after: a position; the page goes on behind it.
            before: a position; the page ends in front of it.
            limit: how many entries at the most, at least 1.
            attachments: as in `read`.

        Raises:
            InvalidArgument: a negative position, a limit below 1, or both *after* and *before*.
        """
        return self._runner.run(
            calls.page(self._scope, id, after, before, limit, attachments=attachments)
        )

    def tail(self, id: str, count: int, *, attachments: bool = True) -> Entries:
        """The newest *count* entries of session *id*, oldest first, never the Header.

        Raises:
            InvalidArgument: *count* is negative.
        """
        return self._runner.run(calls.tail(self._scope, id, count, attachments=attachments))

    def get(self, id: str) -> Header | None:
        """The Header of session *id*, with `updated` and `last_position`; None where there is no
        such session.
        """
        return self._runner.run(calls.get(self._scope, id))

    def list(
        self, cwd: str | None = None, *, limit: int | None = None, before: Header | None = None
    ) -> Headers:
        """The Headers of the sessions, most recently changed first (of equal times the highest id
        by bytes).

        Each has `updated` and `last_position`. Reads no entry, and costs the same for the first
        page of a million.

        Args:
            cwd: only the sessions of exactly this directory, the empty one too; None is all.
            limit: how many at the most; None is no limit.
            before: go on behind this Header, the last one that was seen.

        Raises:
            InvalidArgument: a negative limit, or a *before* that has no `updated`.
        """
        return self._runner.run(calls.list_sessions(self._scope, cwd, limit, before))

    def delete(self, id: str) -> bool:
        """Delete session *id* with its entries, and every attachment that no other session has;
        whether there was one.

        One transaction. The id can be used again, and begins at position 0.
        """
        return self._runner.run(calls.delete(self._scope, id))

    def attachments(self, id: str) -> Attachments:
        """The attachments of session *id* in the order of their places, without the bytes."""
        return self._runner.run(calls.list_attachments(self._scope, id))

    def export_history(self, id: str, *, lossy: Lossy | None = None) -> History:
        """Session *id* as a History, of one state of the session.

        `turnkeep.export_history` does the same for any store, and says what *lossy* takes.

        Raises:
            UnknownSession: there is no such session.
            HistoryError: something has no place in a History, and *lossy* is None; names the entry.
        """
        return self._runner.run(calls.export_history(self._scope, id, lossy))

    def import_history(
        self,
        history: History,
        *,
        cwd: str,
        id: str | None = None,
        model: str | None = None,
        title: str | None = None,
        created_at: str | None = None,
        recorded_at: str | None = None,
        replace: bool = False,
    ) -> str:
        """Make a session of *history* in one transaction, and give its id.

        `turnkeep.import_history` does the same for any store, and says what the arguments mean.

        Raises:
            SessionExists: there is a session of this id, and *replace* is not set.
            InvalidEntry: an argument can't stand in a header, or a message is too large.
        """
        call = calls.import_history(
            self._scope,
            history,
            cwd=cwd,
            id=id,
            model=model,
            title=title,
            created_at=created_at,
            recorded_at=recorded_at,
            replace=replace,
        )
        return self._runner.run(call)

    def export_folder(
        self, id: str, dir: Dir, *, lossy: Lossy | None = None, progress: Progress | None = None
    ) -> Path:
        """Write session *id* to the folder *dir*, as `export_history(id).save(dir)` does, but in
        bounded memory: some megabytes are held at a time, or the largest message, and all ids.

        It is the session as it was at the beginning; no transaction is open while files are
        written. `history.json` comes last, so until then the folder holds the history that was in
        it before, and after an error too.

        Args:
            id: the session.
            dir: as for `History.save`.
            lossy: as for `export_history`.
            progress: is called now and then with how many of the session's messages are done, and
                how many there are. What it raises ends the export.

        Returns:
            The folder, as an absolute path.

        Raises:
            UnknownSession: there is no such session.
            Conflict: it was deleted or replaced while it was exported.
            HistoryError: as for `export_history` and `History.save`.
            InvalidArgument: *progress* can't be called.
            OSError: something can't be written.
        """
        with closing(export_folder(self._scope, id, dir, lossy, progress)) as plan:
            return drive(plan, self._runner)

    def import_folder(
        self,
        dir: Dir,
        *,
        cwd: str,
        id: str | None = None,
        model: str | None = None,
        title: str | None = None,
        created_at: str | None = None,
        recorded_at: str | None = None,
        replace: bool = False,
        progress: Progress | None = None,
    ) -> str:
        """Make a session of the history in the folder *dir*, and give its id, as `import_history`
        of `History.load(dir)` does, but in bounded memory.

        The folder is read twice: first it is checked as a whole, then it is written in one
        transaction, so that nothing is left of one that is not valid. *progress* is called now and
        then with how many messages are done, and of how many: first as they are checked, with None
        for that, then as they are written, which begins anew where the database undid it. What it
        raises ends the import; it must not use the store itself, since others wait for the import
        to end: on SQLite all who write. The other arguments are those of `import_history`.

        Raises:
            HistoryError: as for `History.load`; or the folder changed meanwhile.
            SessionExists, InvalidEntry: as for `import_history`.
            InvalidArgument: *progress* can't be called.
        """
        call = import_folder(
            self._scope,
            dir,
            cwd=cwd,
            id=id,
            model=model,
            title=title,
            created_at=created_at,
            recorded_at=recorded_at,
            replace=replace,
            progress=progress,
        )
        return self._runner.run(call)

    def prune(
        self,
        *,
        older_than: datetime | timedelta | None = None,
        keep_last: int | None = None,
        cwd: str | None = None,
        dry_run: bool = False,
        progress: PruneProgress | None = None,
    ) -> Pruned:
        """Delete the sessions that are too old or too many, as `delete` does, and say what went.

        They go whole, those that changed longest ago first, in batches, each a short transaction of
        its own: of at most some thousand rows and some megabytes, or of one session that is larger.
        Between batches others have their turn. When it is killed or raises, what is gone stays
        gone; call it again.

        Which sessions go is settled at the beginning, and in which state. What is changed, begun or
        committed after that stays, whatever the clocks say: a session is judged again when it is
        locked, and one that another transaction is writing is passed over. For this eight bytes are
        kept in memory for each session that is to go. Inside `using(connection)` all of it is part
        of the app's transaction: at READ COMMITTED what others commit while the beginning is
        looked at counts as there before, and at REPEATABLE READ a session that changed since the
        transaction began makes it Unavailable.

        A session whose `updated` lies ahead of the database's clock, as one that was ahead leaves
        it, is among the last changed, and goes only when that time is past.

        Args:
            older_than: those that were last changed (`updated`) before this instant, or longer ago
                than this, by the clock that `updated` is set by: on Postgres the server's.
            keep_last: never one of this many that were changed last, of all or, where *cwd* is
                given, of that directory. With *older_than* a session goes when it is old and not
                among these.
            cwd: only the sessions of exactly this directory, as in `list`.
            dry_run: delete nothing, and say what would go if nobody else wrote.
            progress: is called after each batch, in no transaction, with what is gone so far. What
                it raises ends the call.

        Raises:
            InvalidArgument: neither *older_than* nor *keep_last* is given, a datetime without a
                time zone, a negative value, a *dry_run* that is no bool, or a *progress* that can't
                be called.
            Unavailable: row security hides some of the namespace's rows from the role, or keeps it
                from deleting them. Run it as the owner, the writer, or that tenant.
        """
        plan = retention.prune(
            self._scope,
            older_than=older_than,
            keep_last=keep_last,
            cwd=cwd,
            dry_run=dry_run,
            progress=progress,
        )
        return drive(plan, self._runner)

    def erase_namespace(self, *, progress: PruneProgress | None = None) -> Pruned:
        """Delete all that this store's namespace has, and make sure that nothing is left; say what
        went.

        Rows that belong to nothing go too, and damaged ones, whatever their keys are. It is done in
        batches as in `prune`, but no session is passed over: it waits for those that others are
        writing. At the end it looks into every table. Other namespaces are never touched, nor what
        they have of the same attachments.

        A store of this namespace can be used on, and begins anew. Whoever writes meanwhile may be
        faster: end the writers first, or call it again.

        Args:
            progress: as in `prune`.

        Raises:
            NotErased: at the end there were rows of the namespace, in the tables that it names;
                what was there at the beginning is gone.
            Unavailable: as for `prune`. Nothing is said to be gone that the role may not see.
        """
        return drive(retention.erase(self._scope, progress), self._runner)

    def stats(self) -> Stats:
        """How much the namespace holds, in all and by directory, in one state.

        Reads through all rows but no attachment: some seconds for a million entries. Inside
        `using(connection)` it is as much one state as the app's isolation level makes it.

        Raises:
            Unavailable: row security hides some of the namespace's rows from the role.
        """
        return self._runner.run(stats(self._scope))

    def with_namespace(self, namespace: str) -> "SQLStore":
        """A store of another namespace over the same engine, which closing either of them closes.

        Raises:
            InvalidArgument: *namespace* can't be one.
        """
        return self._like(Scope(namespace, self._scope.limits), self._runner)

    def using(self, connection: Connection) -> "SQLStore":
        """A store that works inside the app's own transaction on *connection*, and neither begins
        nor commits.

        The app's rows and ours are committed or rolled back together. Each write is a savepoint:
        when it raises, the app's transaction is as it was before and can go on. What the app's
        isolation level forbids comes as Unavailable; then the app runs its transaction again. The
        tables are checked but never migrated here.

        Raises:
            InvalidArgument: *connection* is no Connection to this kind of database, or is in
                AUTOCOMMIT.
        """
        return self._like(self._scope, Joined(self._database, connection))

    def namespaces(self) -> Names:
        """The namespaces of the whole database in the order of their bytes: all that have a row in
        any table.

        What other hands put there and no store can have as its namespace is left out; `turnkeep db
        verify` names it.

        Raises:
            Unavailable: row security hides some rows from the role, as from every tenant.
        """
        return self._runner.run(verification.namespaces())

    def verify(self, *, progress: Callable[[int], object] | None = None) -> Iterator[Finding]:
        """Look at every row of this namespace, and give what can't be what was written; nothing
        where all is sound.

        Positions without gaps, `last_position`, the times and their order, a header that says what
        its session's row says, a payload that decodes, each attachment with its entry, its place in
        it and its blob, the digest and the size of each blob, and blobs that nobody has. A row
        whose key was damaged is a finding too, and the others are looked at.

        It changes nothing, and may run beside writers: it reads a few megabytes at a time, or the
        largest attachment, each in a short transaction of one state, and gives findings as it comes
        to them. Inside `using(connection)` they are of one state as far as the app's isolation
        level makes it so: at READ COMMITTED a session that is begun anew meanwhile may be told of.

        Args:
            progress: is called now and then with how many rows were looked at.

        Raises:
            InvalidArgument: *progress* can't be called.
            Unavailable: row security hides some of the namespace's rows from the role.
        """
        calls.check_progress(progress, "a number")
        call: Call[Verified] | None = verification.verify(self._scope)
        seen = 0
        while call is not None:
            verified = self._runner.run(call)
            yield from verified.findings
            seen += verified.rows
            if progress is not None:
                progress(seen)
            call = verified.following

    def collect_orphans(self) -> Orphans:
        """Remove what `verify` finds that nobody can reach: attachments of no entry, and blobs of
        no attachment; how many, and what they took.

        The store itself leaves none. This runs beside writers, in several short transactions, and
        may be repeated. Entries whose session is missing are left: they can still be read.

        Raises:
            Unavailable: as for `prune`.
        """
        return drive(verification.collect_orphans(self._scope), self._runner)

    def upgrade(self, *, row_security: bool | None = None) -> None:
        """Bring the tables to the revision of this version, in one transaction; many processes may
        do so at once.

        The host's logging is left alone. On Postgres a missing schema is made.

        Args:
            row_security: on Postgres, whether a role is to see the namespace of its own name only,
                as `docs/rights.md` says; None leaves it as it is, which is off at first.

        Raises:
            InvalidArgument: *row_security* is asked of SQLite, which has no roles.
            SchemaError: the database is newer, or a migration is running in this process.
        """
        self._database.upgrade(row_security)

    def revision(self) -> str | None:
        """The revision that the tables are at; None where there are none."""
        return self._database.revision()

    def check(self) -> None:
        """Hold the tables to this version, as the first use does; writes nothing.

        Raises:
            SchemaError: they are older or newer, or not there; names both revisions and the remedy.
        """
        self._database.check_schema()

    def close(self) -> None:
        """End the connections of an owned engine; the store raises Unavailable from then on."""
        if self._runner is self._database:
            self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        name = self._database.engine.dialect.name
        return f"<{type(self).__name__} on {name}, namespace {self._scope.namespace!r}>"

    def _like(self, scope: Scope, runner: Runner) -> "SQLStore":
        store = object.__new__(type(self))
        store._database, store._scope, store._runner = self._database, scope, runner
        return store
