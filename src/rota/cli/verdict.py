"""Shows verdicts on jobs in a terminal: how a job stands, why it waits, and what was tried."""

from collections.abc import Mapping, Sequence
from typing import Any

from rota.cli.flow import flow_text
from rota.cli.table import render, wide, width_of_terminal
from rota.cli.text import clock, folded
from rota.explain.data_wait import NOTABLE
from rota.model.allocation import gpus_text
from rota.model.naming import few
from rota.model.naming import jobs_text as jobs_named
from rota.report.text import printable


def why_text(verdict: Mapping[str, Any], width: float | None = None) -> str:
    """A verdict of ``rota why``, as wide as the terminal unless told otherwise."""
    width = width_of_terminal() if width is None else width
    start = f"job {verdict['job_id']} is {printable(standing_text(verdict))}"
    lines = [folded(start, width, indent=2)]
    if verdict["blockers"]:
        lines += ["", *blocker_lines(verdict["blockers"], width), ""]
    turns = verdict.get("turns")
    waits = turns is None or turns["position"] is None
    place = f"{verdict['position']} in the policy's order among jobs without GPUs"
    cpus = verdict.get("cpus")
    data = data_text(verdict.get("data_wait"), above=NOTABLE)
    facts = [
        ("would start if", verdict["would_start_if"]),
        *(("awaits", sentence) for sentence in verdict.get("awaited", ())),
        ("ETA", (verdict.get("eta") or {}).get("sentence")),
        ("position", place if verdict["position"] and waits else None),
        ("turns", turns_text(turns)),
        ("sharing", sharing_text(verdict.get("sharing"))),
        ("filling", filling_text(verdict.get("filling"))),
        ("plan by layer", burst_text(verdict.get("burst"))),
        ("operations", flow_text(verdict.get("flow"))),
        ("size", verdict["resizing"]),
        ("data", None if data and cpus and data in cpus else data),
        ("CPU cores", cpus),
        *(("warning", warning) for warning in verdict["warnings"]),
    ]
    for name, value in facts:
        if value:
            lines.append(folded(f"{name:<16}{printable(value)}", width, indent=16))
    lines += trial_lines(verdict["trials"], width)
    history = [item for item in verdict["history"] if item["reason"] != "NONE"]
    if history:
        lines.append("history")
        lines += [f"  {clock(item['at_s'])}  {item['reason']}" for item in history[-20:]]
    return "\n".join(lines)


def data_text(wait: Mapping[str, Any] | None, above: float | None = None) -> str | None:
    """``waits for data 38 % of each step``; None if that is unknown, or not above a share."""
    if wait is None or (above is not None and wait["share"] <= above):
        return None
    return str(wait["sentence"])


def blocker_lines(blockers: Sequence[Mapping[str, Any]], width: float) -> list[str]:
    """The blockers of a verdict: a table, or where that is too wide, a paragraph for each."""
    header = ("RULE", "NEED", "HAVE", "HELD BY JOBS")
    rows = [
        [
            *(printable(b[key]) for key in ("rule", "need", "have")),
            few(b["held_by"], " ", b.get("held_by_more", 0)) or "-",
        ]
        for b in blockers
    ]
    if wide(header, rows) <= width:
        return [render(header, rows, text_columns=4)]
    lines = []
    for rule, *cells in rows:
        lines.append(rule)
        names = ("needs", "has", "held by")
        for name, cell in zip(names, cells, strict=True):
            if cell != "-":
                lines.append(folded(f"  {name:<9}{cell}", width, indent=11))
    return lines


def trial_lines(trials: Sequence[Mapping[str, Any]], width: float) -> list[str]:
    """Lines about the policy's trials; none if there were none."""
    if not trials:
        return []
    heading = "tried, in speeds relative to before; of jobs that share a GPU, in sum"
    lines = [folded(heading, width, indent=2)]
    for trial in trials:
        stamp = f"  {clock(trial['at_s'])}  "
        lines.append(folded(stamp + _trial_text(trial), width, indent=len(stamp)))
    return lines


def _trial_text(trial: Mapping[str, Any]) -> str:
    """``pack with job 4 on here:0: predicted 1, measured 1.2, kept``."""
    what = printable(str(trial["what"]))
    if trial.get("from"):
        what += f", {trial['from']} to {trial['on']}"
        what += f", with {jobs_named(trial['with'])} in exchange" if trial.get("with") else ""
    else:
        what += f" with {jobs_named(trial['with'])}" if trial.get("with") else ""
        what += f" on {trial['on']}" if trial.get("on") else ""
    outcome = "kept" if trial["kept"] else "undone"
    measured = "not measured" if trial["measured"] is None else f"measured {trial['measured']:.3g}"
    return f"{what}: predicted {trial['predicted']:.3g}, {measured}, {outcome}"


def truth(job: Mapping[str, Any], verdict: Mapping[str, Any]) -> str:
    """One line of scheduling truth about a job that was just handed in."""
    least, most = job["min_gpus"], job["max_gpus"]
    needs = f"needs {gpus_text(least)}" if least == most else f"takes {least}..{most} GPUs"
    if verdict["resizing"] and job["state"] == "PENDING":
        needs += f" ({verdict['resizing']})"
    start = f"job {job['id']} ({printable(job['name'])})"
    if not verdict["blockers"]:
        return f"{start}: {printable(verdict['sentence'])}; {needs}; `rota logs {job['id']} -f`"
    turns = verdict["turns"]
    place = f", number {verdict['position']} in the policy's order" if verdict["position"] else ""
    if turns is not None and turns["position"]:
        place = f", number {turns['position']} of {len(turns['waiting'])} for a turn"
        place += f" on {', '.join(turns['nodes'])}"
    hint = f"`rota why {job['id']}`"
    return f"{start}: waits{place}; {needs}; {printable(verdict['sentence'])}; {hint}"


def sharing_text(sharing: Mapping[str, Any] | None) -> str | None:
    """``here:0 with job 4, on trial``, of a job that does not have its GPUs alone."""
    if sharing is None:
        return None
    told = f"{sharing['on']} with {jobs_named(sharing['with'])}"
    if sharing["on_trial"]:
        return f"{told}, on trial: what they do together is being measured"
    if sharing["gain"] is None:
        return told
    return f"{told}, kept: together they do {sharing['gain']:.3g} times the work of turns"


def filling_text(filling: Mapping[str, Any] | None) -> str | None:
    """The sentence on background jobs of a job's GPUs; None of one without GPUs."""
    if filling is None or filling["on"] is None:
        return None
    return str(filling["sentence"])


def burst_text(burst: Mapping[str, Any] | None) -> str | None:
    """The sentence on the plan that a job's program has told for its layers; None without one."""
    return None if burst is None else str(burst["sentence"])


def turns_text(turns: Mapping[str, Any] | None) -> str | None:
    """``on here: 1 now, then 4, 3+5; the turn ends at 12:00:05``, where jobs take turns."""
    if turns is None:
        return None
    now, then = (
        few(["+".join(ids) for ids in turns[name]]) or "none" for name in ("running", "waiting")
    )
    where = ", ".join(turns["nodes"])
    return f"on {where}: {now} now, then {then}; the turn ends at {clock(turns['ends_s'])}"


def standing_text(verdict: Mapping[str, Any]) -> str:
    """``RUNNING: it runs on here:0``, of a job that has ended ``FAILED with exit code 1``."""
    state, sentence = verdict["state"], str(verdict["sentence"])
    ended = sentence.removeprefix("it ended as ")
    return ended if ended.startswith(state) else f"{state}: {sentence}"
