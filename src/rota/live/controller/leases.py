"""For how long machines that have joined may run their jobs without being heard.

The agent counts from its question, this side from the answer, which is later: see
:mod:`rota.live.wire.lease`. Times are seconds of a clock that nobody can set. For as long as the
controller stood still it could hear nobody: that time does not count, and leases last longer here.
"""

import json
import math
from collections.abc import Collection
from pathlib import Path

from rota.errors import InputError
from rota.model.presence import Presence

LEASE_S = 60.0  # by default
MARGIN_S = 5.0  # for the shims of a machine to stop its processes
SILENT_S = 5.0  # a machine that was not heard for so long is unreachable
LOOK_EVERY_S = 1.0  # at leases, and at the disk and the provider's nodes


class Leases:
    """The leases of nodes, each of which lasts ``lasts_s``, which may be infinite.

    Their controller looks at them every LOOK_EVERY_S; where a look is late, it was absent.
    """

    def __init__(self, lasts_s: float) -> None:
        self.lasts_s = lasts_s
        self.presence = Presence(LOOK_EVERY_S)
        self._heard_s: dict[str, float] = {}  # by the time of presence

    def renew(self, node: str, now_s: float) -> None:
        """A node's question was answered, or a controller that has just started counts anew."""
        self._heard_s[node] = self.presence.at(now_s)

    def left_s(self, node: str, now_s: float) -> float:
        """How long a node's processes may run without being heard.

        0 if they have stopped by now, if nobody knows of any, and if leases last for ever.
        """
        heard_s, now_s = self._heard_s.get(node), self.presence.at(now_s)
        if heard_s is None or self.lasts_s == math.inf:
            return 0.0
        return max(0.0, heard_s + self.lasts_s + MARGIN_S - now_s)

    def is_over(self, node: str, now_s: float) -> bool:
        """True if a node's processes have stopped by now, as its lease is over."""
        heard_s, now_s = self._heard_s.get(node), self.presence.at(now_s)
        return heard_s is None or heard_s + self.lasts_s + MARGIN_S <= now_s

    def silent(self, now_s: float) -> dict[str, float]:
        """The nodes that have not been heard for some time, and how long their leases last yet."""
        now_s = self.presence.at(now_s)
        return {
            node: heard_s + self.lasts_s + MARGIN_S - now_s
            for node, heard_s in self._heard_s.items()
            if now_s - heard_s >= SILENT_S
        }

    def take_over(self, now_s: float) -> list[str]:
        """The nodes whose processes have stopped by now, as their leases are over; each once."""
        found = [node for node, left_s in self.silent(now_s).items() if left_s <= 0]
        for node in found:
            del self._heard_s[node]
        return found


def settled(file: Path, lasts_s: float | None, members: Collection[str]) -> float:
    """How long leases last; written down, as a machine that is away may hold one of before.

    Without ``lasts_s`` they last as before, or by default. Raises InputError for another length
    than before while there are members, and OSError.
    """
    before_s: float | None = None
    if members and file.exists():
        try:
            before_s = float(json.loads(file.read_text()))
        except (ValueError, TypeError):
            raise InputError(
                f"{file} must be a number of seconds: write how long leases last"
            ) from None
    if None not in (before_s, lasts_s) and before_s != lasts_s:
        raise InputError(
            f"--lease: machines hold leases of {_text(before_s)}, and those that are away can't be "
            "told of others; leave the option out, or remove them first with rota node remove: "
            f"{', '.join(sorted(members))}"
        )
    chosen_s = next((each for each in (lasts_s, before_s) if each is not None), LEASE_S)
    if chosen_s != before_s:
        draft = file.with_name(f"{file.name}.new")
        draft.write_text(json.dumps(chosen_s))
        draft.replace(file)
    return chosen_s


def _text(seconds: float | None) -> str:
    return "any length" if seconds == math.inf else f"{seconds:g}s"
