"""Decides which of several policies is best, as far as runs of the same jobs can tell.

Runs are compared in pairs: over the seeds that both have, or, where each has one run alone, over
ten parts of the same jobs in order of arrival (batch means). Parts of one log are not independent
of each other, so that such an interval is rather too narrow.
"""

from collections.abc import Sequence
from typing import NamedTuple

from rota.model.allocation import gpus_text
from rota.model.cluster import parse_cluster
from rota.model.naming import few
from rota.report.comparison import BY_KEY, Entry
from rota.report.statistic import Interval, interval, mean

# Policies like those of the clusters that logs are of: nothing is suspended.
REPLAYS = ("fifo", "fifo-backfill", "easy-backfill")
DOUBTED = 2.0  # ratio of the waits of a log and of its replay from which on it is another cluster
NOTABLE = 0.1  # part of the log's average JCT by which the waits differ at least, too


class Difference(NamedTuple):
    """Difference of the average JCT to another policy's, in seconds.

    ``by`` is what the interval is over: ``seeds``, ``parts``, or "" where there is none.
    """

    found: Interval
    by: str

    @property
    def is_told(self) -> bool:
        """True if the interval leaves out zero."""
        half = self.found.half_width
        return half is not None and abs(self.found.mean) > half

    @property
    def is_exact(self) -> bool:
        """True if there is no interval, or one of no width: all pairs differ by the same."""
        return not self.found.half_width

    def __str__(self) -> str:
        half = self.found.half_width
        return f"{self.found.mean:+,.0f}" + ("" if half is None else f" ±{half:,.0f}")


def difference(entry: Entry, other: Entry) -> Difference | None:
    """The average JCT of one line less that of another; None if no runs can be paired."""
    mine = {s["seed"]: s for s in entry.summaries if s["avg_jct_s"] is not None}
    theirs = {s["seed"]: s for s in other.summaries if s["avg_jct_s"] is not None}
    seeds = sorted(mine.keys() & theirs.keys())
    if not seeds:
        return None
    values = [mine[seed]["avg_jct_s"] - theirs[seed]["avg_jct_s"] for seed in seeds]
    by = "seeds" if len(seeds) > 1 else ""
    if len(seeds) == 1:
        one, two = (runs[seeds[0]].get("avg_jct_s_by_part", ()) for runs in (mine, theirs))
        pairs = [(a, b) for a, b in zip(one, two, strict=False) if a is not None and b is not None]
        if len(pairs) > 1:
            whole = values[0]
            parts = interval([a - b for a, b in pairs])
            assert parts is not None
            return Difference(parts._replace(mean=whole), "parts")
    found = interval(values)
    assert found is not None
    return Difference(found, by)


def differences(entries: Sequence[Entry], first: Entry) -> list[Difference | None]:
    """Difference of each line to that of the first's policy at the same point.

    The log's own times are compared with that policy at any point.
    """
    firsts = {tuple(each.point.items()): each for each in entries if each.policy == first.policy}
    found: list[Difference | None] = []
    for entry in entries:
        other = first if entry.is_log else firsts.get(tuple(entry.point.items()))
        found.append(None if other is None or other is entry else difference(entry, other))
    return found


def average_s(entry: Entry) -> float:
    """The average JCT over a line's runs; infinity if no job has finished."""
    known = [s["avg_jct_s"] for s in entry.summaries if s["avg_jct_s"] is not None]
    found = mean(known)
    return float("inf") if found is None else found


def verdict(entries: Sequence[Entry]) -> str:
    """The policy that finishes jobs soonest at one point, or that the runs do not decide it.

    Oracles and what a log says of itself are left out: nobody can choose them. "" for fewer than
    two policies that can be compared.
    """
    rivals = sorted((each for each in entries if each.is_choice), key=average_s)
    compared = [(each, difference(each, rivals[0])) for each in rivals[1:]]
    known = [(each, found) for each, found in compared if found is not None]
    if not known:
        return ""
    best, (next_best, lead) = rivals[0], known[0]
    if same := [each.policy for each, found in known if not found.found.mean and found.is_exact]:
        names = few([best.policy, *same])
        if len(same) == len(known):
            return f"none: these data show no difference between {names}"
        said = f"{names} come first, with the same average JCT"
        return said if lead.by else f"{said}, in one run of few jobs, which tells no interval"
    if lead.found.half_width is None:
        return (
            f"none: {best.policy} is {lead.found.mean:,.0f} s ahead of {next_best.policy} in one "
            "run of few jobs, which tells no interval; give more jobs, or several --seeds"
        )
    over = f"{lead} s over {lead.found.runs} {'seeds' if lead.by == 'seeds' else 'parts'}"
    alike = [each.policy for each, found in known if not found.is_told]
    if alike:
        return (
            f"{best.policy} comes first, but these data show no difference from "
            f"{few(alike)} ({next_best.policy}: {over})"
        )
    share = lead.found.mean / average_s(next_best)
    return (
        f"{best.policy} has the least average JCT, {share:.0%} less than the next, "
        f"{next_best.policy} ({over})"
    )


def doubt(logged: Entry, replays: Sequence[Entry]) -> str:
    """Why the simulated cluster is not the log's, and what may be missing; "" if it may be.

    ``replays`` are lines of policies of :data:`REPLAYS`; the one whose jobs wait most like the
    log's is taken for the log's own.
    """
    queue = BY_KEY["avg_queue_s"]
    was = queue.over(logged)
    near = [
        (abs(found.mean - was.mean), each) for each in replays if was if (found := queue.over(each))
    ]
    if was is None or not near:
        return ""
    apart_s, replay = min(near, key=lambda pair: pair[0])
    found = queue.over(replay)
    assert found is not None
    low_s, high_s = sorted((was.mean, found.mean))
    if apart_s <= NOTABLE * average_s(logged) or high_s <= DOUBTED * low_s:
        return ""
    cluster = str(replay.summaries[0]["cluster"])
    gpus = sum(node.num_gpus for node in parse_cluster(cluster))
    most = int(logged.summaries[0]["most_gpus"])
    said = (
        f"don't trust this: the cluster is not the log's. Jobs waited {was.mean:,.0f} s on average "
        f"in the log, and {found.mean:,.0f} s in its replay under {replay.policy} on {cluster}. "
        f"The log's jobs held at most {gpus_text(most)} at once; {cluster} has {gpus:,}. "
    )
    rejected = int(replay.summaries[0]["rejected"])
    if was.mean > found.mean:
        rows = [f"the {rejected:,} rows that could not be read"] if rejected else []
        missing = [
            "jobs of other partitions, or without GPUs, that held these nodes",
            "nodes that were down or reserved",
            "limits per user or account",
            "dependencies of jobs on each other",
            *rows,
        ]
        return f"{said}What may be missing: {'; '.join(missing)}; or --cluster is too large"
    return (
        f"{said}What may be missing: nodes of the cluster, so that --cluster is too small; that "
        "several jobs had one GPU; that the log is of several clusters or partitions"
    )
