"""The contract of a store on each of ours, and whether the contract itself finds what is wrong."""

import ast
import itertools
import json
import re
import subprocess
import sys
import time
import unicodedata
import unittest
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar, cast

import pytest

from conftest import ALSO_POOLED, BACKENDS, Backend, open_shared
from turnkeep import (
    Entry,
    Header,
    InvalidArgument,
    MessageEntry,
    SQLStore,
    Store,
    UnknownEntry,
    UnknownSession,
)
from turnkeep.entries import found, recorded_at
from turnkeep.jsonl import JSONLStore
from turnkeep.testing import (
    CAPABILITIES,
    LAWS,
    Blocking,
    ContractBroken,
    StoreContract,
    run_store_contract,
)
from turnkeep.testing.checks import NEEDS

DOCS = Path(__file__).parent.parent / "docs" / "testing.md"
EXAMPLES = re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL)
F = TypeVar("F", bound="type[Faulty]")

_numbers = itertools.count()


@pytest.fixture(params=[*BACKENDS, "pooler"], scope="module")
def shared_store(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SQLStore]:
    yield from open_shared(request, tmp_path_factory)


class TestSQLStore(StoreContract):
    @pytest.fixture(autouse=True)
    def _database(self, shared_store: SQLStore) -> None:
        self.store = shared_store

    def make_store(self) -> Store:
        return self.store.with_namespace(f"law {next(_numbers)}")


@ALSO_POOLED
class TestSQLStoreInATransaction(StoreContract):
    without = {"threads"}  # noqa: RUF012 (as the docs write it)

    @pytest.fixture(autouse=True)
    def _transaction(self, server_or_file: Backend) -> Iterator[None]:
        self.store = server_or_file.store()
        with server_or_file.engine().connect() as connection:
            self.connection = connection
            yield
            connection.rollback()

    def make_store(self) -> Store:
        return self.store.with_namespace(f"law {next(_numbers)}").using(self.connection)


class TestJSONLStore(StoreContract):
    without = {"any_id"}  # noqa: RUF012

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.folder = tmp_path

    def make_store(self) -> Store:
        return JSONLStore(self.folder / f"home {next(_numbers)}")


def _documented_store() -> Callable[[], Any]:
    """The store that the documentation shows, without the call that checks it."""
    tree = ast.parse(EXAMPLES[0])
    tree.body.pop()
    names: dict[str, Any] = {}
    exec(compile(tree, str(DOCS), "exec"), names)
    return cast("Callable[[], Any]", names["DictStore"])


DictStore = _documented_store()


class Faulty:
    """The documented store; each subclass has a fault."""

    def __init__(self) -> None:
        self.good = DictStore()

    def append(self, id: str, entry: Entry) -> None:
        self.good.append(id, entry)

    def read(self, id: str) -> "list[Entry]":
        return cast("list[Entry]", self.good.read(id))

    def list(self, cwd: str | None = None) -> "list[Header]":
        return cast("list[Header]", self.good.list(cwd))

    def delete(self, id: str) -> None:
        self.good.delete(id)


class Changing(Faulty):
    """It changes the entries that it is given."""

    def change(self, entry: Entry) -> Entry:
        raise NotImplementedError

    def append(self, id: str, entry: Entry) -> None:
        super().append(id, self.change(entry) if isinstance(entry, Entry) else entry)


class Recoding(Changing):
    """It changes the text of what it is given."""

    def recode(self, text: str) -> str:
        raise NotImplementedError

    def change(self, entry: Entry) -> Entry:
        if isinstance(entry, Header):
            return entry
        raw = {"type": entry.type, **json.loads(self.recode(entry.payload))}
        if stamp := recorded_at(entry):
            raw["recorded_at"] = stamp
        return found(raw)


FAULTS: list[tuple[type[Faulty], str, str]] = []


def breaks(law: str, report: str) -> Callable[[F], F]:
    """The class breaks *law*, whose report matches *report*."""

    def mark(fault: F) -> F:
        FAULTS.append((fault, f"test_{law}", report))
        return fault

    return mark


@breaks("an_empty_store_knows_no_session", "KeyError")
class ReadsNoUnknownSession(Faulty):
    def read(self, id: str) -> list[Entry]:
        return list(self.good.sessions[id][1])


