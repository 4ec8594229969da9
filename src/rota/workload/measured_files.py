"""Measured profiles from files: a folder with one folder for each application.

As Pollux's simulator has them: ``placements.csv``, ``scalability.csv`` and, for each global batch
size B, ``validation-B.csv`` with a row for each epoch.
"""

from collections.abc import Callable, Iterable, Sequence
from math import inf
from pathlib import Path
from typing import NamedTuple, TypeVar

from rota.errors import TraceError
from rota.workload.measured import Epochs, Measured, Placement, Step, smallest_rotation
from rota.workload.readers.base import Report, Source, number, table, whole, wrong
from rota.workload.readers.files import read_bytes
from rota.workload.trace import MAX_BATCH

PLACEMENTS = ("placement", "local_bsz", "step_time", "sync_time")
SCALABILITY = ("num_nodes", "num_replicas", "local_bsz", "step_time", "sync_time")
VALIDATION = ("progress", "iteration", "grad_sqr", "grad_var")
MOST = 1e300  # of a number in a file
Row = TypeVar("Row")


class Bounds(NamedTuple):
    """Bounds of Pollux's simulator beside the measured ones; None: as measured."""

    most_per_gpu: int | None = None
    most_gpus: int | None = None


# AdaptDL, branch osdi21-artifact: what its simulator writes into its program, not into its files.
BOUNDS = {"ncf": Bounds(most_gpus=1), "yolov3": Bounds(most_per_gpu=8)}


def read_profiles(folder: str | Path, applications: Iterable[str]) -> dict[str, Measured]:
    """The profiles of these applications. Raises TraceError naming file, line and value."""
    folder = Path(folder)
    if not folder.is_dir():
        raise TraceError(
            f"profiles: {folder} is no folder; name the one with a folder for each application"
        )
    there = {path.name: path for path in sorted(folder.iterdir()) if path.is_dir()}
    known = ", ".join(there) or "none"
    found = {}
    for name in sorted(set(applications)):
        if not name:
            raise TraceError(
                f"a job names no model, and so has no profile; name in the trace's column model "
                f"one of those in {folder}: {known}"
            )
        if name not in there:
            raise TraceError(f"{folder} has no profile of application {name!r}; it has {known}")
        found[name] = read_profile(there[name])
    return found


def read_profile(folder: Path) -> Measured:
    """The profile of one application. Raises TraceError naming file, line and value."""
    placements: dict[Placement, dict[int, Step]] = {}
    for (placement, size), step in _steps(folder / "placements.csv", PLACEMENTS, _placement):
        placements.setdefault(placement, {})[size] = step
    scaled = []
    if (folder / "scalability.csv").exists():
        scaled = _steps(folder / "scalability.csv", SCALABILITY, _shape)
    by_batch = {}
    for path in sorted(folder.glob("validation-*.csv")):
        text = path.stem.partition("-")[2]
        if not (text.isascii() and text.isdigit() and 0 < int(text) <= MAX_BATCH):
            raise TraceError(f"{path}: name it validation-B.csv, where B is the global batch size")
        by_batch[int(text)] = _epochs(path)
    if not by_batch:
        raise TraceError(f"{folder} has no validation-B.csv; one for each batch size is needed")
    bounds = BOUNDS.get(folder.name, Bounds())
    return Measured(folder.name, placements, scaled, by_batch, **bounds._asdict())


def _rows(path: Path, needed: Sequence[str], make: Callable[[list[str]], Row]) -> list[Row]:
    """``make`` of the needed fields of each row. Raises TraceError for the first wrong row."""
    source, report = Source(str(path), read_bytes(path)), Report(str(path), strict=True)
    rows = table(source, report, needed)
    getters, made = [rows.getter(column) for column in needed], list[Row]()
    for line, row in rows.rows:
        try:
            made.append(make([get(row) for get in getters]))
        except TraceError as error:
            report.reject(line, str(error))
    if not made:
        raise TraceError(f"{path} has a header but no rows")
    return made


Key = TypeVar("Key")


def _steps(
    path: Path, needed: Sequence[str], key_of: Callable[[list[str]], Key]
) -> list[tuple[Key, Step]]:
    seen: set[Key] = set()

    def make(fields: list[str]) -> tuple[Key, Step]:
        key = key_of(fields)
        step_s, sync_s = (
            number(column, text, "seconds above zero" if column == "step_time" else "seconds")
            for column, text in zip(needed[-2:], fields[-2:], strict=True)
        )
        if not step_s:
            wrong("step_time", fields[-2], "it must be above zero")
        if sync_s > step_s:
            wrong("sync_time", fields[-1], f"it is a part of step_time, {fields[-2]}")
        if key in seen:
            wrong(needed[0], fields[0], f"it stands there twice with local_bsz {fields[-3]}")
        seen.add(key)
        return key, Step(step_s, sync_s)

    return _rows(path, needed, make)


def _placement(fields: list[str]) -> tuple[Placement, int]:
    digits = fields[0]
    if not (digits.isascii() and digits.isdigit() and "0" not in digits and len(digits) <= 64):
        wrong("placement", digits, "it must be one digit, 1 to 9, for each node: its GPUs")
    return smallest_rotation(tuple(map(int, digits))), whole("local_bsz", fields[1], MAX_BATCH)


def _shape(fields: list[str]) -> tuple[int, int, int]:
    nodes, gpus = whole("num_nodes", fields[0]), whole("num_replicas", fields[1])
    if gpus < nodes:
        wrong("num_replicas", gpus, f"there must be one on each of the {nodes} nodes at least")
    return nodes, gpus, whole("local_bsz", fields[2], MAX_BATCH)


def _epochs(path: Path) -> Epochs:
    before = [0.0, 0.0]

    def make(fields: list[str]) -> tuple[float, ...]:
        values = tuple(
            number(column, text, "zero or a number above it", high=MOST)
            for column, text in zip(VALIDATION, fields, strict=True)
        )
        for index in (0, 1):
            if not before[index] < values[index] < inf:
                wrong(VALIDATION[index], fields[index], f"it must rise from {before[index]:g}")
            before[index] = values[index]
        if not values[2] + values[3] > 0:
            wrong("grad_var", fields[3], "it and grad_sqr can't both be zero")
        return values

    return Epochs(*zip(*_rows(path, VALIDATION, make), strict=True))
