"""The contract of a store as a suite of tests, which anyone's store can be run against.

`run_store_contract(make_store)` holds a store to it in one call; a subclass of `StoreContract` is a
class of tests for pytest or unittest, of which neither is needed to import this. Each law is one
method, whose docstring says the law. Laws know a store by its four methods only, and each begins
with a store of its own. What a store may be without is in `CAPABILITIES`; an async store is driven
through `Blocking`.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Self

from turnkeep.protocols import Store
from turnkeep.testing.blocking import Blocking
from turnkeep.testing.checks import CAPABILITIES, NEEDS
from turnkeep.testing.listing import ListingLaws
from turnkeep.testing.reading import ReadingLaws
from turnkeep.testing.sessions import SessionLaws
from turnkeep.testing.threads import ThreadLaws

__all__ = [
    "CAPABILITIES",
    "LAWS",
    "Blocking",
    "ContractBroken",
    "StoreContract",
    "run_store_contract",
]

LAWS: Mapping[str, str] = {
    name: law.__doc__ or ""
    for laws in (SessionLaws, ReadingLaws, ListingLaws, ThreadLaws)
    for name, law in vars(laws).items()
    if name.startswith("test_")
}
"""What each law says, by the name of its method."""


class StoreContract(SessionLaws, ReadingLaws, ListingLaws, ThreadLaws):
    """The laws of a store as a class of tests: give `make_store`, and the runner finds the rest.

    ```python
    class TestMyStore(StoreContract):  # for unittest: (StoreContract, unittest.TestCase)
        without = {"large"}

        def make_store(self) -> Store:
            return MyStore(...)
    ```

    Nothing is closed here: what `make_store` opens is its own, or its fixture's, to close.

    Attributes:
        without: names from `CAPABILITIES` that the store doesn't have: the laws that need them are
            no tests of the class.
        tick: seconds after which the store's clock tells two changes apart by their `updated`.

    Raises:
        ValueError: a class is defined whose *without* holds another name.
    """

    def __init_subclass__(cls, **options: object) -> None:
        super().__init_subclass__(**options)
        for law in set(LAWS) - set(_laws(cls.without)):
            setattr(cls, law, None)  # what can't be called is no test, to pytest and to unittest


class ContractBroken(ExceptionGroup[Exception], AssertionError):
    """A store breaks laws; the exceptions say how, each with the law as a note.

    Attributes:
        laws: the names of the laws, in the order of the exceptions.
    """

    laws: list[str]

    def __new__(cls, broken: Mapping[str, Exception]) -> Self:
        """The group of what came of each law in *broken*."""
        message = f"the store breaks {len(broken)} of {len(LAWS)} laws: {', '.join(broken)}"
        group = super().__new__(cls, message, list(broken.values()))
        group.laws = list(broken)
        return group

    def derive(self, excs: Sequence[Exception], /) -> ExceptionGroup[Exception]:  # type: ignore[override]
        """A part of it, as `split` and `except*` make."""
        return ExceptionGroup(self.message, excs)


def run_store_contract(
    make_store: Callable[[], Store], *, without: Collection[str] = (), tick: float = 0.02
) -> None:
    """Hold a store to all laws, and report all that it breaks.

    Args:
        make_store: makes an empty store, for each law. What it opens is the caller's to close.
        without: names from `CAPABILITIES` that the store doesn't have.
        tick: seconds after which the store's clock tells two changes apart by their `updated`.

    Raises:
        ContractBroken: the store breaks a law, or raised what it should not.
        ValueError: *without* holds another name.
    """
    contract = _Given(make_store, tick)
    broken: dict[str, Exception] = {}
    for law in _laws(without):
        try:
            getattr(contract, law)()
        except Exception as error:  # noqa: BLE001 (whatever a store raises belongs in its report)
            error.add_note(f"{law}: {LAWS[law]}")
            broken[law] = error
    if broken:
        raise ContractBroken(broken)


def _laws(without: Collection[str]) -> list[str]:
    """The laws for a store without some of the capabilities."""
    unknown = [without] if isinstance(without, str) else sorted(set(without) - set(CAPABILITIES))
    if unknown:
        raise ValueError(f"without: {unknown} are not among the names {list(CAPABILITIES)}")
    return [law for law in LAWS if NEEDS.get(law) not in without]


class _Given(StoreContract):
    """The laws over a factory that was handed in."""

    def __init__(self, make_store: Callable[[], Store], tick: float) -> None:
        self._make_store = make_store
        self.tick = tick  # type: ignore[misc]

    def make_store(self) -> Store:
        return self._make_store()
