"""Bytes out of a message and back: what is lifted, what is not, and that nothing is lost by it."""

import base64
import json
from hashlib import sha256

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from messages import NOT_LIFTED, PNG, SHAPES, Shape, b64, expected, messages
from turnkeep import MessageEntry, UnknownEntry
from turnkeep.lifting import Lifted, base64_text, lift, put_back
from turnkeep.payload import Json, JsonObject, decode, encode


def back(payload: str, lifted: tuple[Lifted, ...]) -> str:
    """The payload that the bytes were *lifted* out of."""
    return put_back(payload, [(item.path, base64_text(item.data)) for item in lifted])[0]


@given(messages())
@settings(max_examples=200)
@example({"list": ["data:;base64,AA==", "name"]})
@example({"mime": "data:;base64,/w==", "data": "AA=="})
@example({"data": "AA==", "mime": "data:;base64,/w=="})
@example({"\ud83d": [{"mime": "a/b", "data": "AA=="}]})
def test_what_is_lifted_comes_back_to_the_same_text(message: JsonObject) -> None:
    payload = MessageEntry(message).payload
    stays, lifted = lift(payload)
    assert back(stays, lifted) == payload
    assert encode(decode(stays)) == stays, "what stays is canonical too"
    assert [item.digest for item in lifted] == [sha256(item.data).digest() for item in lifted]


@given(messages())
@settings(max_examples=200)
@example({"mime": "data:;base64,/w==", "data": "AA=="})
@example({"data": "AA==", "mime": "data:;base64,/w=="})
@example({"a": {"url": "data:;base64,AA=="}, "b": "data:;base64,AQ=="})
def test_lifted_is_what_says_that_it_is_bytes(message: JsonObject) -> None:
    """Each place that the rule names, in the order of the text, and no other."""
    _, lifted = lift(MessageEntry(message).payload)
    assert [(decode(item.path), item.data) for item in lifted] == [
        (["message", *item.path], item.data) for item in expected(message)
    ]
    assert all(item.path.isascii() for item in lifted)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_each_framework_s_bytes_are_lifted(shape: Shape) -> None:
    payload = MessageEntry(shape.message).payload
    stays, lifted = lift(payload)
    assert [(item.mime, item.filename, item.data) for item in lifted] == shape.lifted
    assert not any(b64(data) in stays for _, _, data in shape.lifted if data)
    assert back(stays, lifted) == payload


@pytest.mark.parametrize("message", NOT_LIFTED)
def test_what_only_looks_like_bytes_stays(message: JsonObject) -> None:
    payload = MessageEntry(message).payload
    assert lift(payload) == (payload, ())


def test_unknown_entries_are_treated_as_messages_are() -> None:
    entry = UnknownEntry("picture", {"media_type": "image/png", "data": b64(PNG)})
    stays, (lifted,) = lift(entry.payload)
    assert stays == '{"media_type":"image/png","data":""}'
    assert (lifted.path, lifted.data) == ('["data"]', PNG)
    assert back(stays, (lifted,)) == entry.payload


@given(st.binary(max_size=100))
def test_only_the_text_that_the_bytes_reproduce_is_lifted(data: bytes) -> None:
    """Of all the spellings that some decoder takes for these bytes it is that of the standard."""
    text = b64(data)
    spellings = {text, base64.urlsafe_b64encode(data).decode(), text.rstrip("="), text + "\n"}
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    body, padding = text.rstrip("="), text[len(text.rstrip("=")) :]
    spellings |= {body[:-1] + last + padding for last in alphabet if body}
    for spelling in spellings:
        _, lifted = lift(MessageEntry({"mime": "a/b", "data": spelling}).payload)
        if lifted:
            assert b64(lifted[0].data) == spelling
        else:
            assert spelling != text


def test_a_message_of_all_levels_can_hold_bytes() -> None:
    """An entry is one level deeper than its message, which is counted by itself."""
    value: Json = "data:;base64," + b64(PNG)
    for _ in range(199):
        value = [value]
    payload = MessageEntry({"x": value, "\ud83d": ""}).payload
    stays, lifted = lift(payload)
    assert len(lifted) == 1
    assert back(stays, lifted) == payload


@pytest.mark.parametrize(
    "text", ["data:" + "x" * 10**6, "data:" + ";" * 10**6, "data:;base64" * 10**5]
)
def test_a_long_text_that_is_no_data_uri_costs_one_look(text: str) -> None:
    """Else this would not end: each of its characters would be tried against all that follow."""
    message: JsonObject = {"x": text, "y": "data:;base64,AA=="}
    _, lifted = lift(MessageEntry(message).payload)
    assert [item.path for item in lifted] == ['["message","y"]']


@pytest.mark.parametrize(
    "path",
    [
        '["message"]',
        '["message","a"]',
        '["message","a","b"]',
        '["message","b",1]',
        '["message","b","0"]',
        '["message","c",0]',
        '["message","c","x"]',
        '["message","d"]',
        "[]",
        "5",
        "null",
        '"message"',
        "{}",
        "not JSON",
        "",
    ],
)
def test_a_path_that_leads_to_no_text_is_a_value_error(path: str) -> None:
    payload = json.dumps({"message": {"a": 1, "b": ["x"], "c": "text"}})
    with pytest.raises(ValueError, match=r"."):
        put_back(payload, [(path, "AA==")])


@pytest.mark.parametrize("payload", ["", "{", "NaN", "null", "[]", '"message"'])
def test_a_payload_that_holds_no_place_is_a_value_error(payload: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        put_back(payload, [('["message"]', "AA==")])
