"""Tells why jobs, which run as the agent's user, can't enter a folder."""

import os
import pwd
import stat
from pathlib import Path


def user_name() -> str:
    """The name of the user that agent and jobs run as; its number if it has none."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def obstacle_to(path: str) -> str:
    """The first folder of a path that can't be entered, and why; "" if all can be entered."""
    for place in (*reversed(Path(path).parents), Path(path)):
        try:
            mode = place.stat().st_mode
        except FileNotFoundError:
            return f"there is no {place}"
        except OSError as error:
            return f"{place}: {error.strerror}"
        if not stat.S_ISDIR(mode):
            return f"{place} is no folder"
        if not os.access(place, os.X_OK):
            return f"user {user_name()} can't enter {place} (mode {stat.S_IMODE(mode):04o})"
    return ""
