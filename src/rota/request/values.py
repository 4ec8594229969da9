"""Values in a job file: their types, and the errors for those that can't be used."""

import re
import reprlib
from collections.abc import Mapping
from typing import Any, NoReturn

from rota.errors import JobFileError, closest

MAX_DURATION_S = 3650 * 86400.0
JOB = re.compile(r"(@last|[A-Za-z0-9][A-Za-z0-9._-]{0,63})\Z")  # what may stand for a job

_DURATION = re.compile(r"([0-9]{1,10}(?:\.[0-9]{1,9})?)([smhd]?)\Z")
_HMS = re.compile(r"(?:([0-9]{1,4})-)?([0-9]{1,5}):([0-5][0-9]):([0-5][0-9])\Z")  # Slurm's format
_CLOCK = re.compile(r"[0-9]+(:[0-9]+)+(\.[0-9]*)?\Z")
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
_SHORT = reprlib.Repr()
_SHORT.maxlevel = 2  # references in YAML can make a small file nest without end


def seconds_of(field: str, value: Any) -> float:
    """A duration: a number of seconds, text with a unit, or ``[D-]HH:MM:SS``. JobFileError."""
    seconds, text = -1.0, value.strip() if isinstance(value, str) else ""
    if match := _DURATION.match(text):
        seconds = float(match[1]) * _SECONDS[match[2]]
    elif match := _HMS.match(text):
        days, hours, minutes, rest = (int(part or 0) for part in match.groups())
        seconds = float(((days * 24 + hours) * 60 + minutes) * 60 + rest)
    elif is_number(value):
        seconds = float(value) if -1 <= value <= MAX_DURATION_S else -1.0
    elif _CLOCK.match(text):
        refuse(field, value, "write it as HH:MM:SS, or with a unit, such as 90s, 90m or 1.5h")
    if not 0 < seconds <= MAX_DURATION_S:
        refuse(field, value, "write for example 30s, 10m, 2h, 1d or seconds, up to 3650d")
    return seconds


def is_number(value: Any) -> bool:
    """True for a number; True and False are none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def whole_number(value: Any) -> int | None:
    """A whole number, also one written as text; None for anything else."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 9:
        return int(value)
    return value if type(value) is int else None


def whole_within(
    field: str, value: Any, least: int, most: int, what: str = "a whole number"
) -> int:
    """A whole number from ``least`` to ``most``; ``what`` is to be written. Raises JobFileError."""
    number = whole_number(value)
    if number is None or not least <= number <= most:
        refuse(field, value, f"write {what}, from {least} to {most}")
    return number


def text_of(field: str, value: Any, max_bytes: int) -> str:
    """Text that a program can be given, in at most so many bytes. Raises JobFileError."""
    if not isinstance(value, str):
        refuse(field, value, "write text; put quotes around it")
    if "\0" in value:
        refuse(field, value, "remove the NUL character")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        refuse(field, value, "it is no valid Unicode; write it in UTF-8")
    if size > max_bytes:
        refuse(field, value, f"it takes {size} bytes; at most {max_bytes} work")
    return value


def job_of(field: str, value: Any, fix: str) -> str:
    """A job that is named by id, by name or as ``@last``, as text. Raises JobFileError."""
    if type(value) is int and 0 < value < 10**15:
        return str(value)
    if isinstance(value, str) and JOB.match(value):
        return value
    refuse(field, value, fix)


def check_keys(
    fields: Any,
    known: tuple[str, ...],
    prefix: str,
    fix: str = "write fields, one a line, for example: run: python train.py",
) -> None:
    """Raise JobFileError unless these are fields of these names; ``prefix`` names their owner."""
    where = prefix.removesuffix(".") or "job file"
    if not isinstance(fields, Mapping):
        refuse(where, fields, fix)
    for key in fields:
        if not isinstance(key, str) or key not in known:
            close = closest(key, known) if isinstance(key, str) else None
            hint = f"did you mean {prefix}{close}?" if close else f"known: {', '.join(known)}"
            raise JobFileError(f"{where}: there is no field {_shown(key)}; {hint}")


def refuse(field: str, value: Any, fix: str) -> NoReturn:
    """Raise the JobFileError that names the field, its value and the fix."""
    raise JobFileError(f"{field}: {_shown(value)} can't be used; {fix}")


def _shown(value: Any) -> str:
    """The value for a message: always short, with control characters escaped."""
    try:
        return _SHORT.repr(value)[:200]
    except Exception:  # any object may come here; one with a broken repr is no reason to fail
        return f"a {type(value).__name__}"
