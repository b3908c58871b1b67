"""A network between store and server that cuts, delays, and swallows what the server answered."""

import itertools
import random
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import pytest
from sqlalchemy import URL

from chaos import DRIVERS, Account, opened
from contention import SESSION, header, said
from hosts import assert_is_clean
from inspection import wait_till_idle
from proxy import Proxy, proxied
from servers import PostgresServer
from turnkeep import Entry, SQLStore, Unavailable

COMMIT = (b"COMMIT\0", b"COMMIT;")  # and not READ COMMITTED
MESSAGE = (b'"role"',)
"""In what is sent to the server: the end of a transaction, and an entry that is a message."""


_numbers = itertools.count()


@pytest.fixture
def direct(server_database: URL) -> Iterator[SQLStore]:
    """A store with a namespace of its own that doesn't go by the network that fails."""
    with SQLStore(server_database, namespace=f"{next(_numbers)}", migrate=True) as store:
        store.append(SESSION, header())
        yield store


@pytest.fixture
def network(postgres: PostgresServer) -> Iterator[Proxy]:
    """What the other stores go by."""
    with proxied(postgres.port) as proxy:
        yield proxy


@pytest.fixture(params=DRIVERS)
def store(request: pytest.FixtureRequest, direct: SQLStore, network: Proxy) -> Iterator[Any]:
    """One of each kind, of the same namespace."""
    with open_behind(network, direct, request.param) as store:
        yield store


def open_behind(network: Proxy, direct: SQLStore, kind: str) -> AbstractContextManager[Any]:
    """A store of this *kind* where *direct* leads to, by way of *network*."""
    url = network.url(direct._database.engine.url)
    return opened(kind, url, namespace=direct._scope.namespace)


NEW = [said("x", b"bytes"), said("y", b"more"), said("z")]
KEYS = ["x", None, "z"]
WRITES: dict[str, tuple[tuple[bytes, ...], list[Any], Callable[[Any], object]]] = {
    "one": (MESSAGE, [said("x")], lambda s: s.append(SESSION, said("x"))),
    "batch": (MESSAGE, NEW[2:] * 3, lambda s: s.extend(SESSION, NEW[2:] * 3)),
    "bytes": (COMMIT, NEW[:1], lambda s: s.append(SESSION, NEW[0])),
    "key": (MESSAGE, [said("x")], lambda s: s.append(SESSION, said("x"), idempotency_key="x")),
    "keys": (COMMIT, NEW, lambda s: s.extend(SESSION, NEW, idempotency_keys=KEYS)),
}


@pytest.mark.parametrize("answered", [True, False], ids=["answer", "request"])
@pytest.mark.parametrize("write", WRITES)
def test_a_write_whose_answer_is_lost_is_there_and_one_whose_request_is_lost_is_not(
    direct: SQLStore, network: Proxy, store: Any, write: str, answered: bool
) -> None:
    marks, entries, send = WRITES[write]
    for _ in range(6):  # the drivers prepare what they ran some times
        store.append(SESSION, said("before"))
    before = direct.read(SESSION)
    network.cut_at(*marks, answered=answered)
    with pytest.raises(Unavailable) as caught:
        send(store)
    assert_is_clean(caught.value)
    found = direct.read(SESSION)
    assert found == [*before, *(entries if answered else [])]
    again = send(store)
    found = [*before, *entries] if "key" in write else [*found, *entries]
    assert again == len(found) - 1
    assert store.read(SESSION) == direct.read(SESSION) == found


def test_a_session_s_begin_or_end_whose_answer_is_lost_is_repeated_without_harm(
    direct: SQLStore, network: Proxy, store: Any
) -> None:
    store.read(SESSION)
    calls: list[tuple[Callable[[], object], list[Entry], object]] = [
        (lambda: store.append("new", header("new")), [header("new")], 0),
        (lambda: store.delete("new"), [], False),
    ]
    for call, after, again in calls:
        network.cut_at(*COMMIT, answered=True)
        with pytest.raises(Unavailable) as caught:
            call()
        assert_is_clean(caught.value)
        assert direct.read("new") == after
        assert call() == again
        assert direct.read("new") == after


FAREWELL = b"SFATAL\0VFATAL\0C57P01\0Mterminating connection\0\0"


def test_a_server_that_says_goodbye_and_stays_costs_no_more_than_a_call(
    network: Proxy, store: Any
) -> None:
    for _ in range(2):
        assert store.read(SESSION) == [header()]
        network.say(b"E" + struct.pack("!I", len(FAREWELL) + 4) + FAREWELL)
        time.sleep(0.05)  # it is heard, and not yet answered by anybody
        try:
            store.read(SESSION)
        except Unavailable as error:
            assert_is_clean(error)


def trouble(network: Proxy) -> None:
    """Something that befalls connections, and is over when this returns."""
    what = random.choice(["cut", "some", "away", "slow", "answer", "request"])
    if what == "away":
        network.is_away = True
    if what in ("cut", "some", "away"):
        network.cut(0.5 if what == "some" else 1)
    elif what == "slow":
        network.delay = 0.05
    elif what == "answer":
        network.cut_at(*random.choice([COMMIT, MESSAGE]), answered=True)
    else:
        network.cut_at(random.choice([b"BEGIN", b"SELECT", b"UPDATE"]), answered=False)
    time.sleep(random.uniform(0, 0.1))
    network.is_away, network.delay = False, 0


@pytest.mark.parametrize("faults", [20, pytest.param(300, marks=pytest.mark.chaos)])
def test_writers_behind_a_network_that_fails_lose_and_double_nothing(
    direct: SQLStore, network: Proxy, account: Account, faults: int
) -> None:
    with ExitStack() as stack:
        stores = [stack.enter_context(open_behind(network, direct, kind)) for kind in DRIVERS]
        with account.writing(stores):
            for _ in range(faults // 5):
                account.wait_for_progress(1)
                for _ in range(5):
                    trouble(network)
            network.calm()
            account.wait_for_progress()
        wait_till_idle(direct)
        account.check(direct, f"{faults} faults of the network")
        for store in stores:
            assert store.read(SESSION) == direct.read(SESSION)
