"""Step times by CPU cores, out of profiles: what a curve by cores is fitted to."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rota.model.measured.reports import CoreTime

if TYPE_CHECKING:
    from rota.model.allocation import Allocation
    from rota.model.measured.average import Average
    from rota.model.measured.profile import Profile

DIFFERENT = 1.25  # times as long or short as a job of the kind can be: noise is less


def telling(
    kind: Profile | None, own: Profile | None, place: Allocation, phase: str
) -> list[Profile]:
    """The profiles that tell of a job's times in a phase: its kind's, and its own.

    Jobs of a kind may differ in their arguments. One whose own times can't be those of its kind
    counts alone: more cores make a step no longer, and no shorter than in proportion.
    """
    known = [each for each in (kind, own) if each is not None]
    if len(known) == 2:
        theirs, mine = (_means([each], place, phase, "step_s") for each in known)
        if any(_differs(at, step_s, theirs) for at, step_s in mine.items()):
            return known[1:]
    return known


def _differs(at: tuple[str, int], step_s: float, theirs: dict[tuple[str, int], float]) -> bool:
    """True if a step of that time contradicts one of theirs on the same type of GPU."""
    gpu_type, millicores = at
    for (their_type, their_millicores), their_s in theirs.items():
        if their_type == gpu_type:
            least, most = sorted((their_s, their_s * their_millicores / millicores))
            if not least / DIFFERENT <= step_s <= most * DIFFERENT:
                return True
    return False


def core_times(profiles: Iterable[Profile], place: Allocation, phase: str) -> tuple[CoreTime, ...]:
    """The mean times of a phase on GPUs like those of ``place``, by GPU type and cores.

    The first profile that knows a type and a number of cores tells their time, whatever number of
    workers loaded the data. Times under no control of cores are left out.
    """
    known = _means(profiles, place, phase, "step_s")
    return tuple(CoreTime(*key, step_s) for key, step_s in sorted(known.items()))


def wait_shares(
    profiles: Iterable[Profile], place: Allocation, phase: str, gpu_type: str
) -> dict[int, float]:
    """The part of a step that a job on such GPUs waits for data, by thousandths of a core."""
    known = tuple(profiles)
    step_s, wait_s = (_means(known, place, phase, name) for name in ("step_s", "wait_s"))
    return {
        key[1]: min(1.0, seconds / step_s[key])
        for key, seconds in wait_s.items()
        if key[0] == gpu_type and key in step_s
    }


def _means(
    profiles: Iterable[Profile], place: Allocation, phase: str, name: str
) -> dict[tuple[str, int], float]:
    """The mean of that figure, by GPU type and thousandths of a core, on GPUs like these."""
    like = place.num_gpus, len(place.parts), phase, place.batch
    known: dict[tuple[str, int], float] = {}
    for profile in profiles:
        sums: dict[tuple[str, int], tuple[float, int]] = {}
        for at, point in profile.cpu_points.items():
            figure: Average = getattr(point, name)
            mean = figure.mean
            if at.millicores is None or mean is None:
                continue
            if (at.num_gpus, at.num_nodes, at.phase, at.batch) == like:
                key = at.gpu_type, at.millicores
                total, count = sums.get(key, (0.0, 0))
                sums[key] = total + mean * figure.count, count + figure.count
        for key, (total, count) in sums.items():
            known.setdefault(key, total / count)
    return known
