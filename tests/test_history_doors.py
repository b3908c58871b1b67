"""The doors of a history: what comes in is valid or refused, and what goes out comes in again."""

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from histories import full, histories, user
from turnkeep.errors import HistoryError
from turnkeep.history import Attachment, History, Message, Thinking, Tokens

PAGE = Path(__file__).parents[1] / "docs" / "history-format.md"
REFERENCE = {"mime": "", "filename": "", "file": "attachments/x", "sha256": "0" * 64}


def dump(value: Any) -> str:
    return json.dumps(value, allow_nan=False)


def one(**fields: Any) -> dict[str, Any]:
    """The dict of a history of one message, in which *fields* differ."""
    return {"version": 1, "messages": [{"id": "1", "role": "assistant", "content": ""} | fields]}


def attached(**fields: Any) -> dict[str, Any]:
    """The dict of a history of one attachment."""
    return one(attachments=[{"mime": "", "filename": ""} | fields])


def called(arguments: Any) -> dict[str, Any]:
    """The dict of a history of one tool call."""
    return one(tool_calls=[{"id": "c", "name": "f", "arguments": arguments}])


def refused(raw: Any) -> str:
    """What the doors say of *raw*: the same, as a dict and as text, where it has one."""
    with pytest.raises(HistoryError) as caught:
        History.from_dict(raw)
    said = str(caught.value)
    try:
        text = dump(raw)
    except (TypeError, ValueError):
        return said
    if repr(json.loads(text)) != repr(raw):  # tuples and other keys have become JSON
        return said
    for form in (text, text.encode()):
        with pytest.raises(HistoryError) as again:
            History.parse(form)
        assert str(again.value) == said
    return said


# What goes out comes in


@given(histories())
def test_each_form_gives_back_the_same_value(history: History) -> None:
    text = history.to_json()
    raw = history.to_dict()
    assert History.parse(text) == History.parse(text.encode()) == History.from_dict(raw) == history
    assert History.parse(text).to_json() == text
    assert History.parse(dump(raw)) == history
    assert json.loads(text) == raw


@given(histories())
def test_the_text_is_pretty_printed_and_escapes_no_more_than_unpaired_surrogates(
    history: History,
) -> None:
    expected = json.dumps(history.to_dict(), indent=2, ensure_ascii=False)
    expected = re.sub("[\ud800-\udfff]", lambda found: f"\\u{ord(found[0]):04x}", expected)
    assert floats_as_python_writes_them(history.to_json()) == expected


def floats_as_python_writes_them(text: str) -> str:
    """The JSON *text* with 1e16 as 1e+16, but not where it stands in a string."""

    def spelt(found: re.Match[str]) -> str:
        return repr(float(found[0])) if re.fullmatch("-?[0-9]+[.e].*", found[0]) else found[0]

    return re.sub(r'"(?:[^"\\]|\\.)*"|-?[0-9][0-9.e+-]*', spelt, text)


def test_one_message_with_an_unpaired_surrogate_leaves_all_else_readable() -> None:
    text = History(messages=(user("1", "\ud83d ü"), user("2", "ö \U0001f600 \u2028"))).to_json()
    assert "\\ud83d ü" in text
    assert "ö \U0001f600 \u2028" in text


@given(histories(), st.data())
def test_a_dict_that_went_out_or_came_in_is_shared_with_nobody(
    history: History, data: st.DataObject
) -> None:
    raw = history.to_dict()
    before = history.to_json()
    again = History.from_dict(raw)
    todo: list[Any] = [raw]
    while todo:
        part = todo.pop()
        todo += [
            v
            for v in (part.values() if isinstance(part, dict) else part)
            if isinstance(v, dict | list)
        ]
        part.clear()
    assert raw == {}
    assert history.to_json() == again.to_json() == before


def test_a_message_writes_its_fields_in_order_and_leaves_out_what_is_absent() -> None:
    raw: Any = full().to_dict()
    assert list(raw) == ["version", "messages"]
    assert list(raw["messages"][0]) == ["id", "role", "content", "attachments"]
    assert raw["messages"][1] == {
        "id": "2",
        "role": "user",
        "content": "a skill",
        "kind": "reference",
    }
    third = raw["messages"][2]
    assert list(third) == [
        "id",
        "role",
        "content",
        "tool_calls",
        "model_id",
        "thinking",
        "tokens",
    ]
    assert list(third["tool_calls"][0]) == ["id", "name", "arguments"]
    assert list(third["tool_calls"][0]["arguments"]) == ["path", "b", "aa"]
    assert third["tokens"] == {"input": 12, "output": 3, "cached": 0, "thinking": 2}
    assert list(raw["messages"][3]) == ["id", "role", "content", "attachments", "tool_call_id"]
    assert raw["messages"][3]["attachments"][1] == {
        "mime": "text/plain",
        "filename": "empty",
        "data": "",
    }
    assert raw["messages"][5] == {
        "id": "6",
        "role": "assistant",
        "content": "",
        "thinking": {},
        "tokens": {},
    }
    assert History().to_json() == '{\n  "version": 1,\n  "messages": []\n}'