@breaks("a_header_begins_a_session", "A titlé")
class LosesTheTitle(Changing):
    def change(self, entry: Entry) -> Entry:
        return replace(entry, title="") if isinstance(entry, Header) else entry


@breaks("an_equal_header_changes_nothing", "an equal header changed the session")
class TouchesAtAnEqualHeader(Faulty):
    def append(self, id: str, entry: Entry) -> None:
        super().append(id, entry)
        self.good.sessions[id] = (datetime.now(UTC), self.good.read(id))


@breaks("an_equal_header_changes_nothing", "an equal header changed the session")
class KeepsEveryHeader(Faulty):
    def append(self, id: str, entry: Entry) -> None:
        before = self.read(id)
        super().append(id, entry)
        if before == self.read(id):
            self.good.sessions[id][1].append(entry)


@breaks("another_header_is_refused", "a header with another schema_version: is not refused")
class IgnoresAnotherHeader(Faulty):
    def append(self, id: str, entry: Entry) -> None:
        if not (isinstance(entry, Header) and self.read(id)):
            super().append(id, entry)


@breaks("another_header_is_refused", "another title: is not refused")
class ComparesNoTitles(Faulty):
    def append(self, id: str, entry: Entry) -> None:
        if isinstance(entry, Header) and self.read(id):
            first = self.read(id)[0]
            assert isinstance(first, Header)
            entry = replace(entry, title=first.title)
        super().append(id, entry)


@breaks("an_entry_needs_a_session", "raises KeyError, not UnknownSession")
class RaisesKeyError(Faulty):
    def append(self, id: str, entry: Entry) -> None:
        try:
            super().append(id, entry)
        except UnknownSession:
            raise KeyError(id) from None


@breaks("an_entry_needs_a_session", "is refused, but changed something")
class WritesAndThenRaises(Faulty):
    def append(self, id: str, entry: Entry) -> None:
        try:
            super().append(id, entry)
        except UnknownSession:
            self.good.sessions[id] = (datetime.now(UTC), [Header(**_FIELDS | {"id": id}), entry])
            raise


@breaks("an_entry_needs_a_session", "is not refused")
class BeginsByItself(Faulty):
    def append(self, id: str, entry: Entry) -> None:
        if not self.read(id) and not isinstance(entry, Header):
            super().append(id, Header(**_FIELDS | {"id": id}))
        super().append(id, entry)


@breaks("a_header_of_another_id_is_refused", "a header of another id: is not refused")
class GoesByTheHeadersId(Faulty):
    def append(self, id: str, entry: Entry) -> None:
        super().append(entry.id if isinstance(entry, Header) else id, entry)


@breaks("what_is_no_entry_is_refused", "a dict: is not refused")
class TakesDicts(Faulty):
    def append(self, id: str, entry: Any) -> None:
        super().append(id, found(entry) if isinstance(entry, dict) and entry else entry)


@breaks("what_is_no_entry_is_refused", "a NoneType: raises AttributeError")
class FailsByAccident(Faulty):
    def append(self, id: str, entry: Entry) -> None:
        entry.to_dict()
        super().append(id, entry)


@breaks("delete_removes_the_session", "a deleted session: 7 entries, 0 wanted")
class DeletesNothing(Faulty):
    def delete(self, id: str) -> None:
        pass


@breaks("deleting_an_unknown_session_does_nothing", "nobody")
class RaisesAtUnknownDeletes(Faulty):
    def delete(self, id: str) -> None:
        del self.good.sessions[id]


@breaks("deleting_an_unknown_session_does_nothing", "removed something")
class DeletesByPattern(Faulty):
    def delete(self, id: str) -> None:
        pattern = re.escape(id).replace("%", ".*").replace("_", ".")
        for session in [*self.good.sessions]:
            if re.fullmatch(pattern, session):
                super().delete(session)


@breaks("a_deleted_id_can_be_used_again", "a new session of a deleted one's id: 7 entries, 1")
class HidesWhatItDeletes(Faulty):
    def __init__(self) -> None:
        super().__init__()
        self.hidden: dict[str, list[Entry]] = {}

    def append(self, id: str, entry: Entry) -> None:
        super().append(id, entry)
        self.good.sessions[id][1].extend(self.hidden.pop(id, []))

    def delete(self, id: str) -> None:
        self.hidden[id] = self.read(id)[1:]
        super().delete(id)


