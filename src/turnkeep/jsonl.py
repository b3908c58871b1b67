"""riffer-rig's JSONL files: `<home>/.riffer/sessions/<slug>/<id>.jsonl`, an entry to a line.

The files are the only truth: what others write to them is seen at once. An append is one write of
one line at the end. All that is remembered of a file is how many entries it has and the latest time
of any, and that for only as long as its inode, size and mtime are the same. A crash cuts the last
line at most; whoever reads skips it, and the next append begins a new one.

Files are opened relative to their open folder, never through a link and without waiting (as for a
FIFO), and only regular ones: so neither a slug nor an id leads out of `sessions`.
"""

import errno
import logging
import os
import re
import stat
import threading
from builtins import list as List  # noqa: N812 (the class has a method of that name)
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from io import BufferedReader
from pathlib import Path
from typing import NamedTuple, TypeAlias

from turnkeep.entries import Entry, Header, check_entry, found, key_fault, recorded_at
from turnkeep.errors import (
    InvalidArgument,
    InvalidEntry,
    SessionExists,
    Unavailable,
    UnknownSession,
)
from turnkeep.limits import Limits, check_limits
from turnkeep.payload import decode, encode

Entries: TypeAlias = List[Entry]
Headers: TypeAlias = List[Header]

logger = logging.getLogger(__name__)

_ID = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_APPEND = os.O_RDWR | os.O_APPEND
_CAREFUL = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
_NOT_THERE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO, errno.EISDIR)
_MAX_TAILS = 1000


class _Tail(NamedTuple):
    """What an append needs to know of a file, and the state of the file in which that holds."""

    path: Path
    state: tuple[int, int, int]
    entries: int
    latest: str