def test_attachments_go_out_inline_or_by_file() -> None:
    picture = Attachment("image/png", "a.png", b"\xfb\xff\xfe")
    history = History(messages=(user("1", attachments=(picture,)),))
    inline: Any = history.to_dict()
    by_file: Any = history.to_dict(inline_attachments=False)
    assert inline["messages"][0]["attachments"] == [
        {"mime": "image/png", "filename": "a.png", "data": "+//+"}
    ]
    assert by_file["messages"][0]["attachments"] == [
        {
            "mime": "image/png",
            "filename": "a.png",
            "file": f"attachments/{picture.digest}.png",
            "sha256": picture.digest,
        }
    ]


# What is refused, in which order, and where


def test_the_checks_are_made_in_their_order() -> None:
    """Each input has one fault less than the one before, the first that is looked for."""
    twin = {"id": "2", "role": "user", "content": ""}
    orphan = {"id": "3", "role": "tool", "content": "", "tool_call_id": "c"}
    caller = {
        "id": "4",
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "c", "name": "f", "arguments": {}}],
    }
    messages: list[Any] = [5, {"id": ""}, orphan, twin, twin, caller]
    steps: list[tuple[Any, str]] = [
        ([], "history: is a JSON object (a dict), not list"),
        ({"messages": 5}, "version: is missing: this library writes 1"),
        ({"version": None, "messages": 5}, "version: is missing: this library writes 1"),
        (
            {"version": 7, "messages": 5},
            "version: 7 is newer than this library understands (1): upgrade turnkeep to read it",
        ),
        ({"version": "1", "messages": 5}, "version: is the whole number 1"),
        ({"version": 1}, "messages: is a list, not NoneType"),
        ({"version": 1, "messages": {}}, "messages: is a list, not dict"),
        ({"version": 1, "messages": messages}, "messages[0]: is a JSON object (a dict), not int"),
        ({"version": 1, "messages": messages[1:]}, "messages[0].role: is missing"),
        ({"version": 1, "messages": messages[2:]}, "messages[2].id: is the id of messages[1] too"),
        (
            {"version": 1, "messages": [*messages[2:4], caller]},
            "messages[0].tool_call_id: no assistant message before it made this call",
        ),
    ]
    for raw, said in steps:
        assert refused(raw) == said
    accepted: list[Any] = [twin, caller, {"id": "5", "role": "user", "content": ""}, orphan]
    assert len(History.from_dict({"version": 1, "messages": accepted}).messages) == 4


@pytest.mark.parametrize("version", [True, 1.0, "1", 0, -1, [1], {"1": 1}, False, 0.0])
def test_only_the_whole_number_is_a_version(version: Any) -> None:
    assert refused({"version": version, "messages": []}).startswith("version: ")


def test_a_version_of_any_size_is_newer() -> None:
    assert "18446744073709551615 is newer" in refused({"version": 2**64 - 1, "messages": []})
    assert "of more than 64 bits is newer" in refused({"version": 10**4000, "messages": []})
    assert "of more than 64 bits is newer" in refused({"version": 10**5000, "messages": []})
    for literal in ("9" * 5000, "1" + "0" * 400_000):
        with pytest.raises(HistoryError, match=r"version: of more than 64 bits is newer"):
            History.parse(f'{{"version": {literal}, "messages": []}}')


