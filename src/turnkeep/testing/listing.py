"""Laws of the list: which sessions are in it, in what order, and when they changed last."""

import time
from collections.abc import Sequence

from turnkeep.protocols import Store
from turnkeep.testing.checks import Laws, begin, expect, listed_ids, same, updated
from turnkeep.testing.samples import CWDS, header, message, one_of_each


class ListingLaws(Laws):
    """Membership, order and `updated`."""

    def test_the_list_has_each_session_once(self) -> None:
        """`list` gives one Header for each session, equal to its own, whatever else it holds."""
        store = self.make_store()
        headers = [header(f"s{i:02}", title=f"t{i}") for i in range(12)]
        for i, first in enumerate(headers):
            store.append(first.id, first)
            for entry in one_of_each()[: i % 6]:
                store.append(first.id, entry)
        found = {listed.id: listed for listed in reversed(store.list())}
        same([found[name] for name in sorted(found)], headers, "the list, by id")
        expect(len(store.list()) == len(headers), "the list has a session more than once")

    def test_the_list_filters_by_exact_cwd(self) -> None:
        """`list(cwd)` gives the sessions of exactly this cwd, the empty one too; None gives all."""
        store = self.make_store()
        headers = [header(f"s{i}", cwd=cwd) for i, cwd in enumerate(CWDS)]
        for first in headers:
            store.append(first.id, first)
        for first in headers:
            same(store.list(first.cwd), [first], f"list({first.cwd[:20]!r})")
        for cwd in ("/nowhere", "/w/ap", "/w/app/", "."):
            same(store.list(cwd), [], f"list({cwd!r}), where no session is")
        expect(len(listed_ids(store, None)) == len(CWDS), "list(None) does not give all sessions")

    def test_an_append_moves_updated(self) -> None:
        """Each Header has `updated`, a time with a zone; an append moves its own session's on."""
        store = self.make_store()
        begin(store, "s1")
        begin(store, "s2")
        mine, other = updated(store, "s1"), updated(store, "s2")
        for entry in one_of_each():
            time.sleep(self.tick)
            store.append("s1", entry)
            now = updated(store, "s1")
            expect(now > mine, f"a {entry.type} entry did not move `updated`")
            mine = now
        expect(updated(store, "s2") == other, "an append moved another session's `updated`")

    def test_the_last_changed_is_listed_first(self) -> None:
        """The session that changed last comes first: appending moves one there, reading none."""
        store = self.make_store()
        for session in ("s2", "s1", "s3"):
            begin(store, session)
            time.sleep(self.tick)
        _in_order(store, ["s3", "s1", "s2"])
        store.read("s2")
        _in_order(store, ["s3", "s1", "s2"])
        store.append("s1", message("x"))
        time.sleep(self.tick)
        _in_order(store, ["s1", "s3", "s2"])
        store.append("s2", message("x"))
        _in_order(store, ["s2", "s1", "s3"])

    def test_the_list_is_in_a_total_order(self) -> None:
        """Of equal `updated` the greater id comes first, by its bytes, so the order is certain."""
        store = self.make_store()
        for session in ("b", "a", "B", "10", "_", "A", "9", "aa", "a-", "Z", "-"):
            begin(store, session)
        found = [(listed.updated, listed.id.encode()) for listed in store.list()]
        expect(found == sorted(found, reverse=True), f"the list is not in order: {found}")


def _in_order(store: Store, wanted: Sequence[str]) -> None:
    for cwd in (None, "/app"):
        found = listed_ids(store, cwd)
        expect(found == wanted, f"list({cwd!r}) is {found}, not {wanted}")
