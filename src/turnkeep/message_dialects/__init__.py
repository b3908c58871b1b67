"""The dialects in which frameworks write messages, and what a History makes of them.

A dialect is a module with a function `read`: it gives the drafts of a message, or None for one
of another dialect. The docs of each have the table of its fields. riffer's is the native one, and
comes last, since its plain messages are those of the others too; but what has the marks of riffer
is not taken for another's, whatever else is in it.
"""

from collections.abc import Callable
from typing import TypeAlias

from turnkeep.message_dialects import anthropic, openai_chat, openai_responses, riffer
from turnkeep.message_dialects.draft import Draft, Losses
from turnkeep.payload import JsonObject

__all__ = ["READERS", "Draft", "Losses", "read"]

Reader: TypeAlias = Callable[[JsonObject, Losses], list[Draft] | None]

# A whole response of Anthropic's calls itself a message, as an item of OpenAI's does.
READERS: tuple[Reader, ...] = (
    anthropic.read,
    openai_responses.read,
    openai_chat.read,
    riffer.read,
)


def read(message: JsonObject, losses: Losses) -> list[Draft]:
    """The drafts of *message* in the first dialect that knows it; a loss where none does."""
    readers = (riffer.read,) if riffer.is_marked(message) else READERS
    for reader in readers:
        if (drafts := reader(message, losses)) is not None:
            return drafts
    losses.add("a message in no known dialect")
    return []