REFUSED: list[tuple[Any, str]] = [
    (one(id=None), "messages[0].id: "),
    (one(id=""), "messages[0].id: "),
    (one(role=None), "messages[0].role: "),
    (one(role="system"), "messages[0].role: "),
    (one(content=None), "messages[0].content: "),
    (one(content=["text"]), "messages[0].content: "),
    (one(kind=None), "messages[0].kind: "),
    (one(kind="developer"), "messages[0].kind: "),
    (one(attachments=None), "messages[0].attachments: "),
    (one(attachments=()), "messages[0].attachments: "),
    (one(attachments=[[]]), "messages[0].attachments[0]: "),
    (one(tool_calls=None), "messages[0].tool_calls: "),
    (one(tool_calls={}), "messages[0].tool_calls: "),
    (one(tool_calls=["c"]), "messages[0].tool_calls[0]: "),
    (one(tool_calls=[{"id": "c", "name": "f"}]), "messages[0].tool_calls[0].arguments: is missing"),
    (one(tool_calls=[{"id": 1, "name": "f", "arguments": {}}]), "messages[0].tool_calls[0].id: "),
    (called(None), "messages[0].tool_calls[0].arguments: "),
    (called("{}"), "messages[0].tool_calls[0].arguments: "),
    (called({"x": [1, (2,)]}), "messages[0].tool_calls[0].arguments.x[1]: "),
    (called({"x": {"a b": b""}}), 'messages[0].tool_calls[0].arguments.x["a b"]: '),
    (called({"x": float("nan")}), "messages[0].tool_calls[0].arguments.x: "),
    (called({1: 2}), "messages[0].tool_calls[0].arguments: a key "),
    (
        one(role="user", tool_calls=[{"id": "c", "name": "f", "arguments": {}}]),
        "messages[0].tool_calls: ",
    ),
    (one(role="tool"), "messages[0].tool_call_id: "),
    (one(role="tool", tool_call_id=None), "messages[0].tool_call_id: "),
    (one(tool_call_id="c"), "messages[0].tool_call_id: "),
    (one(tool_call_id=5), "messages[0].tool_call_id: "),
    (one(model_id=5), "messages[0].model_id: "),
    (one(thinking="hm"), "messages[0].thinking: "),
    (one(thinking=[]), "messages[0].thinking: "),
    (one(thinking={"text": 5}), "messages[0].thinking.text: "),
    (one(thinking={"signature": []}), "messages[0].thinking.signature: "),
    (one(tokens=5), "messages[0].tokens: "),
    (one(tokens={"input": -1}), "messages[0].tokens.input: "),
    (one(tokens={"output": True}), "messages[0].tokens.output: "),
    (one(tokens={"cached": 1.0}), "messages[0].tokens.cached: "),
    (one(tokens={"cache_creation": "1"}), "messages[0].tokens.cache_creation: "),
    (one(tokens={"thinking": 10**4300}), "messages[0].tokens.thinking: "),
    (attached(), "messages[0].attachments[0]: has exactly one of data and file"),
    (attached(data="", file="attachments/x"), "messages[0].attachments[0]: has exactly one"),
    (attached(data="", mime=None), "messages[0].attachments[0].mime: "),
    (attached(data="", filename=5), "messages[0].attachments[0].filename: "),
    (
        one(attachments=[{"mime": "", "data": ""}]),
        "messages[0].attachments[0].filename: is missing",
    ),
    (attached(data=None), "messages[0].attachments[0].data: "),
    (attached(data=b""), "messages[0].attachments[0].data: "),
    (attached(data="", sha256=None), "messages[0].attachments[0].sha256: "),
    (attached(data="", sha256="0" * 64), "messages[0].attachments[0].sha256: "),
    (one(attachments=[REFERENCE]), "messages[0].attachments[0].file: "),
    ({"version": 1, "messages": [], 5: 5}, "history: a key "),
    (one() | {"messages": [{5: 5}]}, "messages[0]: a key "),
]


@pytest.mark.parametrize(("raw", "place"), REFUSED)
def test_a_known_key_of_the_wrong_type_is_refused_with_its_place(raw: Any, place: str) -> None:
    assert refused(raw).startswith(place)


@pytest.mark.parametrize("missing", ["id", "role", "content"])
def test_a_required_key_is_missed(missing: str) -> None:
    raw = one()
    del raw["messages"][0][missing]
    assert refused(raw) == f"messages[0].{missing}: is missing"


@pytest.mark.parametrize(
    "data",
    [
        "-__-", "+//", "+//+=", "+//+====", "=", "====", "A", "AA", "AA=", "AAA", "AB==", "AAB=",
        "AA==AA==", "AAAA\n", " AAAA", "AA AA", "AA\r\nAA", "\ud83d", "ÄÄÄÄ", "\0\0\0\0", "A===",
    ],
)  # fmt: skip
def test_base64_of_any_form_but_the_one_is_refused(data: str) -> None:
    assert refused(attached(data=data)).startswith("messages[0].attachments[0].data: ")
    assert data not in refused(attached(data=data)) or len(data) < 2


