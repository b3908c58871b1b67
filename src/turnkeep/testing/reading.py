"""Laws of what is read: it equals what was appended, in that order, and is the caller's own."""

import time
from collections.abc import Callable
from typing import Any

from turnkeep.entries import Entry, MessageEntry, ModelEntry, ReasoningEntry, SkillEntry
from turnkeep.payload import JsonObject
from turnkeep.testing.checks import Laws, begin, expect, needs, returned, same, state
from turnkeep.testing.samples import (
    EARLY,
    LATE,
    LATER,
    NUL,
    REAL,
    SURROGATES,
    WHOLE,
    deepest,
    header,
    holding,
    message,
    messages_with_bytes,
    odd_messages,
    one_of_each,
    ordered_keys,
    unknown_entries,
)


class ReadingLaws(Laws):
    """Order, exactness, times and ownership."""

    def test_entries_come_back_equal(self) -> None:
        """What is read equals what was appended, in class, fields and the types of all values."""
        returned(self.make_store(), one_of_each())

    def test_entries_come_in_the_order_of_their_appends(self) -> None:
        """The header comes first, then the entries in the order of their appends, ever so many."""
        entries: list[Entry] = [message(f"{i * 37 % 100}") for i in range(100)]
        entries[50:50] = one_of_each()
        returned(self.make_store(), entries)

    def test_equal_entries_are_kept_each(self) -> None:
        """An entry that is appended again is there again."""
        again = message("again", LATE)
        returned(self.make_store(), [again, again, ModelEntry("n"), ModelEntry("n"), again])

    def test_reading_changes_nothing(self) -> None:
        """Neither `read` nor `list` changes what the next one gives."""
        store = self.make_store()
        begin(store, "s1", *one_of_each())
        begin(store, "s2", message("x"))
        before = state(store)
        time.sleep(self.tick)
        expect(state(store) == before, "reading and listing changed what is read and listed")

    def test_messages_come_back_exactly(self) -> None:
        """A message is any JSON object, and no name or character in it means anything."""
        returned(self.make_store(), odd_messages())

    def test_base64_comes_back_exactly(self) -> None:
        """Bytes that a message carries as base64 come back as the same text."""
        returned(self.make_store(), messages_with_bytes())

    @needs("key_order")
    def test_keys_keep_their_order(self) -> None:
        """The keys of an object come back in the order that they were given in, at every depth."""
        returned(self.make_store(), [ordered_keys()])

    @needs("numbers")
    def test_numbers_come_back_exactly(self) -> None:
        """Numbers keep type and value: integers of any size, floats to the last bit, -0.0."""
        each: list[Entry] = [MessageEntry({"n": number}) for number in (1, 1.0, True)]
        returned(self.make_store(), [MessageEntry({"n": [*WHOLE, *REAL]}), *each])

    @needs("nul")
    def test_text_may_hold_nul(self) -> None:
        """NUL comes back in strings, in keys, and in the texts of all entries but the Header."""
        returned(self.make_store(), holding(NUL))

    @needs("surrogates")
    def test_text_may_hold_unpaired_surrogates(self) -> None:
        """Half a surrogate pair comes back in strings, keys and texts, but for the Header's."""
        returned(self.make_store(), holding(SURROGATES))

    @needs("deep")
    def test_messages_may_be_deep(self) -> None:
        """A message may be nested 200 levels deep, in lists or objects."""
        returned(self.make_store(), deepest())

    @needs("large")
    def test_messages_may_be_large(self) -> None:
        """A message of 4 MB comes back, in one string or in many."""
        many = MessageEntry({"blocks": ["x" * 32] * (1 << 17)})
        returned(self.make_store(), [message("ü" * (2 << 20)), many])

    @needs("unknown_entries")
    def test_unknown_entries_are_kept(self) -> None:
        """An entry of another type, or of a known type in another shape, comes back untouched."""
        returned(self.make_store(), unknown_entries())

    def test_recorded_at_never_goes_backwards(self) -> None:
        """A `recorded_at` before the session's latest is raised to it; None stays None."""
        store = self.make_store()
        given = [None, LATE, EARLY, None, LATE, LATER, EARLY, None]
        wanted = [None, LATE, LATE, None, LATE, LATER, LATER, None]
        kinds: list[Callable[[str, str | None], Entry]] = [message, ModelEntry, ReasoningEntry]
        for number, kind in enumerate([*kinds, SkillEntry]):
            session = f"s{number}"
            begin(store, session, *(kind("x", stamp) for stamp in given))
            raised = [header(session), *(kind("x", stamp) for stamp in wanted)]
            same(store.read(session), raised, "entries whose times went back")

    def test_sessions_have_times_of_their_own(self) -> None:
        """No other session's times raise a session's, nor those of a deleted one of its id."""
        store = self.make_store()
        begin(store, "s1", message("x", LATE))
        begin(store, "s2", message("x", EARLY))
        same(store.read("s2")[1:], [message("x", EARLY)], "a time before another session's")
        store.delete("s1")
        begin(store, "s1", message("x", EARLY))
        same(store.read("s1")[1:], [message("x", EARLY)], "a time before a deleted session's")

    def test_what_is_read_is_the_callers_own(self) -> None:
        """Changing what a store gave, or the dict of an entry, changes nothing in the store."""
        store = self.make_store()
        given = _blocks()
        entry = MessageEntry(given)
        begin(store, "s1", entry)
        _spoil(given)
        _spoil(entry.message)
        for _ in range(3):
            found = store.read("s1")
            for read in found:
                if isinstance(read, MessageEntry):
                    _spoil(read.message)
                    _spoil(read.message)
            found.reverse()
            found.pop()
            wanted = [header(), MessageEntry(_blocks())]
            same(store.read("s1"), wanted, "what is read after earlier results were changed")
            store.list().clear()
            same(store.list(), [header()], "what is listed after earlier results were changed")

    def test_what_was_read_stays(self) -> None:
        """What a store gave stays as it is when the session goes on, and when it is deleted."""
        store = self.make_store()
        begin(store, "s1", message("one"))
        found, listed = store.read("s1"), store.list()
        before = listed[0].updated
        time.sleep(self.tick)
        store.append("s1", message("two"))
        begin(store, "s2")
        store.delete("s1")
        same(found, [header(), message("one")], "what was read earlier")
        same(listed, [header()], "what was listed earlier")
        expect(listed[0].updated == before, "the `updated` that was listed earlier changed")


def _blocks() -> JsonObject:
    return {"role": "user", "texts": [{"text": "one"}]}


def _spoil(given: Any) -> None:
    given["texts"][0]["text"] = "changed"
    given["texts"].append("added")
    given["role"] = "changed"
