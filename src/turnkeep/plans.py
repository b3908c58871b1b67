"""Logic that is the same over a sync and an async store, said once.

A plan is a generator: it yields what it wants of the store, a function of it, and is sent what that
gave. `drive` runs a plan on a sync store, `drive_async` on one whose methods are awaited.
"""

import inspect
from collections.abc import Awaitable, Callable, Generator
from typing import Any, TypeAlias, TypeVar

from turnkeep.errors import InvalidArgument

T = TypeVar("T")

Request: TypeAlias = Callable[[Any], Any]
"""What is wanted of a store, given the store: its result, or an awaitable of it."""

Plan: TypeAlias = Generator[Request, Any, T]
"""A piece of logic that asks a store now and then, and gives a T."""

AWAITED = "its methods are to be awaited: use an AsyncLoader"
NOT_AWAITED = "its methods can't be awaited: use a Loader"


def drive(plan: Plan[T], store: object) -> T:
    """Run *plan* on a sync *store*."""
    found: Any = None
    while True:
        try:
            request = plan.send(found)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]
        found = request(store)  # out here: a StopIteration of the store's is no end of the plan
        if inspect.iscoroutine(found):
            found.close()
            raise InvalidArgument("store", AWAITED)


async def drive_async(plan: Plan[T], store: object) -> T:
    """Run *plan* on an async *store*."""
    found: Any = None
    while True:
        try:
            request = plan.send(found)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]
        asked = request(store)
        if not isinstance(asked, Awaitable):
            raise InvalidArgument("store", NOT_AWAITED)
        found = await asked