@breaks("sessions_share_nothing", "a session beside a deleted one")
class DeletesSharedMessages(Faulty):
    def delete(self, id: str) -> None:
        gone = {*self.read(id)[1:]}
        super().delete(id)
        for session, (updated, entries) in self.good.sessions.items():
            kept = [entry for entry in entries if entry not in gone]
            self.good.sessions[session] = (updated, kept)


class FoldsIds(Faulty):
    def fold(self, id: str) -> str:
        raise NotImplementedError

    def append(self, id: str, entry: Entry) -> None:
        name = self.fold(id)
        super().append(name, replace(entry, id=name) if isinstance(entry, Header) else entry)

    def read(self, id: str) -> list[Entry]:
        return super().read(self.fold(id))

    def delete(self, id: str) -> None:
        super().delete(self.fold(id))


@breaks("odd_ids_are_distinct_or_refused", "an id is listed wrongly")
class FoldsCase(FoldsIds):
    def fold(self, id: str) -> str:
        return id.casefold()


@breaks("odd_ids_are_distinct_or_refused", "an id is listed wrongly")
class ComposesIds(FoldsIds):
    def fold(self, id: str) -> str:
        return unicodedata.normalize("NFC", id)


@breaks("odd_ids_are_distinct_or_refused", "an id is listed wrongly")
class StripsIds(FoldsIds):
    def fold(self, id: str) -> str:
        return id.strip() or id


@breaks("odd_ids_are_distinct_or_refused", "an id is listed wrongly")
class CutsIds(FoldsIds):
    def fold(self, id: str) -> str:
        return id[:200]


@breaks("any_id_is_taken", "is refused")
class TakesPlainIds(Faulty):
    def append(self, id: str, entry: Entry) -> None:
        if not re.fullmatch(r"[\w.-]+", id, re.ASCII):
            raise InvalidArgument("id", "is not plain")
        super().append(id, entry)


@breaks("impossible_ids_are_unknown", "is impossible")
class FailsAtImpossibleIds(Faulty):
    def read(self, id: str) -> list[Entry]:
        if not id or "\0" in id:
            raise InvalidArgument("id", "is impossible")
        return super().read(id)


@breaks("entries_come_back_equal", "Hello")
class Shouts(Recoding):
    def recode(self, text: str) -> str:
        return text.replace("Hello", "HELLO")


@breaks("entries_come_back_equal", "2026-11-30T12:00:01")
class LosesTimes(Changing):
    def change(self, entry: Entry) -> Entry:
        if recorded_at(entry) is None:
            return entry
        return found(
            {name: value for name, value in entry.to_dict().items() if name != "recorded_at"}
        )


@breaks("entries_come_in_the_order_of_their_appends", "they differ at")
class OrdersByTime(Faulty):
    def read(self, id: str) -> list[Entry]:
        return sorted(super().read(id), key=lambda entry: recorded_at(entry) or "")


@breaks("entries_come_in_the_order_of_their_appends", "100 entries, 107 wanted")
class ReadsOnePage(Faulty):
    def read(self, id: str) -> list[Entry]:
        return super().read(id)[:100]


@breaks("equal_entries_are_kept_each", "4 entries, 6 wanted")
class KeepsEntriesOnce(Faulty):
    def append(self, id: str, entry: Entry) -> None:
        if self.read(id)[-1:] != [entry]:
            super().append(id, entry)


@breaks("reading_changes_nothing", "reading and listing changed")
class TouchesAtReads(Faulty):
    def read(self, id: str) -> list[Entry]:
        if id in self.good.sessions:
            self.good.sessions[id] = (datetime.now(UTC), super().read(id))
        return super().read(id)


@breaks("messages_come_back_exactly", "None")
class DropsNulls(Recoding):
    def recode(self, text: str) -> str:
        return re.sub(r"null,", "", text)


@breaks("messages_come_back_exactly", "they differ at")
class EndsLinesItsOwnWay(Recoding):
    def recode(self, text: str) -> str:
        return text.replace("\\r\\n", "\\n")


@breaks("base64_comes_back_exactly", "OikK")
class TidiesBase64(Recoding):
    def recode(self, text: str) -> str:
        return text.replace("OikK\\n", "OikK")


