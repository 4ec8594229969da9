"""The actions of a caller: the one place that the guard, and through the API everybody, asks."""

import re

READ, SUBMIT, ADMINISTER = "read", "submit", "administer"
STEERING = ("suspend", "resume", "cancel", "clean", "cordon", "drain", "enable")
ACTIONS = (READ, SUBMIT, *STEERING, ADMINISTER)

_ENTRIES = re.compile(r"/api/v1/(jobs|plans|sweeps|sweeps/[^/]+/trials|snapshots/[^/]+)\Z")
_STEERED = re.compile(r"/api/v1/(?:jobs|sweeps|nodes)/[^/]+/(\w+)\Z")
_ENDED = re.compile(r"/api/v1/sweeps/[^/]+/(end|trials/[^/]+/stop)\Z")


def allowed() -> frozenset[str]:
    """The actions that a holder of the user's token may take: all, as there are no accounts."""
    return frozenset(ACTIONS)


def action_of(method: str, path: str) -> str:
    """The action that a call is. One that no rule names is for those who may administer."""
    if method in ("GET", "HEAD"):
        return READ
    if _ENTRIES.match(path):
        return SUBMIT
    if _ENDED.match(path):
        return "cancel"
    found = _STEERED.match(path)
    return found[1] if found is not None and found[1] in STEERING else ADMINISTER
