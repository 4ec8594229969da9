"""How jobs look in a terminal: durations, tables, and text that can't play tricks on it."""

import csv
import io
import json
import time
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

from rota.cli.table import render
from rota.model.allocation import gpus_text
from rota.model.job import JobState

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
WIDE = (*COLUMNS, "QUEUE", "USER", "ATTEMPT", "EXIT", "MESSAGE")
SUSPENSIONS = {
    "BOUNDARY": "at a step boundary (rota.train)",
    "PROCESS": "its processes are stopped and continued",
    "CHECKPOINT": "its device memory is copied to the host (CUDA checkpoint)",
    "RESTART": "its processes end, and start again from its own checkpoint",
    "UNKNOWN": "not known yet",
}
FORMATS = ("table", "wide", "json", "yaml", "csv")


def printable(text: object, keep: str = "") -> str:
    """The text with every character that moves cursors, turns colours or hides written out."""
    return "".join(
        char if char in keep or not _is_tricky(char) else _escape(char) for char in str(text)
    )


def _is_tricky(char: str) -> bool:
    return unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp")


def _escape(char: str) -> str:
    return f"\\x{ord(char):02x}" if ord(char) < 256 else f"\\u{ord(char):04x}"


def duration(seconds: float | None) -> str:
    """For example 45s, 3m20s, 2h05m, 1d03h; a dash for None."""
    if seconds is None:
        return "-"
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02}h"


def clock(at_s: float) -> str:
    """Local time, with the date if it is not today's."""
    local, today = time.localtime(at_s), time.localtime()
    is_today = (local.tm_year, local.tm_yday) == (today.tm_year, today.tm_yday)
    return time.strftime("%H:%M:%S" if is_today else "%Y-%m-%d %H:%M:%S", local)


def progress_text(progress: Mapping[str, Any]) -> str:
    """For example ``120/1000 12%``."""
    step, total = progress.get("step"), progress.get("total")
    if not isinstance(step, int | float):
        return "-"
    if not isinstance(total, int | float) or total <= 0:
        return str(step)
    return f"{step}/{total} {100 * step // total:.0f}%"


def places(job: Mapping[str, Any]) -> str:
    """Which GPUs the job holds, for example ``node0:0,1``."""
    held = [f"{part['node']}:{','.join(map(str, part['gpus']))}" for part in job["gpus"]]
    return printable(" ".join(held)) or "-"


def jobs_text(jobs: Sequence[Mapping[str, Any]], output: str) -> str:
    """The jobs in one of FORMATS."""
    if output in ("json", "yaml"):
        return structure_text(list(jobs), output)
    header = COLUMNS if output == "table" else WIDE
    rows = [_cells(job)[: len(header)] for job in jobs]
    if output == "csv":
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([header, *rows])
        return text.getvalue().rstrip("\n")
    return render(header, rows, text_columns=len(header))


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
    ]
    return [printable(cell) for cell in cells]


def job_text(job: Mapping[str, Any], verdict: Mapping[str, Any]) -> str:
    """Everything about one job, for ``rota show``."""
    progress = job["progress"]
    facts = [
        ("state", f"{job['state']}: {verdict['sentence']}"),
        ("suspension", _suspension_text(job)),
        ("queue", job["queue"] or None),
        ("priority", job["priority"]),
        ("GPUs", f"{job['num_gpus']}{_range_text(job['sizes'])}, now {places(job)}"),
        ("resizing", verdict["resizing"]),
        ("attempts", job["attempt"]),
        ("run", f"{duration(job['run_s'])} of {duration(job['age_s'])} ({job['share']:.0%})"),
        ("progress", progress_text(progress)),
    ]
    facts += [
        (name, progress[name])
        for name in ("loss", "samples", "step_time_s")
        if progress.get(name) is not None
    ]
    facts += [(name, value) for name, value in (progress.get("metrics") or {}).items()]
    facts += [
        ("model", _model_text(job)),
        ("GPU memory", _cycle_text(job["memory"])),
        ("state kept", _kept_text(job["memory"])),
        ("lost", f"{duration(job['lost_s'])} of work" if job["lost_s"] else None),
        ("lost ranks", job["lost_ranks"] or None),
        ("preempted", f"{job['preemptions']} times, moved {job['migrations']} times"),
        ("its state", None if job["state_on"] is None else f"on {job['state_on']}"),
        ("processes", job["processes"]),
        ("time limit", None if job["time_limit_s"] is None else duration(job["time_limit_s"])),
        ("exit code", job["exit_code"]),
        ("environment", " ".join(job["env"]) or None),
        ("workdir", job["workdir"]),
        ("command", job["run"]),
    ]
    lines = [f"job {job['id']} ({printable(job['name'])})"]
    for name, value in facts:
        if value is not None:
            lines.append(f"  {printable(name):<13}{printable(value)}")
    if job["ranks"]:
        lines.append("  ranks")
        lines += [
            f"    rank {r['rank']}  GPU {r['gpu']}  pid {r['pid'] or '-'}  process {r['process']}"
            for r in job["ranks"]
        ]
    lines += _profile_lines(job["profile"])
    if job["trials"]:
        lines.append("  tried, in speeds relative to before")
        lines += [f"    {clock(trial['at_s'])}  {_trial_text(trial)}" for trial in job["trials"]]
    lines.append("  story")
    lines += [f"    {clock(e['at_s'])}  {printable(e['line'])}" for e in job["story"]]
    return "\n".join(lines)