@breaks("keys_keep_their_order", "they differ at 1")
class SortsKeys(Recoding):
    def recode(self, text: str) -> str:
        return json.dumps(_sorted(json.loads(text), str))


@breaks("keys_keep_their_order", "they differ at 1")
class SortsKeysByLength(Recoding):
    def recode(self, text: str) -> str:
        return json.dumps(_sorted(json.loads(text), lambda key: (len(key), key)))


@breaks("numbers_come_back_exactly", "they differ at 1")
class ReadsIntegersOf64Bits(Recoding):
    def recode(self, text: str) -> str:
        def whole(digits: str) -> float:
            return int(digits) if -(2**63) <= int(digits) < 2**63 else float(digits[:300])

        return json.dumps(json.loads(text, parse_int=whole))


@breaks("numbers_come_back_exactly", "they differ at 1")
class WritesWholeFloatsAsIntegers(Recoding):
    def recode(self, text: str) -> str:
        def real(digits: str) -> float:
            return int(float(digits)) if float(digits).is_integer() else float(digits)

        return json.dumps(json.loads(text, parse_float=real))


@breaks("text_may_hold_nul", "they differ at 1")
class StripsNul(Recoding):
    def recode(self, text: str) -> str:
        return re.sub(r"(?<!\\)((?:\\\\)*)\\u0000", r"\1", text)


@breaks("text_may_hold_unpaired_surrogates", "they differ at 1")
class ReplacesSurrogates(Recoding):
    def recode(self, text: str) -> str:
        return json.dumps(_replaced(json.loads(text)))


@breaks("messages_may_be_deep", "RecursionError")
class IsShallow(Changing):
    def change(self, entry: Entry) -> Entry:
        if isinstance(entry, MessageEntry) and re.search(
            r"[\[{]{50}|(\{\"k\":){50}", entry.payload
        ):
            raise RecursionError
        return entry


@breaks("messages_may_be_large", "they differ at 1")
class CutsText(Recoding):
    def recode(self, text: str) -> str:
        return re.sub(r"(ü{1000})ü+", r"\1", text)


@breaks("unknown_entries_are_kept", "1 entries, 12 wanted")
class DropsUnknownEntries(Faulty):
    def append(self, id: str, entry: Entry) -> None:
        if not isinstance(entry, UnknownEntry):
            super().append(id, entry)


@breaks("recorded_at_never_goes_backwards", "12:00:01")
class KeepsTimes(Faulty):
    def append(self, id: str, entry: Entry) -> None:
        super().append(id, entry)
        if isinstance(entry, Entry) and not isinstance(entry, Header):
            self.good.sessions[id][1][-1] = entry


@breaks("recorded_at_never_goes_backwards", "differ at 1")
class StampsWhatHasNoTime(Changing):
    def change(self, entry: Entry) -> Entry:
        if isinstance(entry, Header) or recorded_at(entry):
            return entry
        return found({**entry.to_dict(), "recorded_at": "2026-11-30T12:00:00.000Z"})


@breaks("sessions_have_times_of_their_own", "a time before another session's")
class HasOneClock(Changing):
    latest = ""

    def change(self, entry: Entry) -> Entry:
        if stamp := recorded_at(entry):
            self.latest = max(self.latest, stamp)
            return found({**entry.to_dict(), "recorded_at": self.latest})
        return entry


@breaks("sessions_have_times_of_their_own", "a time before a deleted session's")
class RemembersTimes(Faulty):
    def __init__(self) -> None:
        super().__init__()
        self.latest: dict[str, str] = {}

    def append(self, id: str, entry: Entry) -> None:
        if stamp := recorded_at(entry):
            self.latest[id] = max(self.latest.get(id, ""), stamp)
            entry = found({**entry.to_dict(), "recorded_at": self.latest[id]})
        super().append(id, entry)


@breaks("what_is_read_is_the_callers_own", "after earlier results were changed")
class HandsOutItsDicts(Faulty):
    def __init__(self) -> None:
        super().__init__()
        self.decoded: dict[str, Any] = {}

    def read(self, id: str) -> list[Entry]:
        return [self.cached(entry) for entry in super().read(id)]

    def cached(self, entry: Entry) -> Entry:
        if not isinstance(entry, MessageEntry):
            return entry
        decoded = self.decoded.setdefault(entry.payload, entry.message)
        object.__setattr__(entry, "_decoded", decoded)
        return entry


