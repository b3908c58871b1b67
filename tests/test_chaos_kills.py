"""Processes that are killed while they write, many times over."""

import multiprocessing
import random
import signal
import time
from contextlib import suppress
from multiprocessing.context import ForkServerContext

import pytest
from sqlalchemy import URL

from attempts import attempt, write_till_killed
from chaos import Account
from conftest import Backend
from contention import SESSION, header
from inspection import wait_till_idle

WRITERS = 3


@pytest.fixture(scope="module")
def processes() -> ForkServerContext:
    """Makes processes quickly, which have all that a writer needs."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["turnkeep.schema", "psycopg", "sqlalchemy.dialects.postgresql"])
    return context


class Victim:
    """A process that writes on where *writer* was, till it is killed."""

    def __init__(
        self, processes: ForkServerContext, url: URL, writer: int, account: Account
    ) -> None:
        self.writer = writer
        self._account = account
        self._first = account.begun.setdefault(writer, 0)
        self._told, telling = processes.Pipe(duplex=False)
        self._process = processes.Process(
            target=write_till_killed, args=(url, writer, self._first, telling), daemon=True
        )
        self._process.start()
        telling.close()

    def kill(self, *, is_last: bool = False) -> None:
        """Kill it when it writes, and now and then before, and put down what it was told.

        What it was at is not known to be there. The next one sends it again where it has a key,
        unless this is the last one.
        """
        if random.random() < 0.9:
            self._told.poll(None)
        time.sleep(random.uniform(0, 0.02))
        self._process.kill()
        self._process.join()
        number = self._first
        with self._told, suppress(EOFError):
            while True:
                number, last = self._told.recv()
                self._account.acknowledged[self.writer, number] = last
                number += 1
        assert self._process.exitcode == -signal.SIGKILL
        is_sent_again = attempt(self.writer, number).may_be_repeated and not is_last
        self._account.begun[self.writer] = number + (not is_sent_again)


@pytest.mark.parametrize("kills", [20, pytest.param(200, marks=pytest.mark.chaos)])
def test_what_a_killed_process_was_told_is_there_once(
    server_or_file: Backend, processes: ForkServerContext, account: Account, kills: int
) -> None:
    store = server_or_file.store()
    store.append(SESSION, header())

    def start(writer: int) -> Victim:
        return Victim(processes, server_or_file.url, writer, account)

    with account.writing([store], writers=0):
        victims = [start(writer) for writer in range(WRITERS)]
        for _ in range(kills - WRITERS):
            victim = victims.pop(random.randrange(WRITERS))
            victim.kill()
            victims.append(start(victim.writer))
        for victim in victims:
            victim.kill(is_last=True)
    if server_or_file.is_postgres:
        wait_till_idle(store)
    account.check(store, f"{kills} kills")
