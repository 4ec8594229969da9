"""Shows jobs and nodes in a terminal."""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

from rota.cli.core_curve import core_lines
from rota.cli.flow import flow_lines
from rota.cli.goodput import goodput_lines
from rota.cli.profiles import profile_lines
from rota.cli.table import render, wide, width_of_terminal
from rota.cli.text import clock, folded, size_text, times
from rota.cli.verdict import (
    burst_text,
    data_text,
    filling_text,
    sharing_text,
    standing_text,
    trial_lines,
    turns_text,
)
from rota.model.job import BACKGROUND, FLOW, JobState
from rota.report.text import duration, printable

COLUMNS = (
    "ID",
    "NAME",
    "STATE",
    "REASON",
    "PRIO",
    "GPUS",
    "NODE",
    "SHARE",
    "AGE",
    "RUN",
    "PROGRESS",
    "ETA",
)
WIDE = (*COLUMNS, "QUEUE", "USER", "ATTEMPT", "EXIT", "MESSAGE", "WITH", "POSITION")
TABLE = (*COLUMNS[:2], "USER", *COLUMNS[2:], "EXIT")
FILLING = ("FILL", "HARVEST", "SLOWDOWN")  # last, where background jobs fill GPUs, or wait for that
# Of a table that is too wide for the terminal, what is left out, in order.
LEAST_NEEDED = ("PRIO", "AGE", "SHARE", "USER", "ETA", "RUN", "GPUS", "REASON", "EXIT")
MOST_LINES = 50  # of a story
COPIED = ("workdir", "snapshot", "command")  # facts that are not broken into lines
SUSPENSIONS = {
    "BOUNDARY": "at a step boundary (rota.train)",
    "PROCESS": "its processes are stopped and continued",
    "CHECKPOINT": "its device memory is copied to the host (CUDA checkpoint)",
    "RESTART": "its processes end, and start again from its own checkpoint",
    "UNKNOWN": "not known yet",
}


def progress_text(progress: Mapping[str, Any]) -> str:
    """Such as ``120/1000 12%``; where batches vary ``120 12%``, by the samples."""
    step, total, samples, total_samples = (
        value if isinstance(value, int | float) else None
        for value in map(progress.get, ("step", "total", "samples", "total_samples"))
    )
    if step is None:
        return "-"
    if total is not None and total > 0:
        return f"{step}/{total} {100 * step // total:.0f}%"
    if samples is not None and total_samples is not None and total_samples > 0:
        return f"{step} {100 * samples // total_samples:.0f}%"
    return str(step)


def places(job: Mapping[str, Any]) -> str:
    """The GPUs that the job holds, such as ``node0:0,1``."""
    held = [f"{part['node']}:{','.join(map(str, part['gpus']))}" for part in job["gpus"]]
    return printable(" ".join(held)) or "-"


def _position(job: Mapping[str, Any]) -> int:
    """The place in the policy's order; 0 of a job that does not wait for GPUs."""
    return int(job["position"] or 0)


def jobs_text(jobs: Sequence[Mapping[str, Any]], output: str) -> str:
    """The jobs in one of FORMATS; in tables those that wait stand in the policy's order."""
    if output in ("json", "yaml"):
        return structure_text(list(jobs), output)
    waiting = iter(sorted(filter(_position, jobs), key=_position))
    jobs = [next(waiting) if _position(job) else job for job in jobs]
    more = FILLING if any(job.get("filling") for job in jobs) else ()
    columns = (*WIDE, *more)
    rows = [dict(zip((*WIDE, *FILLING), _cells(job), strict=True)) for job in jobs]
    if output in ("csv", "wide"):
        cells = [[row[name] for name in columns] for row in rows]
        if output == "csv":
            return csv_text(columns, cells)
        return render(columns, cells, text_columns=len(columns))
    for row in rows:
        row["NODE"] += "" if row["WITH"] == "-" else f" (with {row['WITH']})"
    header, left_out = [*TABLE, *more], iter(LEAST_NEEDED)
    while True:
        cells = [[row[name] for name in header] for row in rows]
        least = wide(header, cells) > width_of_terminal() and next(left_out, None)
        if not least:
            return render(header, cells, text_columns=len(header))
        header.remove(least)