@breaks("what_is_read_is_the_callers_own", "after earlier results were changed")
class HandsOutItsList(Faulty):
    def read(self, id: str) -> list[Entry]:
        return cast("list[Entry]", self.good.sessions.get(id, (None, []))[1])


@breaks("what_was_read_stays", "what was read earlier")
class ReadsLive(Faulty):
    def __init__(self) -> None:
        super().__init__()
        self.live: dict[str, list[Entry]] = {}

    def read(self, id: str) -> list[Entry]:
        self.live.setdefault(id, [])[:] = super().read(id)
        return self.live[id]

    def append(self, id: str, entry: Entry) -> None:
        super().append(id, entry)
        self.read(id)


@breaks("the_list_has_each_session_once", "more than once")
class ListsEntries(Faulty):
    def list(self, cwd: str | None = None) -> list[Header]:
        headers = super().list(cwd)
        return [header for header in headers for _ in self.read(header.id)]


@breaks("the_list_has_each_session_once", "they differ at 0")
class ListsNoEmptySessions(Faulty):
    def list(self, cwd: str | None = None) -> list[Header]:
        return [header for header in super().list(cwd) if len(self.read(header.id)) > 1]


@breaks("the_list_filters_by_exact_cwd", r"list\('/'\)")
class FiltersByPrefix(Faulty):
    def list(self, cwd: str | None = None) -> list[Header]:
        return [header for header in super().list() if header.cwd.startswith(cwd or "")]


@breaks("the_list_filters_by_exact_cwd", "where no session is")
class ForgetsToFilter(Faulty):
    def list(self, cwd: str | None = None) -> list[Header]:
        return super().list(cwd) or super().list()


@breaks("the_list_filters_by_exact_cwd", r"list\(''\)")
class TakesEmptyForAll(Faulty):
    def list(self, cwd: str | None = None) -> list[Header]:
        return super().list(cwd or None)


class Stamping(Faulty):
    def stamp(self, header: Header) -> datetime | None:
        raise NotImplementedError

    def list(self, cwd: str | None = None) -> list[Header]:
        return [replace(header, updated=self.stamp(header)) for header in super().list(cwd)]


@breaks("an_append_moves_updated", "not a datetime with a zone")
class SaysNoUpdated(Stamping):
    def stamp(self, header: Header) -> datetime | None:  # noqa: ARG002
        return None


@breaks("an_append_moves_updated", "not a datetime with a zone")
class SaysNoZone(Stamping):
    def stamp(self, header: Header) -> datetime | None:
        assert header.updated is not None
        return header.updated.replace(tzinfo=None)


@breaks("an_append_moves_updated", "did not move `updated`")
class SaysWhenItBegan(Stamping):
    def stamp(self, header: Header) -> datetime | None:
        return datetime.fromisoformat(header.created_at)


@breaks("the_last_changed_is_listed_first", r"not \['s3', 's1', 's2'\]")
class ListsAsBegun(Faulty):
    def list(self, cwd: str | None = None) -> list[Header]:
        places = [*self.good.sessions]
        return sorted(super().list(cwd), key=lambda header: places.index(header.id))


@breaks("the_last_changed_is_listed_first", r"list\('/app'\)")
class SortsAllButThoseOfOneCwd(Faulty):
    def list(self, cwd: str | None = None) -> list[Header]:
        return super().list(cwd) if cwd is None else super().list(cwd)[::-1]


@breaks("the_list_is_in_a_total_order", "the list is not in order")
class ListsTiesAsBegun(Faulty):
    def list(self, cwd: str | None = None) -> list[Header]:
        now = datetime.now(UTC)
        places = [*self.good.sessions]
        ties = [replace(header, updated=now) for header in super().list(cwd)]
        return sorted(ties, key=lambda header: places.index(header.id))


@breaks("threads_append_to_one_session", "120 appends made")
class ReadsAndThenWrites(Faulty):
    def append(self, id: str, entry: Entry) -> None:
        before = self.read(id)
        time.sleep(0.001)
        super().append(id, entry)
        if not isinstance(entry, Header):
            self.good.sessions[id] = (datetime.now(UTC), [*before, self.read(id)[-1]])