class JSONLStore:
    """riffer-rig's default store: sessions as files that both read and write. POSIX systems only.

    It may be shared by threads, and several stores of one process may have the same *home*. Of
    processes, riffer-rig's too, one at a time may write to a session; any number may read. What
    `append` has returned from is on the disk.

    A session is the file that its id names, whatever folder it lies in: the header's `cwd` counts,
    not the folder. Where two folders have a file of that name the first by name counts, as for
    riffer-rig; `delete` removes both. A line that is no entry (cut by a crash, no JSON object, not
    UTF-8, without a type) is skipped everywhere; the logger `turnkeep.jsonl` warns of it, with its
    file and number. Below `sessions` no link is followed.

    An id is a file's name here: 1 to 200 of `A-Z a-z 0-9 . _ -`, the first no dot. `append` refuses
    others, to the other methods they are unknown.

    Args:
        home: The folder in which `.riffer` lies or is made; None is the user's own home.
        limits: How large what `append` takes may be; what a SQLStore takes by default fits in here,
            and the other way round. A file is read whatever is in it.

    Raises:
        InvalidArgument: *home* can't be a folder's path, or *limits* are none.
        Unavailable: By every method: a file or folder can't be read, made or written (permissions,
            a full disk); the OSError is its cause. An append that raises it has written nothing.
    """

    def __init__(
        self,
        home: str | os.PathLike[str] | None = None,
        *,
        limits: Limits = Limits(),  # noqa: B008 (frozen)
    ) -> None:
        try:
            self._home = Path.home() if home is None else Path(home).absolute()
            if b"\0" in os.fsencode(self._home):
                raise ValueError("holds a NUL")
        except (TypeError, ValueError):
            raise InvalidArgument("home", "is the path of a folder") from None
        self._limits = check_limits(limits)
        self._root = self._home / ".riffer" / "sessions"
        self._tails: dict[str, _Tail] = {}

    def __repr__(self) -> str:
        return f"JSONLStore({str(self._home)!r})"

    def append(self, id: str, entry: Entry) -> int:
        """Add *entry* at the end of session *id*; a Header comes first and creates it.

        A Header equal to the session's is a no-op, so creating may be repeated; another entry that
        is appended again is there twice. A `recorded_at` before the session's latest is raised to
        that. The file is made in the folder of the header's `cwd`, for its owner alone to read.

        Returns:
            The entry's position, its index in what `read` gives: 0 for the Header, then 1, 2, 3 …

        Raises:
            UnknownSession: *entry* is no Header and there is no such session.
            SessionExists: The session begins with another header, or with an entry that is none.
            InvalidEntry: *entry* is no Entry, is too large, or is a Header of another id.
            InvalidArgument: *id* can't name a file.
        """
        if fault := _fault(id):
            raise InvalidArgument("id", fault)
        check_entry(entry, "$")
        if isinstance(entry, Header) and entry.id != id:
            raise InvalidEntry("$.id", f"is not the id of the session, {id!r}")
        self._limits.lifted(entry, "$")
        with _lock(id), self._reachable():
            return self._begin(entry) if isinstance(entry, Header) else self._go_on(id, entry)

    def read(self, id: str) -> Entries:
        """All entries of session *id* in the order of the file, the Header first; `[]` if unknown.

        What is of a type or shape not known here comes as an UnknownEntry. A damaged file gives
        what is readable in it, which may then begin with another entry than the Header.
        """
        with self._reachable():
            file = self._find(id)
            if file is None:
                return []
            with file:
                return List(_entries(file))

    def list(self, cwd: str | None = None) -> Headers:
        """The Header of each session: the last changed first, of equal times the greater id first.

        `updated` is the time of the file's last change, `last_position` None: files are read no
        further than their first entry. Where that isn't a Header of the file's id, or the file
        can't be read, the session is left out and a warning logged.

        Args:
            cwd: Only the sessions whose header has exactly this cwd, "" too; None is all.

        Raises:
            InvalidArgument: *cwd* is neither a str nor None.
        """
        if cwd is not None and not isinstance(cwd, str):
            raise InvalidArgument("cwd", f"is a str or None, not {type(cwd).__qualname__}")
        with self._reachable():
            headers = [header for header in self._headers() if cwd in (None, header.cwd)]
        return sorted(headers, key=lambda h: (h.updated or _EPOCH, h.id), reverse=True)

    def delete(self, id: str) -> bool:
        """Remove session *id*, its file in every folder; whether there was one.

        Afterwards the id is unknown, and a Header may begin a new session with it.
        """
        if _fault(id):
            return False
        was_there = False
        with _lock(id), self._reachable():
            while file := self._find(id):
                path = Path(file.name)
                with file, suppress(FileNotFoundError), _folder(path.parent) as folder:
                    os.unlink(path.name, dir_fd=folder)
                    was_there = True
                    _sync(path.parent)
            self._tails.pop(id, None)
        return was_there

    def _begin(self, header: Header) -> int:
        with self._find(header.id, _APPEND) or self._create(header) as file:
            first = next(_entries(file), None)
            if first == header:
                return 0
            if first is not None:
                raise SessionExists(header.id)
            _sync(Path(file.name).parent)
            self._write(header.id, header, file, 0, "")
        return 0

    def _create(self, header: Header) -> BufferedReader:
        path = self._root / _slug(header.cwd) / f"{header.id}.jsonl"
        missing = [folder for folder in path.parents if not folder.exists()]
        for folder in reversed(missing):  # each its owner's alone, which `parents=True` doesn't do
            folder.mkdir(mode=0o700, exist_ok=True)
            _sync(folder.parent)
        try:
            return _open(path, _APPEND | os.O_CREAT | os.O_EXCL)
        except FileExistsError:
            if file := self._find(header.id, _APPEND):  # another process was faster
                return file
            raise

    def _go_on(self, session: str, entry: Entry) -> int:
        file = self._find(session, _APPEND)
        if file is None:
            raise UnknownSession(session)
        with file:
            tail = self._tails.get(session)
            if tail is not None and tail.state == _state(file):
                count, latest = tail.entries, tail.latest
            else:
                count, latest = 0, ""
                for there in _entries(file):
                    count, latest = count + 1, max(latest, recorded_at(there) or "")
            if not count:
                raise UnknownSession(session)
            self._write(session, entry, file, count, latest)
        return count

    def _write(
        self, session: str, entry: Entry, file: BufferedReader, count: int, latest: str
    ) -> None:
        """Append *entry* to the *count* entries of *file*, and remember how it stands then."""
        stamp = recorded_at(entry)
        if stamp is not None:
            stamp = latest = max(stamp, latest)
        size = _append(file, _line(entry, stamp))
        if len(self._tails) >= _MAX_TAILS:
            self._tails = {}  # each session pays for one more reading of its file
        # The size that this write makes: had another process written too, the next append sees it.
        inode, _, mtime = _state(file)
        self._tails[session] = _Tail(Path(file.name), (inode, size, mtime), count + 1, latest)

    def _find(self, session: str, flags: int = os.O_RDONLY) -> BufferedReader | None:
        """The session's file, opened; None where there is none."""
        if _fault(session):
            return None
        if tail := self._tails.get(session):
            with suppress(FileNotFoundError):
                return _open(tail.path, flags)
        for folder in self._folders():
            with suppress(FileNotFoundError):
                return _open(folder / f"{session}.jsonl", flags)
        return None

    def _folders(self) -> Iterator[Path]:
        """The folders of sessions, in the order that decides between two with the same file."""
        with suppress(FileNotFoundError):
            for folder in sorted(self._root.iterdir()):
                if folder.is_symlink() or not folder.is_dir():
                    continue
                if os.access(folder, os.R_OK | os.X_OK, effective_ids=True):
                    yield folder
                else:
                    logger.warning("%s: no permission, left out", folder)

    def _headers(self) -> Iterator[Header]:
        paths: List[Path] = []
        for folder in self._folders():
            with suppress(FileNotFoundError):
                paths += [path for path in folder.glob("*.jsonl") if not _fault(path.stem)]
        seen: set[str] = set()
        for path in paths:
            try:
                with _open(path) as file:
                    if path.stem in seen:
                        logger.warning("%s: left out, another folder has this session too", path)
                        continue
                    seen.add(path.stem)
                    first = next(_entries(file), None)
                    mtime = timedelta(microseconds=_state(file)[2] // 1000)
                if isinstance(first, Header) and first.id == path.stem:
                    yield replace(first, updated=_EPOCH + mtime)
                elif first is not None:
                    logger.warning("%s: left out, it begins with no Header of this id", path)
            except FileNotFoundError:
                continue
            except (OSError, OverflowError) as error:
                logger.warning("%s: left out, %s", path, error)

    @contextmanager
    def _reachable(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise Unavailable(f"{self._root}: {error}") from error


def _fault(session: str) -> str | None:
    """Why *session* can't be an id here; None where it can."""
    if fault := key_fault(session):
        return fault
    if _ID.fullmatch(session):
        return None
    return "names a file here: it is 1 to 200 of A-Z a-z 0-9 . _ -, the first no dot"


def _slug(cwd: str) -> str:
    """The folder for the sessions of *cwd*, as riffer-rig names it; cut to what a name may have."""
    slug = re.sub(r"[^A-Za-z0-9._-]+", "-", cwd).strip("-")[:255]
    return "-" if slug in ("", ".", "..") else slug


def _line(entry: Entry, stamp: str | None) -> bytes:
    # Joined from texts: a message may be as deep as `encode` takes, and its entry one level deeper.
    fields = [f'"type":{encode(entry.type)}', entry.payload[1:-1]]
    if stamp is not None:
        fields.append(f'"recorded_at":"{stamp}"')
    return f"{{{','.join(filter(None, fields))}}}\n".encode()


def _entries(file: BufferedReader) -> Iterator[Entry]:
    """The entries of *file*, a line at a time; warns of each line that is none."""
    # The file is binary: in a text file other characters end a line too, and JSON may hold them.
    for number, line in enumerate(file, 1):
        try:
            raw = decode(line.decode("utf-8-sig"))
            if not isinstance(raw, dict):
                raise ValueError("no JSON object")
            entry = found(raw)
        except ValueError:
            logger.warning("%s, line %d: no entry, skipped", file.name, number)
        else:
            yield entry


def _append(file: BufferedReader, line: bytes) -> int:
    """Write *line* at the end, durably or not at all; the size of the file then."""
    opened = file.fileno()
    size = os.fstat(opened).st_size
    if size and os.pread(opened, 1, size - 1) != b"\n":
        line = b"\n" + line  # what a crash left of the last line stays a line by itself
    written = 0
    try:
        while written < len(line):
            written += os.write(opened, line[written:])
        os.fsync(opened)
    except BaseException:
        with suppress(OSError):
            os.ftruncate(opened, size)
        raise
    return size + len(line)


def _open(path: Path, flags: int = os.O_RDONLY) -> BufferedReader:
    """The regular file *path*; FileNotFoundError for all else that may have its name."""

    def opener(_path: str, _flags: int) -> int:
        with _folder(path.parent) as folder:
            return os.open(path.name, flags | _CAREFUL, 0o600, dir_fd=folder)

    try:
        file = open(path, "rb", opener=opener)  # noqa: SIM115 (the caller closes it)
        if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            return file
        file.close()
    except OSError as error:
        if error.errno not in _NOT_THERE:
            raise
    raise FileNotFoundError(errno.ENOENT, "no regular file", str(path))


@contextmanager
def _folder(path: Path) -> Iterator[int]:
    opened = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        yield opened
    finally:
        os.close(opened)


def _sync(folder: Path) -> None:
    """Make the names in *folder* outlast a power failure."""
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(opened)
    except OSError as error:
        # Some file systems have no such thing for a folder. (PostgreSQL ignores the same two.)
        if error.errno not in (errno.EINVAL, errno.EBADF):
            raise
    finally:
        os.close(opened)


def _state(file: BufferedReader) -> tuple[int, int, int]:
    """The file's inode, size and mtime in ns: where they are the same, so is what it holds."""
    status = os.fstat(file.fileno())
    return status.st_ino, status.st_size, status.st_mtime_ns


_locks: List[threading.Lock] = []


def _lock(session: str) -> threading.Lock:
    """The lock for writing to *session*, by whichever store of the process."""
    return _locks[hash(session) % len(_locks)]


def _renew_locks() -> None:
    _locks[:] = [threading.Lock() for _ in range(64)]


_renew_locks()
# Where the parent forks while another thread of it holds one, the child would wait for ever.
os.register_at_fork(after_in_child=_renew_locks)
