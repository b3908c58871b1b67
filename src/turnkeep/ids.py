"""New session ids."""

import secrets
import time
import uuid


def new_session_id() -> str:
    """A new id for a session: the text of a UUID of version 7 (RFC 9562 §5.7), which sorts by time.

    It has 48 bits of milliseconds since 1970, and 74 bits at random.
    """
    milliseconds = time.time_ns() // 1_000_000
    number = (milliseconds & ((1 << 48) - 1)) << 80 | 0x7 << 76 | secrets.randbits(12) << 64
    number |= 0b10 << 62 | secrets.randbits(62)
    return str(uuid.UUID(int=number))