@breaks("threads_begin_one_session", "KeyError")
class LooksAndThenInserts(Faulty):
    def append(self, id: str, entry: Entry) -> None:
        is_new = not self.read(id)
        time.sleep(0.001)
        if is_new and self.read(id):
            raise KeyError("there is such a row")
        super().append(id, entry)


@breaks("one_of_many_headers_begins_a_session", "of 8 different headers began one session")
class LooksAndThenOverwrites(Faulty):
    def append(self, id: str, entry: Entry) -> None:
        is_new = not self.read(id)
        time.sleep(0.001)
        if is_new:
            self.good.sessions.pop(id, None)
        super().append(id, entry)


@breaks("a_readers_prefix_never_changes", "what a reader had seen")
class NumbersBeforeItWrites(Faulty):
    def __init__(self) -> None:
        super().__init__()
        self.numbers = itertools.count()
        self.rows: dict[int, Entry] = {}

    def append(self, id: str, entry: Entry) -> None:  # noqa: ARG002
        number = next(self.numbers)
        time.sleep(0.003 if number % 2 else 0.0005)
        self.rows[number] = entry

    def read(self, id: str) -> list[Entry]:  # noqa: ARG002
        rows = dict(self.rows)
        return [rows[number] for number in sorted(rows)]


@breaks("deletes_and_appends_may_race", "of a session: |SessionExists")
class ChecksAndThenWrites(Faulty):
    def append(self, id: str, entry: Entry) -> None:
        if isinstance(entry, Header):
            super().append(id, entry)
            return
        if not self.read(id):
            raise UnknownSession(id)
        time.sleep(0.002)
        self.good.sessions.setdefault(id, (datetime.now(UTC), []))[1].append(entry)

    def delete(self, id: str) -> None:
        time.sleep(0.001)
        super().delete(id)


_FIELDS: dict[str, Any] = {"cwd": "/app", "created_at": "2026-11-30T12:00:00Z", "model": "m"}


def _sorted(value: Any, by: Callable[[str], Any]) -> Any:
    if isinstance(value, dict):
        return {key: _sorted(value[key], by) for key in sorted(value, key=by)}
    return [_sorted(item, by) for item in value] if isinstance(value, list) else value


