"""A title is one line that can be shown anywhere, and never an exception."""

import unicodedata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from histories import texts, values
from turnkeep import Header
from turnkeep.titles import title_of

# What shows as nothing, joins, turns the direction, breaks lines; and letters.
odd = st.text(
    st.sampled_from("ab \t\n\r\x0b\x85\u2028\u00a0\u3000\u200b\u2060\ufeff\u0301\ufe0f\u200d")
    | st.sampled_from("\u202e\u2066\u061c\0\x1b\x7f\ud83d\U0001f469\U0001f3fd\U000e0041\u00ad")
    | st.characters(exclude_categories=()),
    max_size=450,
)


def joins(character: str) -> bool:
    return character == "\u200d" or unicodedata.category(character) in ("Mn", "Mc", "Me")


def prompt(content: Any, **fields: Any) -> dict[str, Any]:
    return {"role": "user", "content": content, **fields}


@given(odd)
def test_a_title_is_part_of_one_line_and_fit_to_be_shown(content: str) -> None:
    title = title_of(prompt(content))
    assert len(title) <= 200
    assert title == title.strip()
    hidden = {c for c in title if unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp")}
    assert not hidden
    assert not {*"\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"} & {
        *title
    }
    Header(id="s", cwd="", created_at="2026-11-30T12:00:00Z", model="", title=title)
    shown = [
        c for c in content if unicodedata.category(c) not in ("Cc", "Cf", "Cs", "Zs", "Zl", "Zp")
    ]
    if title:
        plain = ["".join(c for c in line if c in title) for line in content.splitlines()]
        assert any(
            title.replace(" ", "") in line.replace("\t", "").replace(" ", "") for line in plain
        )
    elif len(content) < 200:
        assert not shown


@given(odd.filter(lambda text: len(text) > 200))
def test_a_long_line_is_cut_where_a_character_ends(content: str) -> None:
    line = "".join(
        "x" if c.isspace() or unicodedata.category(c) in ("Cc", "Cs") else c for c in content
    )
    for mark in (
        "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200b\u2060\ufeff"
    ):
        line = line.replace(mark, "y")
    title = title_of(prompt(line))
    assert line.startswith(title)
    assert len(title) <= 200
    if len(line) > 200 and title:
        assert not joins(line[len(title)])
        assert title[-1] != "\u200d"
        between = range(len(title) + 1, 201)
        assert all(joins(line[end]) or line[end - 1] == "\u200d" for end in between)


@pytest.mark.parametrize(
    ("content", "title"),
    [
        ("Hello", "Hello"),
        ("  \n\t\n\u3000 Hello \t you \r\nMore", "Hello   you"),
        ("  \n\u3000\u200b", ""),
        ("\u200b\u3000\u200b\n\ufeff\u00ad\nHello", "Hello"),
        ("", ""),
        (None, ""),
        (5, ""),
        ({"text": "Hello"}, ""),
        ([], ""),
        ([{"type": "image"}, {"type": "text", "text": "\n"}, {"text": "Hello"}], "Hello"),
        ([{"type": "input_text", "text": "Hello"}, "Bye", None, {"text": 5}, {}], "Hello"),
        ("a\0b\x1b[31mc\ud83dd\u202ee", "ab[31mcde"),
        ("\0 \ud83d", ""),
        ("x" * 201, "x" * 200),
        ("x" * 200, "x" * 200),
        ("x" * 199 + "e\u0301", "x" * 199),
        ("x" * 198 + "e\u0301", "x" * 198 + "e\u0301"),
        ("x" * 199 + "\u2764\ufe0f", "x" * 199),
        ("x" * 199 + "\U0001f469\u200d\U0001f680", "x" * 199),
        ("x" * 198 + "\U0001f469\u200d\U0001f680", "x" * 198),
        ("x" * 197 + "\U0001f469\u200d\U0001f680y", "x" * 197 + "\U0001f469\u200d\U0001f680"),
        ("x" * 150 + " " * 60 + "y", "x" * 150),
        ("x" * 199 + "\u200d  ", "x" * 199 + "\u200d"),
        ("\u0301" * 300, ""),
    ],
)  # fmt: skip
def test_the_title_of_a_prompt(content: Any, title: str) -> None:
    assert title_of(prompt(content)) == title


@pytest.mark.parametrize(
    "message",
    [
        {"role": "assistant", "content": "Hello"},
        {"role": "tool", "content": "Hello"},
        {"content": "Hello"},
        {},
        prompt("Hello", kind="reference"),
        prompt("Hello", turnkeep={"kind": "reference"}),
    ],
)
def test_only_a_prompt_gives_a_title(message: dict[str, Any]) -> None:
    assert title_of(message) == ""


def test_what_else_a_prompt_has_does_not_matter() -> None:
    assert title_of(prompt("Hello", kind="user", turnkeep="reference")) == "Hello"
    assert title_of(prompt("Hello", kind=["reference"], turnkeep={"kind": None})) == "Hello"


@given(st.dictionaries(st.sampled_from(["role", "content", "kind", "turnkeep"]) | texts, values))
def test_no_message_is_too_odd_to_have_one(message: dict[str, Any]) -> None:
    title = title_of(message | {"role": "user"})
    assert type(title) is str
    assert len(title) <= 200
    assert title == "" or isinstance(message.get("content"), str | list)


def test_a_line_of_megabytes_takes_no_longer_than_a_short_one() -> None:
    """What would be quadratic, or look at each character in Python, would take minutes here."""
    blank = " " * 5_000_000
    assert title_of(prompt("x" + blank + "y")) == "x"
    assert title_of(prompt(("\u200b\u3000" * 1_000_000) + "x")) == "x"
