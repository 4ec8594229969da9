"""The one job table: what every trace becomes, whatever it was read from."""

from collections.abc import Iterable, Iterator
from math import inf

from rota.errors import TraceError
from rota.model.job import JobSpec

# Column -> (unit, meaning). The first four every trace has; the others may be absent.
COLUMNS = {
    "job_id": ("", "the job's name, unique in the trace"),
    "submit_s": ("s", "when the job arrives, from the trace's zero"),
    "duration_s": ("s", "run time with all its GPUs, without any wait"),
    "num_gpus": ("GPUs", "size of the gang"),
    "vc": ("", "virtual cluster or queue"),
    "user": ("", "who submitted it"),
    "priority": ("1..100", "larger is sooner; the weight of weighted policies"),
    "model": ("", "what it trains"),
}
REQUIRED = ("job_id", "submit_s", "duration_s", "num_gpus")
MAX_GPUS = 1_000_000
MAX_ID = 200


class Trace:
    """Jobs in order of (submit_s, id). Ids that are all whole numbers are ordered as numbers."""

    __slots__ = ("jobs", "name")

    def __init__(self, jobs: Iterable[JobSpec], name: str = "trace") -> None:
        rows = list(jobs)
        if all(spec.job_id.isascii() and spec.job_id.isdigit() for spec in rows):
            rows.sort(key=lambda spec: (spec.submit_s, int(spec.job_id)))
        else:
            rows.sort(key=lambda spec: (spec.submit_s, spec.job_id))
        self.jobs = rows
        self.name = name

    def __len__(self) -> int:
        return len(self.jobs)

    def __iter__(self) -> Iterator[JobSpec]:
        return iter(self.jobs)


class RowChecker:
    """Turns the fields of one row into a JobSpec, and says which line and column is wrong."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._seen: dict[str, int] = {}

    def spec(self, line: int, job_id: str, numbers: tuple[str, str, str], **rest: str) -> JobSpec:
        """The job of one line; ``numbers`` are submit_s, duration_s, num_gpus as text.

        Raises TraceError.
        """
        if not 0 < len(job_id) <= MAX_ID:
            self.fail(line, "job_id", job_id, f"give every job an id of 1 to {MAX_ID} characters")
        first = self._seen.setdefault(job_id, line)
        if first != line:
            self.fail(line, "job_id", job_id, f"line {first} has the same id; ids must be unique")
        submit_s = self.number(line, "submit_s", numbers[0], 0.0, "zero or more seconds")
        duration_s = self.number(line, "duration_s", numbers[1], 0.0, "zero or more seconds")
        num_gpus = self.whole(line, "num_gpus", numbers[2], MAX_GPUS)
        priority = rest.pop("priority", "")
        return JobSpec(
            job_id=job_id,
            num_gpus=num_gpus,
            submit_s=submit_s,
            duration_s=duration_s,
            priority=self.whole(line, "priority", priority, 100) if priority else 50,
            **rest,  # type: ignore[arg-type]
        )

    def number(self, line: int, column: str, text: str, low: float, want: str) -> float:
        """``text`` as a finite number of at least ``low``. Raises TraceError."""
        try:
            value = float(text)
        except ValueError:
            value = inf
        if not low <= value < inf:
            self.fail(line, column, text, f"it must be {want}")
        return value

    def whole(self, line: int, column: str, text: str, high: int) -> int:
        """``text`` as a whole number from 1 to ``high``. Raises TraceError."""
        value = self.number(line, column, text, 1.0, f"a whole number from 1 to {high}")
        if value != int(value) or value > high:
            self.fail(line, column, text, f"it must be a whole number from 1 to {high}")
        return int(value)

    def fail(self, line: int, column: str, text: str, fix: str) -> None:
        """Raise the TraceError for one field."""
        raise TraceError(f"{self._name}, line {line}: {column} is {text[:80]!r}; {fix}")
