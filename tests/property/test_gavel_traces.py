"""Whatever stands in a Gavel trace or its table of rates: jobs, rejected rows, or a TraceError."""

import json
from contextlib import suppress
from math import isfinite
from tempfile import TemporaryDirectory

from hypothesis import given
from hypothesis import strategies as st

from rota.errors import TraceError
from rota.workload.readers.gavel import FIELDS, read_gavel

HOSTILE = st.sampled_from(
    ["", "0", "1", "-1", "2.5", "nan", "inf", "1e400", "9" * 400, "1e-320", "\0", '"', "1_0", "٣"]
)
FIELD = st.one_of(HOSTILE, st.sampled_from(["A3C", "LM (batch size 40)"]), st.text(max_size=6))
RATE = st.one_of(
    st.floats(), st.integers(), st.none(), st.booleans(), st.just(10**400), st.just(5e-324)
)
KEY = st.sampled_from(["('A3C', 1)", "('A3C', 2)", "('LM (batch size 40)', 1)", "A3C", "('', 0)"])
TABLE = st.dictionaries(
    st.sampled_from(["v100", "k80", "v100_unconsolidated"]),
    st.dictionaries(KEY, st.dictionaries(st.just("null"), RATE), max_size=3),
)
ROW = st.lists(FIELD, min_size=len(FIELDS) - 1, max_size=len(FIELDS) + 1)
GOOD = ["A3C", "c", "d", "-s", "1", "100", "1", "1", "-1", "0"]


@st.composite
def rows(draw):
    """A good row with up to two fields that may be anything."""
    fields = list(GOOD)
    for place in draw(st.lists(st.integers(0, 9), max_size=2)):
        fields[place] = draw(FIELD)
    return fields


@given(
    lines=st.lists(st.one_of(rows(), ROW), max_size=5),
    table=st.none() | st.just({"v100": {"('A3C', 1)": {"null": 2.0}}}) | TABLE,
    cut=st.integers(0, 40),
)
def test_every_row_is_a_job_or_rejected_and_nothing_else_goes_wrong(lines, table, cut):
    text = "\n".join("\t".join(fields) for fields in lines)
    text = text[: len(text) - cut]
    with TemporaryDirectory() as folder, suppress(TraceError):
        path, rates = f"{folder}/jobs.trace", None
        with open(path, "wb") as file:
            file.write(text.encode("utf-8", "surrogatepass"))
        if table is not None:
            rates = f"{folder}/rates.json"
            with open(rates, "w") as file:
                json.dump(table, file)
        trace = read_gavel(path, rates)
        assert trace.num_rejected == len(trace.rejected)
        for job in trace:
            assert job.num_gpus >= 1
            assert isfinite(job.submit_s)
            assert 0 <= job.duration_s < float("inf")
            assert 1 <= job.priority <= 100
            assert all(0 <= speed < float("inf") for _, speed in job.speeds)
