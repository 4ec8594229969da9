"""Readers of job traces: other people's formats, told by their header, and our own.

>>> trace = read_trace("jobs.csv")    # doctest: +SKIP
"""

from datetime import UTC, tzinfo
from importlib import import_module
from pathlib import Path
from typing import Any

from rota.errors import InputError, TraceError, did_you_mean
from rota.workload.readers.base import Report, Source, check_header
from rota.workload.readers.files import read_bytes
from rota.workload.trace import Trace, collection_paused

# Format -> the columns that tell it, all of which its header has. () where a file has no header.
FORMATS: dict[str, tuple[str, ...]] = {
    "rota": ("job_id", "submit_s", "duration_s", "num_gpus"),
    "tiresias": ("job_id", "num_gpu", "submit_time", "duration"),
    "philly": ("timestamp", "duration", "num_gpus"),
    "helios": ("job_id", "gpu_num", "submit_time", "duration"),
    "alibaba-2020": ("job_name", "inst_num", "start_time", "end_time", "plan_gpu"),
    "alibaba-2023": ("name", "num_gpu", "creation_time", "deletion_time", "scheduled_time"),
    "pollux": ("name", "time", "application", "num_replicas", "batch_size"),
    "slurm": ("JobID", "Submit", "Elapsed"),
    "gavel": (),
}


# Logs of clusters, whose jobs are commands of which no suspension is known.
LOGS = ("philly", "helios", "alibaba-2020", "alibaba-2023", "slurm")
DURATION_UNITS = {"ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}
SAMPLE = 1000  # jobs that tell the median well enough
LONG_S = 7 * 86_400.0  # a median of durations beyond this is hardly of seconds


def read_trace(
    path: str | Path,
    format: str = "auto",
    strict: bool = False,
    unit: str = "s",
    tz: str = "",
) -> Trace:
    """The jobs of a trace file, plain or gzipped, in one of ``FORMATS``; ``auto`` tells which.

    ``unit`` is what its durations are in, one of ``DURATION_UNITS``. ``tz`` is the time zone of
    its times that tell none, such as Europe/Berlin; "": UTC.

    Rows that can't be read are counted in the trace's ``num_rejected``; with ``strict`` the first
    is a TraceError. Raises TraceError for a file that can't be read at all, naming the fix.
    """
    path = Path(path)
    source = Source(str(path), read_bytes(path))
    report = Report(str(path), strict, zone_of(tz) if tz else UTC)
    format = _recognise(source) if format == "auto" else format
    reader = _reader(format)
    with collection_paused():
        found = list(reader.read(source, report))
        if not found:
            raise TraceError(_nothing(source, report))
        if unit != "s":
            scale = DURATION_UNITS[unit]
            found = [spec._replace(duration_s=spec.duration_s * scale) for spec in found]
        durations = sorted(spec.duration_s for spec in found[:: max(1, len(found) // SAMPLE)])
        median_s = (durations[len(durations) // 2] + durations[(len(durations) - 1) // 2]) / 2
        if median_s > LONG_S:
            report.note(
                f"the median of the durations is {median_s / 86_400:.0f} days: if they are "
                "milliseconds, give --unit ms"
            )
        return report.trace(found, is_log=format in LOGS)


def zone_of(name: str) -> tzinfo:
    """The time zone of that name. Raises InputError."""
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        known = available_timezones()
        fix = "give one such as Europe/Berlin" if known else "install tzdata: pip install tzdata"
        hint = did_you_mean(name, known)
        raise InputError(f"--tz: {name[:80]!r} is no time zone here{hint}; {fix}") from None


def remarks(trace: Trace) -> list[str]:
    """Remarks on the trace for readers of its figures: rejected rows, and the notes."""
    return [*([describe_rejected(trace)] if trace.num_rejected else []), *trace.notes]


def describe_rejected(trace: Trace, shown: int = 5) -> str:
    """The rejected rows, in a few lines for a terminal; "" if there are none."""
    if not trace.num_rejected:
        return ""
    rows, are = ("row", "is") if trace.num_rejected == 1 else ("rows", "are")
    lines = [f"{trace.name}: {trace.num_rejected:,} {rows} could not be read and {are} left out"]
    lines += [f"  line {line}: {reason}" for line, reason in trace.rejected[:shown]]
    left = trace.num_rejected - min(shown, len(trace.rejected))
    return "\n".join([*lines, f"  and {left:,} more"] if left else lines)


def _nothing(source: Source, report: Report) -> str:
    if report.num_rejected:
        line, reason = report.rejected[0]
        return (
            f"{source.name}: none of its {report.num_rejected:,} rows could be read; "
            f"the first, line {line}: {reason}"
        )
    left_out = f"; {'; '.join(report.notes)}" if report.notes else ""
    return f"{source.name} has a header but no job{left_out}"


def _reader(format: str) -> Any:
    if format not in FORMATS:
        raise TraceError(f"format is {format!r}; there are {', '.join(FORMATS)}")
    return import_module(f"rota.workload.readers.{format.replace('-', '_')}")


def _recognise(source: Source) -> str:
    """The format of a file. TraceError if it is none."""
    header = set(source.header)
    for format, needed in FORMATS.items():
        if needed and header.issuperset(needed):
            return format
    if not source.is_parquet:
        for format in ("gavel", "philly", "alibaba-2020"):
            if _reader(format).matches(source):
                return format
        from rota.workload.readers.slurm import refusal

        if said := refusal(source):
            raise TraceError(said)
    # The likelier format is the one of which more columns are there.
    likely = max(FORMATS, key=lambda format: len(set(FORMATS[format]) & header))
    check_header(source.name, source.header, FORMATS[likely])
    raise AssertionError(f"{source.name} has all columns of {likely}")
