"""Laws of a session's life: how it begins, what ids it may have, and what is left when it ends."""

import time
from typing import Any

from turnkeep.entries import Header, MessageEntry
from turnkeep.errors import InvalidEntry, SessionExists, UnknownSession
from turnkeep.protocols import Store
from turnkeep.testing.checks import (
    TYPED,
    Laws,
    begin,
    expect,
    listed_ids,
    needs,
    refused,
    same,
    state,
)
from turnkeep.testing.samples import (
    IMPOSSIBLE_IDS,
    ODD_IDS,
    header,
    message,
    messages_with_bytes,
    one_of_each,
)


class SessionLaws(Laws):
    """Header, id and end."""

    def test_an_empty_store_knows_no_session(self) -> None:
        """`read` of an id that no session has gives []; the list of an empty store is []."""
        store = self.make_store()
        same(store.read("nobody"), [], "read of an unknown id")
        same(store.list(), [], "list of an empty store")
        same(store.list("/app"), [], "list of an empty store by cwd")

    def test_a_header_begins_a_session(self) -> None:
        """A Header creates the session, which then holds it and nothing else."""
        store = self.make_store()
        fields = {"title": "A titlé", "riffer_rig_version": "1.2", "riffer_version": "3"}
        first = header(schema_version=7, created_at="2026-11-30T12:00:00.123Z", **fields)
        store.append("s1", first)
        same(store.read("s1"), [first], "a session that a header began")
        same(store.list(), [first], "the list after a header")

    def test_an_equal_header_changes_nothing(self) -> None:
        """A Header that equals the session's is taken, and changes nothing, not even `updated`."""
        store = self.make_store()
        begin(store, "s1", message("one"))
        before = state(store)
        time.sleep(self.tick)
        store.append("s1", header())
        store.append("s1", store.list()[0])  # `updated` is no part of equality
        expect(state(store) == before, "an equal header changed the session")

    def test_another_header_is_refused(self) -> None:
        """A Header that differs from the session's in any field raises SessionExists."""
        store = self.make_store()
        begin(store, "s1", message("one"))
        others: dict[str, Any] = {"schema_version": 2, "created_at": "2026-11-30T12:00:01Z"}
        others |= dict.fromkeys(("cwd", "model", "title"), "n")
        others |= dict.fromkeys(("riffer_rig_version", "riffer_version"), "2")
        for field, value in others.items():
            with refused(store, (SessionExists,), f"a header with another {field}"):
                store.append("s1", header(**{field: value}))

    def test_an_entry_needs_a_session(self) -> None:
        """An entry for an unknown id raises UnknownSession, and writes nothing."""
        store = self.make_store()
        for entry in one_of_each():
            with refused(store, (UnknownSession,), f"a {entry.type} entry without a session"):
                store.append("s1", entry)
        store.append("s1", header())
        same(store.read("s1"), [header()], "a session begun after refused entries")

    def test_a_header_of_another_id_is_refused(self) -> None:
        """A Header whose id is not the session's raises InvalidEntry, whichever of them exists."""
        store = self.make_store()
        with refused(store, (InvalidEntry,), "a header of another id"):
            store.append("s1", header("s2"))
        store.append("s1", header("s1"))
        with refused(store, (InvalidEntry,), "a header of another id, for a session"):
            store.append("s1", header("s2"))
        with refused(store, (InvalidEntry,), "a session's header, for another id"):
            store.append("s2", header("s1"))

    def test_what_is_no_entry_is_refused(self) -> None:
        """What is no Entry raises InvalidEntry or TypeError, even a dict in an entry's shape."""
        store = self.make_store()
        begin(store, "s1")
        values: list[Any] = [None, {}, message("x").to_dict(), header().to_dict(), "{}", b"", 1]
        values += [object(), Header, MessageEntry, [message("x")]]
        for value in values:
            with refused(store, (InvalidEntry, TypeError), f"a {type(value).__name__}"):
                store.append("s1", value)

    def test_delete_removes_the_session(self) -> None:
        """After `delete` the id reads [], is not listed, and takes no entry before a Header."""
        store = self.make_store()
        begin(store, "s1", *one_of_each())
        begin(store, "s2", message("x"))
        store.delete("s1")
        same(store.read("s1"), [], "a deleted session")
        same(store.list(), [header("s2")], "the list after a delete")
        same(store.list("/app"), [header("s2")], "the list by cwd after a delete")
        with refused(store, (UnknownSession,), "an entry for a deleted session"):
            store.append("s1", message("x"))

    def test_deleting_an_unknown_session_does_nothing(self) -> None:
        """`delete` of an unknown id raises nothing and removes nothing; nor does a second one."""
        store = self.make_store()
        begin(store, "s1", message("x"))
        before = state(store)
        for session in ("nobody", "s", "s11", "%", "s_", "*", "S1"):
            store.delete(session)
        expect(state(store) == before, "deleting unknown ids removed something")
        store.delete("s1")
        store.delete("s1")

    def test_a_deleted_id_can_be_used_again(self) -> None:
        """A deleted id may begin another session: of the old one nothing comes back."""
        store = self.make_store()
        begin(store, "s1", *one_of_each())
        store.delete("s1")
        again = header(cwd="/other", title="again")
        store.append("s1", again)
        same(store.read("s1"), [again], "a new session of a deleted one's id")
        store.append("s1", message("new"))
        same(store.read("s1"), [again, message("new")], "a new session of a deleted one's id")
        same(store.list("/app"), [], "the list of the deleted session's cwd")

    def test_sessions_share_nothing(self) -> None:
        """Of sessions with equal contents none is changed by an append to another, or its end."""
        store = self.make_store()
        entries = [*one_of_each(), *messages_with_bytes()]
        for session in ("s1", "s2", "s3"):
            begin(store, session, *entries)
        store.append("s1", message("mine"))
        same(store.read("s2"), [header("s2"), *entries], "a session beside one that goes on")
        store.delete("s2")
        mine = [header("s1"), *entries, message("mine")]
        same(store.read("s1"), mine, "a session beside a deleted one")
        same(store.read("s3"), [header("s3"), *entries], "a session beside a deleted one")

    def test_odd_ids_are_distinct_or_refused(self) -> None:
        """Ids that differ at all are different sessions, or are refused by a typed error."""
        store = self.make_store()
        taken = [session for session in ODD_IDS if _is_taken(store, session)]
        for session in taken:
            store.append(session, message(session))
        for place, session in enumerate(taken):
            expect(sorted(listed_ids(store)) == sorted(taken[place:]), "an id is listed wrongly")
            same(store.read(session), [header(session), message(session)], f"id {session!r}")
            store.delete(session)
            same(store.read(session), [], f"deleted id {session!r}")

    @needs("any_id")
    def test_any_id_is_taken(self) -> None:
        """Every id of 1 to 255 bytes of UTF-8 without NUL can be a session's."""
        store = self.make_store()
        for session in ODD_IDS:
            expect(_is_taken(store, session), f"id {session!r} is refused")

    def test_impossible_ids_are_unknown(self) -> None:
        """An id that no Header can have is refused at append, and is unknown everywhere else."""
        store = self.make_store()
        begin(store, "s1", message("x"))
        before = state(store)
        for session in IMPOSSIBLE_IDS:
            for entry in (header("s1"), message("x")):
                with refused(store, TYPED, f"a {entry.type} for the id {session[:9]!r}"):
                    store.append(session, entry)
            same(store.read(session), [], f"id {session[:9]!r}")
            store.delete(session)
        expect(state(store) == before, "an impossible id changed something")


def _is_taken(store: Store, session: str) -> bool:
    """Whether *store* lets *session* begin; where it refuses the id, that stays unknown."""
    try:
        store.append(session, header(session))
    except TYPED:
        same(store.read(session), [], f"refused id {session!r}")
        store.delete(session)
        return False
    return True
