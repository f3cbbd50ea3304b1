"""Errors as HTTP answers, in the same words as on the command line: code, message, hint, request id."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from starlette.exceptions import HTTPException

from capsid.errors import ArtifactError, CapsidError, ConfigError, DataError, UnknownIdError
from capsid.serve.journal import DiskFull, JournalDamaged

# The first kind of error that fits decides.
_ANSWERS: tuple[tuple[type[CapsidError], int, str], ...] = (
    (UnknownIdError, 404, "unknown_item"),
    (DataError, 409, "does_not_fit"),
    (ConfigError, 409, "does_not_fit"),
    (JournalDamaged, 503, "journal"),
    (DiskFull, 507, "disk_full"),
    (ArtifactError, 500, "artifact"),
    (CapsidError, 500, "internal"),
)


class Refused(HTTPException):
    """An answer that is not 2xx. `headers` go with it.

    An HTTPException, because the framework wraps all other exceptions that occur while it reads a body.
    """

    def __init__(
        self, status: int, code: str, message: str, *, hint: str | None = None, headers: dict[str, str] | None = None
    ) -> None:
        super().__init__(status, message, headers or {})
        self.status, self.code, self.message, self.hint = status, code, message, hint


def refused(error: CapsidError) -> Refused:
    """Convert an error of the library to an HTTP answer.

    Bodies were checked before, so the error is about the run: an unknown id, or a request that does not fit it.
    """
    status, code = next((status, code) for kind, status, code in _ANSWERS if isinstance(error, kind))
    return Refused(status, code, error.message, hint=error.hint)


def invalid(problems: Sequence[Any]) -> Refused:
    """The first validation problem of a body in one sentence."""
    first = problems[0]
    if first["type"] == "json_invalid" or (first["type"] == "missing" and not first["loc"]):
        return not_json()
    place = ".".join(str(part) for part in first["loc"]) or "the body"
    hint = f"and {len(problems) - 1} more" if len(problems) > 1 else None
    return Refused(422, "invalid_request", f"{place}: {first['msg']}", hint=hint)


def not_json() -> Refused:
    """A body that cannot be parsed, or none. The words of the parser are left out: two of them read bodies."""
    return Refused(400, "invalid_json", "the body is not JSON", hint="send a JSON object")


def envelope(code: str, message: str, hint: str | None, request_id: str) -> dict[str, Any]:
    """The body of every error."""
    return {"error": {"code": code, "message": message, "hint": hint, "request_id": request_id}}


def too_many(code: str, message: str, seconds: float) -> Refused:
    """429 with the time after which to try again."""
    wait = max(1, -(-int(seconds * 1000) // 1000))
    return Refused(429, code, message, hint=f"try again in {wait} s", headers={"retry-after": str(wait)})
