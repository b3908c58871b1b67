"""A history's folder: `history.json`, and beside it `attachments/` with a file for each attachment.

What is read was perhaps put there by somebody else. A file is named by one plain component, opened
relative to the open folder `attachments`, never through a link and without waiting (as for a FIFO),
and read only if it is a regular file: so nothing outside is read, whatever the names say.

What is written is there as a whole or not at all: in a temporary file first, which takes the place
of the old one once its bytes are on the disk. `history.json` comes last and is what commits: until
then the folder holds the old history, and some files more that it doesn't name. Nothing is deleted.
"""

import errno
import hashlib
import io
import os
import re
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from secrets import token_hex
from typing import Any, BinaryIO, Self, TypeAlias

from turnkeep.errors import HistoryError
from turnkeep.message import Attachment

HISTORY_FILE = "history.json"
ATTACHMENTS_DIR = "attachments"

Dir: TypeAlias = str | os.PathLike[str]

_FILE = re.compile(rf"{ATTACHMENTS_DIR}/([A-Za-z0-9_][A-Za-z0-9._-]{{0,99}})")
_FOLDER = os.O_RDONLY | os.O_DIRECTORY
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL
_NOT_THERE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO, errno.EISDIR)
_REASONS = {
    errno.ENOENT: "is missing",
    errno.ENOTDIR: f"{ATTACHMENTS_DIR} is a link or no folder",
    errno.ELOOP: "is a link",
    errno.EISDIR: "is no regular file",
    errno.ENXIO: "is no regular file",
    errno.EFBIG: "has grown while it was read",
}


def path_of(folder: Dir) -> Path:
    """*folder* as a path that a file system can have.

    Raises:
        HistoryError: it is no path, or holds a NUL or characters that no file name can.
    """
    try:
        path = Path(folder)
        if b"\0" not in os.fsencode(path):
            return path
    except (TypeError, UnicodeEncodeError):
        pass
    raise HistoryError("dir: is the path of a folder")


class FolderReader:
    """A folder to read a history from. It is opened when first needed; `with` closes it.

    Attributes:
        path: The folder, as it was named.
    """

    def __init__(self, folder: Dir) -> None:
        self.path = path_of(folder)
        self._opened = ExitStack()
        self._attachments: int | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def open_history(self) -> BinaryIO:
        """`history.json`, opened for reading.

        Raises:
            HistoryError: there is no such regular file, or it can't be opened.
        """
        try:
            return _open_regular(self.path / HISTORY_FILE)
        except OSError as error:
            if error.errno in _NOT_THERE:
                raise HistoryError(f"no {HISTORY_FILE} in {self.path}") from None
            raise _unreadable(str(self.path / HISTORY_FILE), error) from None

    def history(self) -> bytes:
        """The bytes of `history.json`.

        Raises:
            HistoryError: as `open_history`, or it can't be read.
        """
        with self.open_history() as file:
            return read(file, str(self.path / HISTORY_FILE))

    def attachment(self, file: str) -> tuple[bytes, str]:
        """The bytes of the attachment *file*, as `history.json` names it, and their digest.

        Raises:
            HistoryError: the name is not that of a file in `attachments`; or this is missing, a
                link, no regular file or unreadable; names it.
        """
        with self._open_attachment(file) as opened:
            data = read(opened, file)
        return data, hashlib.sha256(data).hexdigest()

    def digest(self, file: str) -> str:
        """The digest of the attachment *file*, whose bytes are read but not held.

        Raises:
            HistoryError: as `attachment`.
        """
        digest = hashlib.sha256()
        with self._open_attachment(file) as opened:
            while some := read(opened, file, 1 << 20):
                digest.update(some)
        return digest.hexdigest()

    def size(self, file: str) -> int:
        """How many bytes the attachment *file* has.

        Raises:
            HistoryError: as `attachment`.
        """
        with self._open_attachment(file) as opened:
            return os.fstat(opened.fileno()).st_size

    def _open_attachment(self, file: str) -> BinaryIO:
        named = _FILE.fullmatch(file)
        if named is None:
            shown = ascii(file[:100])
            raise HistoryError(f"{shown} is no plain name of a file in {ATTACHMENTS_DIR}/")
        try:
            if self._attachments is None:
                self._attachments = os.open(self.path / ATTACHMENTS_DIR, _FOLDER | os.O_NOFOLLOW)
                self._opened.callback(os.close, self._attachments)
            return _open_regular(named[1], self._attachments)
        except OSError as error:
            raise _unreadable(file, error) from None