def csv_text(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table as CSV, for programs."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([header, *rows])
    return text.getvalue().rstrip("\n")


def listing_text(
    found: Sequence[Mapping[str, Any]],
    output: str,
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
) -> str:
    """A listing in one of FORMATS other than ``table``, which fits itself to the terminal."""
    if output == "csv":
        return csv_text(header, rows)
    if output == "wide":
        return render(header, rows, text_columns=len(header))
    return structure_text(list(found), output)


def structure_text(value: Any, output: str = "json") -> str:
    """A value as JSON or YAML."""
    if output == "yaml":
        import yaml

        return str(yaml.safe_dump(value, sort_keys=False, allow_unicode=False)).rstrip("\n")
    return json.dumps(value, indent=2)


def _cells(job: Mapping[str, Any]) -> list[str]:
    eta_s = job["eta_s"]
    cells = [
        job["id"],
        job["name"],
        job["state"],
        "-" if job["reason"] == "NONE" else job["reason"],
        job["priority"],
        job["num_gpus"],
        places(job),
        f"{job['share']:.0%}",
        duration(job["age_s"]),
        duration(job["run_s"]),
        progress_text(job["progress"]),
        f"{duration(eta_s[0])}-{duration(eta_s[1])}" if eta_s else "-",
        job["queue"] or "-",
        job["user"] or "-",
        job["attempt"],
        "-" if job["exit_code"] is None else job["exit_code"],
        job["message"] or "-",
        " ".join(job["shared_with"]) or "-",
        job["position"] or "-",
        *_filling_cells(job.get("filling")),
    ]
    return [printable(cell) for cell in cells]


def _filling_cells(filling: Mapping[str, Any] | None) -> list[str]:
    """``beside 3``, ``38%``, ``1.04 (1.02-1.06)`` of a background job, ``by 7`` of a foreground."""
    if filling is None:
        return ["-", "-", "-"]
    ids, is_background = filling["with"], filling["role"] == BACKGROUND
    who = f"{'beside' if is_background else 'by'} {' '.join(ids)}"
    if not ids:
        who = "idle GPU" if filling["on"] else "-"
    harvest, slowdown = filling["harvest"], filling["slowdown"]
    return [
        who,
        "-" if harvest is None else f"{harvest:.0%}",
        "-" if slowdown is None else f"{slowdown:.2f}{_interval_text(filling.get('interval'))}",
    ]


def _interval_text(interval: Sequence[float] | None) -> str:
    return "" if interval is None else f" ({interval[0]:.2f}-{interval[1]:.2f})"


def job_text(job: Mapping[str, Any], verdict: Mapping[str, Any], width: float | None = None) -> str:
    """Everything about one job, for ``rota show``, as wide as the terminal unless told."""
    width = width_of_terminal() if width is None else width
    lines = [f"job {job['id']} ({printable(job['name'])})"]
    for name, value in _facts(job, verdict):
        if value is not None:
            line = f"  {printable(name):<13}{printable(value)}"
            lines.append(line if name in COPIED else folded(line, width, indent=15))
    if job["ranks"]:
        lines.append("  ranks")
        lines += [
            f"    rank {r['rank']}  GPU {r['gpu']}  pid {r['pid'] or '-'}  process {r['process']}"
            for r in job["ranks"]
        ]
    lines += flow_lines(verdict)
    lines += goodput_lines(job)
    lines += core_lines(job)
    lines += profile_lines(job["profile"])
    lines += [f"  {line}" for line in trial_lines(job["trials"], width - 2)]
    first, story = job["story"][:1], job["story"][1:]
    lines += ["  story", *(_story_line(each, width) for each in first)]
    if len(story) > MOST_LINES:
        lines.append(f"    ... {len(story) - MOST_LINES} more: rota show {job['id']} --json")
    lines += [_story_line(each, width) for each in story[-MOST_LINES:]]
    return "\n".join(lines)


def _facts(job: Mapping[str, Any], verdict: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """(name, value) of each fact about a job, for one line each; None for an unknown fact."""
    progress = job["progress"]
    facts = [
        ("state", standing_text(verdict)),
        ("sweep", _sweep_text(job["sweep"])),
        ("suspension", _suspension_text(job)),
        ("queue", job["queue"] or None),
        ("priority", job["priority"]),
        ("tags", " ".join(job["tags"]) or None),
        ("GPUs", f"{job['num_gpus']}{_range_text(job['sizes'])}, now {places(job)}"),
        ("CPU cores", _cores_text(job["cores"])),
        ("asked for", _asked_text(job)),
        ("sharing", sharing_text(verdict["sharing"])),
        ("filling", filling_text(verdict.get("filling"))),
        ("turns", turns_text(verdict["turns"])),
        ("by layer", burst_text(verdict.get("burst"))),
        ("resizing", verdict["resizing"]),
        ("attempts", _attempts_text(job)),
        ("run", f"{duration(job['run_s'])} of {duration(job['age_s'])} ({job['share']:.0%})"),
        ("progress", progress_text(progress)),
        ("ETA", (job["eta"] or {}).get("sentence")),
        ("data", data_text(verdict.get("data_wait"))),
    ]
    told = {
        "loss": progress.get("loss"),
        "samples": progress.get("samples") or None,  # a program need not tell them
        "step_time_s": progress.get("step_time_s"),
    }
    told |= progress.get("metrics") or {}
    facts += [
        (name, f"{value:.6g}" if isinstance(value, float) else value)
        for name, value in told.items()
    ]
    facts += [
        ("model", _model_text(job)),
        ("GPU memory", _cycle_text(job["memory"])),
        ("state kept", _kept_text(job["memory"])),
        ("checkpoint", _unsaved_text(progress)),
        ("resumed from", job["resume_from"] and f"job {job['resume_from']}"),
        ("depends on", _dependencies_text(job["depends_on"])),
        ("notifies", _notices_text(job["notify"])),
        ("lost", f"{duration(job['lost_s'])} of work" if job["lost_s"] else None),
        ("lost ranks", job["lost_ranks"] or None),
        ("preempted", f"{times(job['preemptions'])}, moved {times(job['migrations'])}"),
        ("its state", None if job["state_on"] is None else f"on {job['state_on']}"),
        ("processes", job["processes"]),
        ("time limit", None if job["time_limit_s"] is None else duration(job["time_limit_s"])),
        ("environment", " ".join(job["env"]) or None),
        ("workdir", job["workdir"]),
        ("snapshot", job["snapshot"]),
        ("python", job["python"]),
        ("started", job["started"]),
        ("setup", job["setup"]),
        ("command", job["run"]),
    ]
    warnings = [*verdict["warnings"], *(job["goodput"] or {"warnings": ()})["warnings"]]
    return [*facts, *(("warning", warning) for warning in dict.fromkeys(warnings))]


def _story_line(entry: Mapping[str, Any], width: float) -> str:
    stamp = f"    {clock(entry['at_s'])}  "
    return folded(stamp + printable(entry["line"]), width, indent=len(stamp))


def _unsaved_text(progress: Mapping[str, Any]) -> str | None:
    unsaved = progress.get("unsaved")
    return f"{unsaved}; it is tried again" if unsaved else None


def _sweep_text(sweep: Mapping[str, Any] | None) -> str | None:
    """The job's sweep and number in it, and its parameters."""
    if sweep is None:
        return None
    params = ", ".join(f"{name} {value}" for name, value in sweep["params"].items())
    if sweep.get("array"):
        return f"task {sweep['number']} of array {sweep['name']}: {params}"
    return f"trial {sweep['number']} of {sweep['name']}" + (f": {params}" if params else "")


def _asked_text(job: Mapping[str, Any]) -> str | None:
    """``GPUs of a100 or h100, 30 GB of GPU memory, 8 cores, 64 GB of memory``."""
    asked = [f"GPUs of {' or '.join(job['gpu_types'])}"] if job["gpu_types"] else []
    asked += [f"{job['gpu_memory_gb']:g} GB of GPU memory"] if job["gpu_memory_gb"] else []
    asked += [f"{job['cpus']} cores"] if job["cpus"] else []
    asked += [f"{job['memory_gb']:g} GB of memory"] if job["memory_gb"] else []
    return ", ".join(asked) or None


def _cores_text(cores: Mapping[str, Any] | None) -> str | None:
    if cores is None:
        return None
    held_by = cores["held_by"] or "not held"
    return f"{cores['given']:g}, {held_by if held_by == 'not held' else f'held by {held_by}'}"


def _dependencies_text(dependencies: Sequence[Mapping[str, Any]]) -> str | None:
    """``job 3 (succeeded), job 4 (ended)``: how each must end."""
    return ", ".join(f"job {each['job']} ({each['when']})" for each in dependencies) or None


def _notices_text(notices: Sequence[Mapping[str, Any]]) -> str | None:
    """``team-hook (failed, succeeded)``: the hooks that are told of which news of the job."""
    told = [(each.get("webhook") or each["command"], each["on"]) for each in notices]
    return ", ".join(f"{hook} ({', '.join(on)})" for hook, on in told) or None


def _attempts_text(job: Mapping[str, Any]) -> str:
    """The number of the latest, and how many of the retries are used."""
    retries = job["retries"]
    told = f"; {retries['used']} of {retries['max']} retries used" if retries else ""
    return f"{job['attempt']}{told}"


def _suspension_text(job: Mapping[str, Any]) -> str:
    """The way in which the job is suspended, and the reason for it."""
    text, why = SUSPENSIONS.get(job["suspension"], job["suspension"]), job["suspension_why"]
    if job["processes"] == FLOW and job["suspension"] == "BOUNDARY":
        text = "between two operations (rota.flow)"
    return f"{text}: {why}" if why else text


def _range_text(sizes: Sequence[int]) -> str:
    """Such as `` of 1..8 (pow2)``; "" for a job of a fixed size."""
    least, most = sizes[0], sizes[-1]
    if least == most:
        return ""
    if len(sizes) == most - least + 1:
        return f" of {least}..{most}"
    powers = [1 << n for n in range(most.bit_length()) if least <= 1 << n <= most]
    if [size for size in sizes if size != least or size in powers] == powers:
        return f" of {least}..{most} (pow2)"
    return f" of {', '.join(map(str, sizes))}"


def _model_text(job: Mapping[str, Any]) -> str | None:
    """``98.4 MiB, the largest tensor 12 % of it``, as far as the job's script told."""
    if job["model_bytes"] is None:
        return None
    return f"{size_text(job['model_bytes'])}, the largest tensor {job['skew']:.0%} of it"


def _cycle_text(memory: Mapping[str, Any] | None) -> str | None:
    """``312 MiB to 22.9 GiB over a step, the least at its boundary``, if it has been measured."""
    cycle = memory and memory["cycle"]
    if not cycle:
        return None
    point = {"backward": "after backward", "optimizer": "after the optimizer's step"}
    least, most = size_text(cycle["least_bytes"]), size_text(cycle["most_bytes"])
    where = point.get(cycle["least_after"], "at its boundary")
    return f"{least} to {most} over a step, the least {where}"


def _kept_text(memory: Mapping[str, Any] | None) -> str | None:
    """Place of a suspended job's state, and the reason why it is not elsewhere."""
    if memory is None or memory["where"] is None:
        return None
    where = {"processes": "in its processes", "memory": "in host memory", "disk": "on the disk"}
    where["checkpoint"] = "in its own checkpoint"
    text = where[memory["where"]]
    if memory["bytes"] is not None:
        text += f", {size_text(memory['bytes'])}"
    return text + (f" ({memory['error']})" if memory["error"] else "")


def nodes_text(nodes: Sequence[Mapping[str, Any]], output: str = "wide") -> str:
    """The listing of ``rota nodes`` in one of FORMATS; its table is as wide as it comes."""
    rows, any_filled = [], any(any(node.get("fillers", ())) for node in nodes)
    any_elsewhere = any(node.get("address") for node in nodes)
    any_about = any(node.get("about") for node in nodes)
    for node in nodes:
        holders = node.get("holders", [])
        free = sum(not ids for ids in holders) if node["alive"] else 0
        who = " ".join(f"{gpu}:{'+'.join(ids)}" for gpu, ids in enumerate(holders) if ids)
        state = "up" if node["alive"] and node.get("connected", True) else absence_text(node)
        if (closed := closed_text(node)) is not None:
            closed += f" ({node['closed_by']})" if node.get("closed_by") else ""
            state = closed if state == "up" else f"{state}, {closed}"
        if (leaves_s := node.get("leaves_s")) is not None and node.get("closed") != "draining":
            state += f", leaves at {clock(leaves_s)}"
        if node.get("claimed_by"):
            state += f", claimed by {node['claimed_by']}"
        kind = node.get("gpu_type") or "-"
        devices = (node["num_gpus"], free, node_cores_text(node))
        cells = [node["name"], node["kind"], kind, *devices, state, who or "-"]
        if any_elsewhere:
            cells += [node.get("address") or "here", _heard_text(node), node.get("build") or "-"]
        if any_about:
            cells.append(node.get("about") or "-")
        if any_filled:
            cells.append(_fillers_text(node.get("fillers", ())) or "-")
        rows.append([printable(cell) for cell in cells])
    header = ["NODE", "KIND", "TYPE", "GPUS", "FREE", "CORES", "STATE", "GPU:JOB"]
    header += ["ADDRESS", "HEARD", "VERSION"] if any_elsewhere else []
    header += ["ENGINE"] if any_about else []
    header += ["GPU:FILL"] if any_filled else []
    return listing_text(nodes, "wide" if output == "table" else output, header, rows)


def absence_text(node: Mapping[str, Any]) -> str:
    """``lost``, ``away``, or ``away, lost at 14:00:00``: of a node without an agent."""
    if not node["alive"]:
        return "lost"
    lost_at_s = node.get("lost_at_s")
    return "away" if lost_at_s is None else f"away, lost at {clock(lost_at_s)}"


def _heard_text(node: Mapping[str, Any]) -> str:
    """``12s ago``: when a machine that has joined was heard last; ``-`` of any other."""
    silent_s: float | None = node.get("silent_s")
    return "-" if silent_s is None else f"{duration(silent_s)} ago"


def _fillers_text(fillers: Sequence[Mapping[str, Any] | None]) -> str:
    """``0:7 38% 1.04 (1.02-1.06)``: the background job on each GPU, its harvest, the slowdown."""
    told = []
    for gpu, filler in enumerate(fillers):
        if filler is not None:
            _, *figures = _filling_cells(filler)
            told.append(" ".join([f"{gpu}:{filler['id']}", *(f for f in figures if f != "-")]))
    return ", ".join(told)


def node_cores_text(node: Mapping[str, Any]) -> str:
    """``1.5/2 by cgroup v2``: the CPU cores given to jobs, all that they may use, and the means.

    By affinity jobs have whole cores.
    """
    if node.get("cores") is None:
        return "-"
    held_by = node["cores_held_by"] or "not held"
    by = held_by if held_by == "not held" else f"by {held_by}"
    by += ", whole cores" if held_by == "affinity" else ""
    return f"{node['cores_given']:g}/{node['cores']:g} {by}"


def closed_text(node: Mapping[str, Any]) -> str | None:
    """``cordoned``, ``draining by 14:00:00`` or ``drained``; None of a node that takes jobs."""
    closed: str | None = node.get("closed")
    if closed == "draining" and node["drain_by_s"] is not None:
        return f"draining by {clock(node['drain_by_s'])}"
    return closed


def awaited_lines(awaited: Sequence[Mapping[str, Any]]) -> list[str]:
    """Under that table, which nodes were asked for and are not there yet."""
    return [printable(f"awaited: node {each['name']}: {each['why']}") for each in awaited]


def disconnected_lines(nodes: Sequence[Mapping[str, Any]]) -> list[str]:
    """Lines for nodes that are away, or were a moment ago: when and why their connections ended."""
    return [
        printable(
            f"node {node['name']}: its connection ended at {clock(node['disconnected_s'])}: "
            f"{node['disconnected_why']}"
        )
        for node in nodes
        if node["alive"] and node.get("disconnected_s") is not None
    ]


def desired_nodes_lines(policies: Sequence[Mapping[str, Any]]) -> list[str]:
    """Lines below the table of nodes: the number of nodes that the policy asks for, if it does."""
    return [
        f"{policy['name']} asks for {wish['desired']} node{'s' * (wish['desired'] != 1)}; "
        f"utility {wish['utility']:.2f}"
        for policy in policies
        if (wish := policy.get("desired_nodes")) is not None
    ]


def is_final(job: Mapping[str, Any]) -> bool:
    """True if the job has ended."""
    return JobState[job["state"]].is_final