def test_a_digest_beside_inline_data_is_checked() -> None:
    empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    assert History.from_dict(attached(data="", sha256=empty)) == History.from_dict(
        attached(data="")
    )
    assert "sha256" in refused(attached(data="", sha256=empty.upper()))


def test_null_is_absent_where_the_default_is_none() -> None:
    raw = one(tool_call_id=None, model_id=None, thinking=None, tokens=None)
    assert History.from_dict(raw) == History.from_dict(one())
    made = History.from_dict(
        one(thinking={"text": None, "signature": None}, tokens=dict.fromkeys(["input", "cached"]))
    ).messages[0]
    assert (made.thinking, made.tokens) == (Thinking(), Tokens())


def test_unknown_keys_are_ignored_at_every_level_whatever_they_hold() -> None:
    raw: Any = full().to_dict()
    deep: Any = []
    for _ in range(400):
        deep = [deep]
    todo: list[Any] = [raw, *raw["messages"]]
    for message in raw["messages"]:
        todo += message.get("attachments", []) + message.get("tool_calls", [])
        todo += [message[key] for key in ("thinking", "tokens") if key in message]
    for part in todo:
        part["unknown"] = {"id": None, "deep": deep, "": [10**31, "\ud83d"]}
    assert History.from_dict(raw) == History.parse(dump(raw)) == full()
    numbers = dump(raw).replace(str(10**31), "1e999, -1e999, " + "9" * 5000)
    assert numbers != dump(raw)
    assert History.parse(numbers) == full()


# What is no JSON


def text_of(arguments: str) -> str:
    return dump(called({"x": "here"})).replace('"here"', arguments)


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity"])
def test_a_bare_word_for_a_number_is_refused_anywhere_with_its_place(word: str) -> None:
    with pytest.raises(HistoryError, match=r"^history is not valid JSON: .*arguments\.x\[0\]: "):
        History.parse(text_of(f"[{word}]"))
    for text in (f'{{"version": 1, "messages": [], "x": {word}}}', word):
        with pytest.raises(HistoryError, match=r"^history is not valid JSON: "):
            History.parse(text)
    with pytest.raises(HistoryError, match=rf"^history is not valid JSON: {word} is not JSON"):
        History.parse(f'{{"version": 1, "messages": [], "x": {word}, "x": 1}}')


@pytest.mark.parametrize("number", ["1e999", "-1e999", "9" * 4301, "-" + "9" * 5000])
def test_a_number_that_is_too_large_is_refused_with_its_place(number: str) -> None:
    with pytest.raises(HistoryError, match=r"^messages\[0\]\.tool_calls\[0\]\.arguments\.x\[1\]: "):
        History.parse(text_of(f"[0, {number}]"))
    raw = dump(one(tokens={"input": 5})).replace("5", number)
    with pytest.raises(HistoryError, match=r"^messages\[0\]\.tokens\.input: "):
        History.parse(raw)


def test_a_number_of_every_legal_size_is_exact() -> None:
    for number in ("9" * 4300, "-" + "9" * 4300, "-0.0", "1e16", "5e-324", "2512292042121000001"):
        text = History.parse(text_of(number)).to_json()
        assert History.parse(text) == History.parse(text_of(number))
        (call,) = History.parse(text).messages[0].tool_calls
        assert repr(call.arguments["x"]) == repr(json.loads(number))


BROKEN = [
    "", " ", "{", "}", "[", "nul", "{'version': 1}", "{version: 1}", '{"version": 1, "messages": [',
    '{"version": 1, "messages": [],}', '{"version": 1, "messages": []} x', '"\x00"', '"\n"',
    '"\\x"', "01", "1.", "+1", ".5", "\ufeff", "\ufeff\ufeff{}", "\x00", "\xa0{}", "// x\n{}",
    "[" * 100_000, '{"x":' * 100_000, "[" * 100_000 + "]" * 100_000,
]  # fmt: skip


@pytest.mark.parametrize("text", BROKEN, ids=range(len(BROKEN)))
def test_what_is_no_json_is_refused(text: str) -> None:
    for form in (text, text.encode()):
        with pytest.raises(HistoryError, match=r"^history is not valid JSON: ") as caught:
            History.parse(form)
        assert len(str(caught.value)) < 200


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32", "latin-1"])
def test_bytes_in_another_encoding_are_refused(encoding: str) -> None:
    text = full().to_json().replace("\U0001f600", "").replace("\u2028", "")
    with pytest.raises(HistoryError, match=r"^history is not valid JSON: "):
        History.parse(text.encode(encoding))
    with pytest.raises(HistoryError, match="not UTF-8 at byte 1"):
        History.parse(b'"\xed\xa0\xbd"')


