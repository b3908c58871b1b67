"""What a call takes of memory, above what its caller holds: measured in a process of its own."""

import pytest

from conftest import Backend
from large import measured

MB = 1_000_000


@pytest.fixture
def url(server_or_file: Backend) -> str:
    """A database with its tables."""
    server_or_file.store().close()
    return server_or_file.url.render_as_string(hide_password=False)


@pytest.mark.parametrize(
    "count",
    [pytest.param(5_000), pytest.param(100_000, marks=pytest.mark.slow)],
)
def test_reading_by_pages_does_not_grow_with_the_session(url: str, count: int) -> None:
    measured(url, "make", str(count), "0", "0")
    found = measured(url, "page", "large")
    assert found["out"] == str(count)
    assert found["resident"] < 50 * MB


def test_an_attachment_is_in_memory_three_times_at_the_most(url: str) -> None:
    """While it is appended, beside the entry that has it in base64: as the bytes, and in a driver
    that hands them on, SQLite's twice. What any call takes comes on top.
    """
    measured(url, "make", "1", "0", "0")
    assert measured(url, "append", "100000000")["resident"] < (300 + 5) * MB