class FolderWriter:
    """A folder to write a history to, which is made where it is missing; `with` closes it.

    Attributes:
        path: The folder, as an absolute path.

    Raises:
        HistoryError: *folder* is no path, or begins with ~ and the name of no user.
        OSError: the folder can't be made.
    """

    def __init__(self, folder: Dir) -> None:
        try:
            self.path = path_of(folder).expanduser().absolute()
        except RuntimeError:
            raise HistoryError("dir: begins with ~ and the name of no user") from None
        _make(self.path)
        self._opened = ExitStack()
        self._folder = self._open(self.path, None, _FOLDER)
        self._attachments: int | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def attachment(self, attachment: Attachment) -> None:
        """Write the attachment's file, unless one of the same name and size is there.

        Raises:
            HistoryError: a link or something else that is no regular file has its name, or that of
                the folder `attachments`.
            OSError: it can't be written.
        """
        if self._attachments is None:
            self._attachments = self._open_attachments()
        name = attachment.stored_name
        with suppress(FileNotFoundError):
            found = os.stat(name, dir_fd=self._attachments, follow_symlinks=False)
            if not stat.S_ISREG(found.st_mode):
                raise HistoryError(f"{ATTACHMENTS_DIR}/{name}: is a link or no file: remove it")
            if found.st_size == len(attachment.bytes):
                return
        with _replacing(name, self._attachments) as file:
            file.write(attachment.bytes)

    @contextmanager
    def history(self) -> Iterator[BinaryIO]:
        """A file to write, which becomes `history.json` when the block ends: the commit.

        All attachments that it names are to be written before the block ends. Where the block
        raises, the old `history.json` stays, and nothing of the new one.

        Raises:
            OSError: it can't be written.
        """
        with _replacing(HISTORY_FILE, self._folder) as file:
            yield file
            if self._attachments is not None:
                _sync(self._attachments)
        _sync(self._folder)

    def _open_attachments(self) -> int:
        with suppress(FileExistsError):
            os.mkdir(ATTACHMENTS_DIR, dir_fd=self._folder)
            _sync(self._folder)
        try:
            return self._open(ATTACHMENTS_DIR, self._folder, _FOLDER | os.O_NOFOLLOW)
        except OSError as error:
            if error.errno not in (errno.ELOOP, errno.ENOTDIR):
                raise
            raise HistoryError(f"{ATTACHMENTS_DIR}: is a link or no folder: remove it") from None

    def _open(self, path: str | Path, dir_fd: int | None, flags: int) -> int:
        opened = os.open(path, flags, dir_fd=dir_fd)
        self._opened.callback(os.close, opened)
        return opened


@contextmanager
def _replacing(name: str, folder: int) -> Iterator[BinaryIO]:
    """A new file, which takes the place of *name* in *folder* if the block ends well, else goes."""
    # The dot keeps what a killed process leaves out of every listing, and out of _FILE.
    temporary = f".{token_hex(8)}.tmp"
    opened = os.open(temporary, _CREATE, 0o666, dir_fd=folder)
    try:
        with os.fdopen(opened, "wb") as file:
            yield file
            file.flush()
            os.fsync(opened)
        os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary, dir_fd=folder)
        raise


def _make(path: Path) -> None:
    """Make the folder *path*, and those above it, such that they outlast a power failure."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for made in missing:
        parent = os.open(made.parent, _FOLDER)
        try:
            _sync(parent)
        finally:
            os.close(parent)


def _sync(folder: int) -> None:
    try:
        os.fsync(folder)
    except OSError as error:
        # Some file systems have no such thing for a folder. (PostgreSQL ignores the same two.)
        if error.errno not in (errno.EINVAL, errno.EBADF):
            raise


class _Regular(io.FileIO):
    """An open file, of which no more is read than there was when it was opened: it may grow for as
    long as it is read.
    """

    def __init__(self, opened: int) -> None:
        super().__init__(opened)
        self._left = os.fstat(opened).st_size

    def readinto(self, buffer: Any) -> int | None:
        count = super().readinto(buffer)
        self._take(count or 0)
        return count

    def readall(self) -> bytes:
        parts = []
        while part := super().read(self._left + 1):
            self._take(len(part))
            parts.append(part)
        return b"".join(parts)

    def _take(self, count: int) -> None:
        self._left -= count
        if self._left < 0:
            raise OSError(errno.EFBIG, "grows")


def _open_regular(path: str | Path, dir_fd: int | None = None) -> BinaryIO:
    opened = os.open(path, _READ, dir_fd=dir_fd)
    try:
        if not stat.S_ISREG(os.fstat(opened).st_mode):
            raise OSError(errno.EISDIR, "not a regular file")
        return io.BufferedReader(_Regular(opened))
    except BaseException:
        os.close(opened)
        raise


def read(file: BinaryIO, name: str, size: int = -1) -> bytes:
    """Read from *file*, which errors call *name*: all of it, or so many bytes.

    Raises:
        HistoryError: it can't be read, or held.
    """
    try:
        return file.read(size)
    except MemoryError:
        raise HistoryError(f"{name}: is too large to be held in memory") from None
    except OSError as error:
        raise _unreadable(name, error) from None


def _unreadable(name: str, error: OSError) -> HistoryError:
    reason = _REASONS.get(error.errno or 0) or f"can't be read: {error.strerror}"
    return HistoryError(f"{name}: {reason}")