def _suspension_text(job: Mapping[str, Any]) -> str:
    """How the job is suspended, and why so."""
    text, why = SUSPENSIONS.get(job["suspension"], job["suspension"]), job["suspension_why"]
    return f"{text}: {why}" if why else text


def _range_text(sizes: Sequence[int]) -> str:
    """For example `` of 1..8 (pow2)``; empty for a job of a fixed size."""
    least, most = sizes[0], sizes[-1]
    if least == most:
        return ""
    if len(sizes) == most - least + 1:
        return f" of {least}..{most}"
    powers = [1 << n for n in range(most.bit_length()) if least <= 1 << n <= most]
    if [size for size in sizes if size != least or size in powers] == powers:
        return f" of {least}..{most} (pow2)"
    return f" of {', '.join(map(str, sizes))}"


def _profile_lines(profile: Mapping[str, Any]) -> list[str]:
    """The job's kind, and what was measured of that; of the job itself, if that is all there is."""
    known = profile["of_kind"] or profile["own"]
    if profile["kind"] is None or known is None:
        return []
    jobs = "1 job" if known["jobs"] == 1 else f"{known['jobs']} jobs"
    so = "so far" if profile["certain"] else "so far; as the last with this command"
    lines = [f"  kind         {printable(profile['kind'])}: {jobs} {so}"]
    lines += [f"    {_where_text(each)}: {_speed_text(each)}" for each in known["speeds"]]
    used = [
        ("device busy", _part_text(known["device_util"])),
        ("CPU cores", _number_text(known["cpu_cores"])),
        ("GPU memory", _memory_text(known)),
    ]
    told = [f"{name} {text}" for name, text in used if text != "-"]
    return [*lines, f"    {', '.join(told)}"] if told else lines


def _where_text(speed: Mapping[str, Any]) -> str:
    """``2 GPUs (a100) of 2 nodes, beside train-1a2b3c4d``."""
    type_ = f" ({speed['gpu_type']})" if speed["gpu_type"] else ""
    nodes = f" of {speed['num_nodes']} nodes" if speed["num_nodes"] > 1 else ""
    beside = f", beside {speed['beside']}" if speed["beside"] else ""
    return printable(f"{gpus_text(speed['num_gpus'])}{type_}{nodes}{beside}")


def _speed_text(speed: Mapping[str, Any]) -> str:
    times = f"mean of {speed['count']}, the last {_number_text(speed['latest_s'])}"
    part = f", {speed['relative']:.2f} of alone" if speed["beside"] and speed["relative"] else ""
    return f"{_number_text(speed['step_s'])} s per step{part} ({times})"


