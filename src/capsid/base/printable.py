"""Makes text from data safe for a terminal: control characters become visible escapes, so no title moves the cursor.

Also escapes bidirectional controls, which reorder the text after them, and broken Unicode.
"""

from __future__ import annotations

import json
from typing import Any

_LINES = {ord("\n"), ord("\t")}
_CONTROLS = {
    *range(0x20),
    *range(0x7F, 0xA0),
    *(0x061C, 0x200E, 0x200F, 0x2028, 0x2029, 0xFEFF),
    *range(0x202A, 0x202F),
    *range(0x2066, 0x206A),
    *range(0xD800, 0xE000),
}
_ESCAPES = {c: repr(chr(c))[1:-1] if c > 0x9F or c < 0x80 else f"\\x{c:02x}" for c in _CONTROLS - _LINES}
_ONE_LINE = _ESCAPES | {ord("\n"): "\\n", ord("\t"): "\\t"}
_IN_JSON = {c: f"\\u{c:04x}" for c in _CONTROLS if c >= 0x7F}


def printable(text: str) -> str:
    """Keeps line breaks and tabs; every other control character becomes an escape such as \\x1b."""
    return text.translate(_ESCAPES)


def one_line(text: str) -> str:
    """Like `printable`, but line breaks and tabs become escapes too."""
    return text.translate(_ONE_LINE)


def json_text(value: Any, indent: int | None = None) -> str:
    """JSON that keeps letters of all languages and escapes everything that is unsafe in a terminal."""
    return json.dumps(value, indent=indent, ensure_ascii=False).translate(_IN_JSON)
