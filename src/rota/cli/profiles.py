"""Shows measurements of kinds of jobs in a terminal."""

from collections.abc import Mapping, Sequence
from typing import Any

from rota.cli.table import render, wide, width_of_terminal
from rota.cli.text import folded, size_text
from rota.model.allocation import gpus_text
from rota.report.text import printable

PROFILE_COLUMNS = (
    *("KIND", "WHERE", "JOBS", "MODEL", "BATCH", "STEP_S", "SPEED", "BUSY", "CORES", "MEM"),
)


def profile_lines(profile: Mapping[str, Any]) -> list[str]:
    """The job's kind, and what was measured of that; of the job itself, if that is all there is."""
    known = profile["of_kind"] or profile["own"]
    if profile["kind"] is None or known is None:
        return []
    so = "so far" if profile["certain"] else "so far; as the last with this command"
    lines = [f"kind         {printable(profile['kind'])}: {_jobs_text(known)} {so}"]
    lines += _measured_lines(known)
    width = width_of_terminal() - 2
    return [f"  {line}" for each in lines for line in folded(each, width, indent=4).split("\n")]


def kind_text(known: Mapping[str, Any], width: float) -> str:
    """All measurements of one kind, for ``rota profiles KIND`` or a narrow terminal."""
    size, batch = known["model_bytes"], known["batch"]
    facts = [
        _jobs_text(known),
        None if size is None else f"model of {size_text(size)}",
        None if batch is None else f"batches of {batch}",
    ]
    lines = [f"{printable(known['kind'])}: {', '.join(fact for fact in facts if fact)}"]
    lines += _measured_lines(known)
    return "\n".join(folded(line, width, indent=4) for line in lines)


def _jobs_text(known: Mapping[str, Any]) -> str:
    return "1 job" if known["jobs"] == 1 else f"{known['jobs']} jobs"


def _measured_lines(known: Mapping[str, Any]) -> list[str]:
    """A line for each placement, and one for what jobs use."""
    lines = [f"  {_where_text(each)}: {_speed_text(each)}" for each in known["speeds"]]
    used = [
        ("device busy", _part_text(known["device_util"])),
        ("CPU cores", _number_text(known["cpu_cores"])),
        ("GPU memory", _memory_text(known)),
    ]
    told = [f"{name} {text}" for name, text in used if text != "-"]
    return [*lines, f"  {', '.join(told)}"] if told else lines


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
    return " to ".join(size_text(size) for size in sizes if size is not None) or "-"


def profile_rows(profiles: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """The rows of ``rota profiles``: a line for each placement of each kind."""
    rows = []
    for known in profiles:
        size, batch = known["model_bytes"], known["batch"]
        for speed in known["speeds"] or [None]:
            cells = (
                known["kind"],
                "-" if speed is None else _where_text(speed),
                known["jobs"],
                "-" if size is None else size_text(size),
                batch or "-",
                "-" if speed is None else _number_text(speed["step_s"]),
                "-" if speed is None else _part_text(speed["relative"]),
                _part_text(known["device_util"]),
                _number_text(known["cpu_cores"]),
                _memory_text(known),
            )
            rows.append([printable(cell) for cell in cells])
    return rows


def profiles_text(profiles: Sequence[Mapping[str, Any]]) -> str:
    """The table of ``rota profiles``; a paragraph for each kind if that is too wide."""
    header, rows, width = PROFILE_COLUMNS, profile_rows(profiles), width_of_terminal()
    if profiles and wide(header, rows) > width:
        return "\n".join(kind_text(known, width) for known in profiles)
    return render(header, rows, text_columns=2)
