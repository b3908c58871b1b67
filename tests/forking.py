"""A process that uses a store, forks, and goes on with it on both sides, with a store of each kind.

Run as `python forking.py URL NAMESPACE KIND ...`; it fails where a side reads what it did not
write, or the parent can't go on.
"""

import asyncio
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

from sqlalchemy import URL, AsyncAdaptedQueuePool, create_engine, make_url
from sqlalchemy.ext.asyncio import create_async_engine

from poolers import as_a_host_says
from turnkeep import AsyncSQLStore, Header, MessageEntry, SQLStore, Unavailable

parents: list[object] = []
"""What a child has from its parent."""

KINDS = ("owned", "borrowed", "unused", "memory", "async owned", "async borrowed", "async memory")
CHILDREN = 3


def header(id: str) -> Header:
    return Header(id=id, cwd="/w", created_at="2026-11-30T12:00:00Z", model="m")


def use(call: Callable[..., Any], id: str) -> None:
    """Write a session, and read it again and again."""
    entries: list[Any] = [header(id)]
    call("append", id, entries[0])
    for number in range(8):
        entries.append(MessageEntry({"role": "user", "content": f"{id} {number}"}))
        call("append", id, entries[-1])
        assert call("read", id) == entries


def refused(call: Callable[..., Any], remedy: str) -> None:
    told = ""
    try:
        call("list")
    except Unavailable as error:
        told = str(error)
    assert remedy in told, told


def fork(child: Callable[[], None]) -> int:
    pid = os.fork()
    if pid:
        return pid
    exit_code = 1
    try:
        child()
        exit_code = 0
    except BaseException:  # noqa: BLE001 (the parent is told by the code)
        traceback.print_exc()
    finally:
        leave(exit_code)


def leave(code: int) -> NoReturn:
    sys.stderr.flush()
    os._exit(code)


def check(url: URL, namespace: str, kind: str) -> None:
    is_borrowed = "borrowed" in kind or kind == "unused"
    bare, options = as_a_host_says(url)
    store: Any
    if "async" in kind:
        pool = AsyncAdaptedQueuePool
        engine: Any = create_async_engine(bare, poolclass=pool, **options) if is_borrowed else None
        store = AsyncSQLStore(engine or url, namespace=namespace, migrate=True)
        runner = asyncio.Runner()
    else:
        engine = create_engine(bare, **options) if is_borrowed else None
        store = SQLStore(engine or url, namespace=namespace, migrate=True)
        runner = None

    def call(name: str, *args: Any) -> Any:
        found = getattr(store, name)(*args)
        return runner.run(found) if runner else found

    if kind != "unused":
        use(call, "before")

    def child(number: int) -> None:
        nonlocal runner
        # Kept, or its loop would close, and take from the parent's epoll what wakes that.
        parents.append(runner)
        runner = asyncio.Runner() if runner else None
        if "memory" in kind:
            refused(call, "database in memory")
        elif is_borrowed and kind != "unused":
            refused(call, "engine.dispose(close=False)")
            getattr(engine, "sync_engine", engine).dispose(close=False)
        if "memory" not in kind:
            use(call, f"child {number}")
        if number % 2:
            call("close")
        elif runner:
            runner.close()

    def start(number: int) -> int:
        return fork(lambda: child(number))

    pids = [start(number) for number in range(CHILDREN)]
    if kind == "unused":
        call("upgrade")
    use(call, "parent")
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    assert codes == [0] * CHILDREN, codes
    use(call, "after")
    expected = {"parent", "after"} | ({"before"} if kind != "unused" else set())
    if "memory" not in kind:
        expected |= {f"child {number}" for number in range(CHILDREN)}
    assert {h.id for h in call("list")} == expected
    call("close")
    if runner:
        if engine:
            runner.run(engine.dispose())
        runner.close()


def main(given: str, namespace: str, *kinds: str) -> None:
    url = make_url(given)
    is_file = url.get_backend_name() == "sqlite"
    for kind in kinds:
        used = url
        if "async" not in kind:
            used = url.set(drivername="sqlite" if is_file else "postgresql+psycopg")
        if "memory" in kind:
            used = URL.create(used.drivername)
        check(used, f"{namespace} {kind}", kind)
        print(kind)


if __name__ == "__main__":
    main(*sys.argv[1:])