def _replaced(value: Any) -> Any:
    """*value* with a question mark for each unpaired surrogate."""
    if isinstance(value, dict):
        return {_replaced(key): _replaced(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_replaced(item) for item in value]
    return value.encode(errors="replace").decode() if isinstance(value, str) else value


@pytest.mark.parametrize(
    ("fault", "law", "report"), FAULTS, ids=[fault.__name__ for fault, _, _ in FAULTS]
)
def test_the_contract_finds_the_fault(fault: type[Faulty], law: str, report: str) -> None:
    class Contract(StoreContract):
        def make_store(self) -> Store:
            return fault()

    said = ""
    try:
        getattr(Contract(), law)()
    except Exception as error:  # noqa: BLE001 (any is a report)
        said = f"{type(error).__name__}: {error}"
    assert re.search(report, said)


def test_each_law_has_a_fault_that_it_finds() -> None:
    assert {law for _, law, _ in FAULTS} == set(LAWS)


def test_each_law_is_said_in_its_docstring() -> None:
    assert all(text.strip().endswith(".") for text in LAWS.values())


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_a_store_may_be_without_a_capability(capability: str) -> None:
    laws = {law for law, needed in NEEDS.items() if needed == capability}
    fault = next(fault for fault, law, _ in FAULTS if law in laws)
    run_store_contract(fault, without={capability}, tick=0.001)

    class Contract(StoreContract):
        without = {capability}  # noqa: RUF012

        def make_store(self) -> Store:
            return fault()

    assert {law for law in LAWS if getattr(Contract, law) is None} == laws


def test_a_capability_of_no_name_is_refused() -> None:
    for without in ({"thread"}, "threads"):
        with pytest.raises(ValueError, match="thread"):
            run_store_contract(DictStore, without=without)
    with pytest.raises(ValueError, match="thread"):
        type("Contract", (StoreContract,), {"without": ["thread"]})


def test_a_report_names_all_that_is_broken() -> None:
    class Broken(SortsKeys):
        def delete(self, id: str) -> None:  # noqa: ARG002
            raise OSError("no space")

    with pytest.raises(ContractBroken) as caught:
        run_store_contract(Broken, without=set(CAPABILITIES) - {"key_order"}, tick=0.001)
    broken = dict(zip(caught.value.laws, caught.value.exceptions, strict=True))
    assert isinstance(broken["test_keys_keep_their_order"], AssertionError)
    assert isinstance(broken["test_delete_removes_the_session"], OSError)
    assert "test_another_header_is_refused" not in broken
    for law, error in broken.items():
        assert law in str(caught.value)
        assert error.__notes__ == [f"{law}: {LAWS[law]}"]
    rest = caught.value.subgroup(OSError)
    assert rest is not None
    assert len(rest.exceptions) < len(broken)


def test_the_examples_in_the_docs_pass(tmp_path: Path) -> None:
    (tmp_path / "test_docs.py").write_text("\n\n".join(EXAMPLES))
    # The class of tests in them is the contract on SQLite once more: a few laws show that it runs.
    options = ["-q", "-W", "error", "-p", "no:cacheprovider", "-k", "header"]
    command = [sys.executable, "-m", "pytest", *options, "."]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    chosen = sum("header" in law for law in LAWS)
    assert f"{chosen} passed, {len(LAWS) - chosen} deselected" in done.stdout, done.stdout


def test_the_documented_capabilities_are_those_that_there_are() -> None:
    rows = re.findall(r"^\| `(\w+)` \|", DOCS.read_text(), re.MULTILINE)
    assert rows == [*CAPABILITIES]


def test_unittest_runs_the_contract() -> None:
    class Contract(StoreContract, unittest.TestCase):
        without = {"threads", "large"}  # noqa: RUF012
        tick = 0.001

        def make_store(self) -> Store:
            return cast("Store", SortsKeys())

    result = unittest.TestResult()
    unittest.TestLoader().loadTestsFromTestCase(Contract).run(result)
    assert result.testsRun == len(LAWS) - 6
    assert [test.id().split(".")[-1] for test, _ in result.failures] == [
        "test_keys_keep_their_order"
    ]
    assert not result.errors


def test_neither_pytest_nor_asserts_are_needed() -> None:
    program = (
        "import sys, turnkeep.testing as t\n"
        "class Store:\n"
        "    def read(self, id): return [1]\n"
        "assert False, 'asserts are on'\n"
        "try: t.run_store_contract(Store)\n"
        "except t.ContractBroken as broken: print(len(broken.laws), 'pytest' in sys.modules)\n"
    )
    command = [sys.executable, "-O", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(len(LAWS)), "False"]


class AsyncStore:
    """The documented store, with methods to be awaited, and besides what a store may have."""

    name = "async"

    def __init__(self) -> None:
        self.good = DictStore()
        self.is_closed = False

    async def tail(self, id: str, count: int, *, skip: int = 0) -> list[Entry]:
        return cast("list[Entry]", self.good.read(id)[-count - skip :][:count])

    def another(self) -> "AsyncStore":
        return AsyncStore()

    async def append(self, id: str, entry: Entry, *, key: str = "") -> str:
        self.good.append(id, entry)
        return key

    async def close(self) -> None:
        self.is_closed = True


def test_blocking_passes_all_through_to_an_async_store() -> None:
    async def make() -> AsyncStore:
        return made

    made = AsyncStore()
    with Blocking(make) as store:
        header = Header(**_FIELDS | {"id": "s1"})
        assert store.append("s1", header, key="k") == "k"
        assert store.tail("s1", 1, skip=0) == [header]
        assert store.name == "async"
        other = store.another()
        assert isinstance(other, Blocking)
        assert other.tail("s1", 1) == []
        other.close()
        assert store.tail("s1", 1) == [header]
        with pytest.raises(UnknownSession):
            store.append("s2", MessageEntry({}))
        with pytest.raises(AttributeError):
            store.missing()
    assert made.is_closed


def test_blocking_raises_what_making_the_store_raises() -> None:
    def make() -> object:
        raise InvalidArgument("url", "is none")

    with pytest.raises(InvalidArgument, match="url"):
        Blocking(make)
