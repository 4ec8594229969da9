"""Hypothesis strategies for traces."""

from collections.abc import Sequence

from hypothesis import strategies as st

from rota.model.job import JobSpec
from rota.workload.trace import Trace

# Multiples of 1/8 s add up without rounding, so that tests can compare times exactly.
EIGHTHS = st.integers(0, 8000).map(lambda n: n / 8)


def traces(
    max_jobs: int = 12, gangs: Sequence[int] = (1, 2, 3, 4, 5, 6, 7, 8)
) -> st.SearchStrategy[Trace]:
    """Up to ``max_jobs`` jobs with the ids 0, 1, ..., each of as many GPUs as one of ``gangs``."""
    fields = (st.just(""), st.sampled_from(gangs), EIGHTHS, EIGHTHS, st.integers(1, 100))
    specs = st.tuples(*fields).map(lambda values: JobSpec(*values))

    def number(jobs: list[JobSpec]) -> Trace:
        return Trace([spec._replace(job_id=str(i)) for i, spec in enumerate(jobs)])

    return st.lists(specs, max_size=max_jobs).map(number)
