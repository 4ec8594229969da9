"""Hypothesis strategies for traces."""

from hypothesis import strategies as st

from rota.model.job import JobSpec
from rota.workload.trace import Trace

# Multiples of 1/8 s add up without rounding, so that tests can compare times exactly.
EIGHTHS = st.integers(0, 8000).map(lambda n: n / 8)


def specs(max_gpus: int = 8) -> st.SearchStrategy[JobSpec]:
    """One job, without an id of its own."""
    fields = (st.just(""), st.integers(1, max_gpus), EIGHTHS, EIGHTHS, st.integers(1, 100))
    return st.tuples(*fields).map(lambda values: JobSpec(*values))


def traces(max_jobs: int = 12, max_gpus: int = 8) -> st.SearchStrategy[Trace]:
    """Up to ``max_jobs`` jobs with the ids 0, 1, ...; every one fits on ``max_gpus`` GPUs."""

    def number(jobs: list[JobSpec]) -> Trace:
        return Trace([spec._replace(job_id=str(i)) for i, spec in enumerate(jobs)])

    return st.lists(specs(max_gpus), max_size=max_jobs).map(number)