def test_a_byte_order_mark_line_ends_and_blanks_around_are_skipped() -> None:
    text = full().to_json()
    for form in (
        "\ufeff" + text,
        text.replace("\n", "\r\n"),
        f" \n{text}\n\n",
        dump(full().to_dict()),
    ):
        assert History.parse(form) == History.parse(form.encode()) == full()


def test_of_keys_that_occur_twice_the_last_one_counts() -> None:
    text = text_of('{"a": 1, "b": 2, "a": 3}')
    assert History.parse(text) == History.from_dict(called({"x": {"a": 3, "b": 2}}))
    assert History.parse('{"version": 9, "version": 1, "messages": 5, "messages": []}') == History()
    pair = text_of('{"\\ud83d\\ude00": 1, "\U0001f600": 2}')
    assert History.parse(pair) == History.from_dict(called({"x": {"\U0001f600": 2}}))


def test_surrogates_come_in_raw_or_escaped() -> None:
    raw = dump(one(content="@")).replace("@", "\ud83d \ud83d\ude00")
    escaped = dump(one(content="@")).replace("@", "\\ud83d \\ud83d\\uDE00")
    assert History.parse(raw) == History.parse(escaped)
    assert History.parse(raw).messages[0].content == "\ud83d \U0001f600"


@pytest.mark.parametrize(
    "given_value", [None, 5, {}, [], bytearray(b"{}"), Path("x"), full(), object()]
)
def test_parse_takes_text_and_nothing_else(given_value: Any) -> None:
    with pytest.raises(HistoryError, match="is a str or bytes"):
        History.parse(given_value)


def test_a_cycle_or_what_is_shared_a_thousandfold_ends() -> None:
    around: dict[str, Any] = {}
    around["x"] = [around]
    assert refused(called(around)).startswith("messages[0].tool_calls[0].arguments")
    assert refused(around).startswith("version: ")
    messages: list[Any] = []
    messages.append(messages)
    assert refused({"version": 1, "messages": messages}).startswith("messages[0]: ")


def test_no_error_shows_content() -> None:
    secret = "s3cr3t"
    for raw in (
        one(role=secret),
        one(kind=secret),
        one(id=secret) | {"messages": one(id=secret)["messages"] * 2},
        one(role="tool", tool_call_id=secret),
        attached(data=secret),
        attached(data="", sha256=secret),
        {"version": secret, "messages": []},
    ):
        assert secret not in refused(raw)
    with pytest.raises(HistoryError) as caught:
        History.parse(f'{{"version": 1, "messages": ["{secret}')
    assert secret not in str(caught.value)
    assert caught.value.__cause__ is None


@given(st.binary() | st.text(st.characters(exclude_categories=())))
def test_random_input_is_refused(given_text: bytes | str) -> None:
    with pytest.raises(HistoryError):
        History.parse(given_text)


# The page that tells the format


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)


def test_the_examples_of_the_format_are_what_this_library_writes_and_reads(tmp_path: Path) -> None:
    whole, in_folder = blocks("json")
    history = History.parse(whole)
    assert history.to_json() + "\n" == whole
    (picture,) = history.messages[0].attachments
    assert picture.bytes == b":)\n"
    with pytest.raises(HistoryError, match=r"History\.load"):
        History.parse(in_folder)
    saved = History(messages=history.messages[:1]).save(tmp_path)
    assert (saved / "history.json").read_text() + "\n" == in_folder
    assert History.load(saved).messages == history.messages[:1]


def test_the_program_on_the_page_of_the_format_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (program,) = blocks("python")
    exec(compile(program, str(PAGE), "exec"), {})
    assert (tmp_path / "conversation" / "history.json").is_file()
    with pytest.raises(HistoryError) as caught:
        History.from_dict(
            {
                "version": 1,
                "messages": [one(id=str(i))["messages"][0] for i in range(3)]
                + called({"x": float("inf")})["messages"],
            }
        )
    assert f"`{caught.value}`" in PAGE.read_text()


def test_the_page_names_every_key() -> None:
    page = PAGE.read_text()
    names = {f.name for kind in (Message, Thinking, Tokens) for f in dataclasses.fields(kind)}
    names |= {"version", "messages", "mime", "filename", "data", "file", "sha256", "arguments"}
    assert {name for name in names if f"| `{name}` |" not in page} == set()
