"""Moments that users write on a command line: how long ago, or a time."""

import re
import time
from datetime import datetime

from rota.request.values import refuse, seconds_of

_AGE = re.compile(r"[0-9]+(\.[0-9]+)?[smhd]?")
_FIX = "write how long ago, such as 10m, 2h or 3d, or a time: 2026-01-31T14:00"


def moment_of(option: str, text: str) -> float:
    """The time of this machine's clock that an age or an ISO time means; local without an offset.

    Raises JobFileError for other text, and for a time to come.
    """
    now_s = time.time()
    if _AGE.fullmatch(text):
        return now_s - seconds_of(option, text)
    try:
        at_s = datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        refuse(option, text, _FIX)
    if at_s > now_s:
        refuse(option, text, "that time is yet to come; " + _FIX)
    return at_s