def _part_text(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


def _number_text(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def _memory_text(known: Mapping[str, Any]) -> str:
    sizes = [known[name] for name in ("least_bytes", "most_bytes")]
    return " to ".join(_size_text(size) for size in sizes if size is not None) or "-"


def profiles_text(profiles: Sequence[Mapping[str, Any]]) -> str:
    """The table of ``rota profiles``: a line for each placement of each kind."""
    rows = []
    for known in profiles:
        size, batch = known["model_bytes"], known["batch"]
        for speed in known["speeds"] or [None]:
            cells = (
                known["kind"],
                "-" if speed is None else _where_text(speed),
                known["jobs"],
                "-" if size is None else _size_text(size),
                batch or "-",
                "-" if speed is None else _number_text(speed["step_s"]),
                "-" if speed is None else _part_text(speed["relative"]),
                _part_text(known["device_util"]),
                _number_text(known["cpu_cores"]),
                _memory_text(known),
            )
            rows.append([printable(cell) for cell in cells])
    header = ("KIND", "WHERE", "JOBS", "MODEL", "BATCH", "STEP_S", "SPEED", "BUSY", "CORES", "MEM")
    return render(header, rows, text_columns=2)


def _model_text(job: Mapping[str, Any]) -> str | None:
    """``98.4 MiB, the largest tensor 12 % of it``, as far as the job's script told."""
    if job["model_bytes"] is None:
        return None
    return f"{_size_text(job['model_bytes'])}, the largest tensor {job['skew']:.0%} of it"


def _cycle_text(memory: Mapping[str, Any] | None) -> str | None:
    """``312 MiB to 22.9 GiB over a step, the least at its boundary``, if it has been measured."""
    cycle = memory and memory["cycle"]
    if not cycle:
        return None
    point = {"backward": "after backward", "optimizer": "after the optimizer's step"}
    least, most = _size_text(cycle["least_bytes"]), _size_text(cycle["most_bytes"])
    where = point.get(cycle["least_after"], "at its boundary")
    return f"{least} to {most} over a step, the least {where}"


def _kept_text(memory: Mapping[str, Any] | None) -> str | None:
    """Where the state of a suspended job is, and what has kept it there."""
    if memory is None or memory["where"] is None:
        return None
    where = {"processes": "in its processes", "memory": "in host memory", "disk": "on the disk"}
    where["checkpoint"] = "in its own checkpoint"
    text = where[memory["where"]]
    if memory["bytes"] is not None:
        text += f", {_size_text(memory['bytes'])}"
    return text + (f" ({memory['error']})" if memory["error"] else "")


def _size_text(num_bytes: int) -> str:
    unit, size = "B", float(num_bytes)
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if size >= 1024:
            unit, size = larger, size / 1024
    return f"{size:.4g} {unit}"


def why_text(verdict: Mapping[str, Any]) -> str:
    """A verdict of ``rota why``."""
    lines = [f"job {verdict['job_id']} is {verdict['state']}: {printable(verdict['sentence'])}"]
    if verdict["blockers"]:
        rows = [
            [
                printable(b["rule"]),
                printable(b["need"]),
                printable(b["have"]),
                " ".join(b["held_by"]) or "-",
            ]
            for b in verdict["blockers"]
        ]
        lines += ["", render(("RULE", "NEED", "HAVE", "HELD BY JOBS"), rows, text_columns=4), ""]
    if verdict["would_start_if"]:
        lines.append(f"would start if  {printable(verdict['would_start_if'])}")
    if verdict["position"]:
        lines.append(f"position        {verdict['position']} by arrival among jobs without GPUs")
    if verdict["resizing"]:
        lines.append(f"size            {printable(verdict['resizing'])}")
    if verdict["trials"]:
        lines.append("tried, in speeds relative to before")
        lines += [f"  {clock(trial['at_s'])}  {_trial_text(trial)}" for trial in verdict["trials"]]
    history = [item for item in verdict["history"] if item["reason"] != "NONE"]
    if history:
        lines.append("history")
        lines += [f"  {clock(item['at_s'])}  {item['reason']}" for item in history[-20:]]
    return "\n".join(lines)


def _trial_text(trial: Mapping[str, Any]) -> str:
    """``pack: predicted 1, measured 1.2, kept``."""
    outcome = "kept" if trial["kept"] else "undone"
    measured = "not measured" if trial["measured"] is None else f"measured {trial['measured']:.3g}"
    speeds = f"predicted {trial['predicted']:.3g}, {measured}"
    return f"{printable(str(trial['what']))}: {speeds}, {outcome}"


def nodes_text(nodes: Sequence[Mapping[str, Any]]) -> str:
    """The table of ``rota nodes``."""
    rows = []
    for node in nodes:
        holders = node.get("holders", [])
        free = sum(not ids for ids in holders) if node["alive"] else 0
        who = " ".join(f"{gpu}:{'+'.join(ids)}" for gpu, ids in enumerate(holders) if ids)
        state = "lost" if not node["alive"] else "up" if node.get("connected", True) else "away"
        kind = node.get("gpu_type") or "-"
        cells = (node["name"], node["kind"], kind, node["num_gpus"], free, state, who or "-")
        rows.append([printable(cell) for cell in cells])
    header = ("NODE", "KIND", "TYPE", "GPUS", "FREE", "STATE", "GPU:JOB")
    return render(header, rows, text_columns=len(header))


def truth(job: Mapping[str, Any], verdict: Mapping[str, Any]) -> str:
    """One line of scheduling truth about a job that was just handed in."""
    least, most = job["min_gpus"], job["max_gpus"]
    needs = f"needs {gpus_text(least)}" if least == most else f"takes {least}..{most} GPUs"
    if verdict["resizing"] and job["state"] == "PENDING":
        needs += f" ({verdict['resizing']})"
    start = f"job {job['id']} ({printable(job['name'])})"
    if not verdict["blockers"]:
        return f"{start}: {printable(verdict['sentence'])}; {needs}; `rota logs {job['id']} -f`"
    place = f", number {verdict['position']} by arrival" if verdict["position"] else ""
    hint = f"`rota why {job['id']}`"
    return f"{start}: waits{place}; {needs}; {printable(verdict['sentence'])}; {hint}"


def is_final(job: Mapping[str, Any]) -> bool:
    """Whether the job has ended."""
    return JobState[job["state"]].is_final
