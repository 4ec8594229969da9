"""Whatever a trace file holds, reading it gives its jobs or a TraceError."""

import csv
import gzip
import io
from contextlib import suppress
from tempfile import TemporaryDirectory

from hypothesis import example, given, settings
from hypothesis import strategies as st

from rota.errors import TraceError
from rota.workload.readers import read_trace
from rota.workload.trace import Trace
from rota.workload.writer import write_trace
from support.strategies import traces

OURS = "job_id,submit_s,duration_s,num_gpus"
FIELD = st.one_of(
    st.text(max_size=8),
    st.sampled_from(
        ["", "0", "1", "-1", "1.5", "nan", "inf", "-inf", "1e400", "9" * 400, "0x1", "1_0"]
    ),
    st.floats().map(str),
)


def written(data):
    """The trace that the bytes are, read from a file."""
    with TemporaryDirectory() as folder:
        path = f"{folder}/jobs.csv"
        with open(path, "wb") as file:
            file.write(data)
        return read_trace(path)


def as_csv(trace, to="csv"):
    data = io.BytesIO()
    write_trace(trace, data, to)
    return data.getvalue()


TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\n\r\0"), max_size=8).map(str.strip)
EXTRAS = st.fixed_dictionaries(
    {
        "vc": TEXT,
        "user": TEXT,
        "model": TEXT,
        "skew": st.none() | st.floats(0, 1),
        "speeds": st.sampled_from([(), (("v100", 1.0), ("k80", 0.3))]),
    }
)


@given(
    trace=traces().filter(len),
    pack=st.booleans(),
    to=st.sampled_from(["csv", "parquet"]),
    extra=st.data(),
)
@settings(max_examples=100, deadline=None)
def test_a_trace_written_and_read_is_the_same(trace, pack, to, extra):
    trace = Trace([spec._replace(**extra.draw(EXTRAS)) for spec in trace])
    data = as_csv(trace, to)
    back = written(gzip.compress(data) if pack else data)
    assert list(back) == list(trace)
    assert (back.num_rejected, back.notes) == (0, [])


@given(data=st.binary(max_size=200))
@example(b"\x1f\x8b\x08\x00")
@example(b"\x00,\x00\n")
@settings(max_examples=150, deadline=None)
def test_any_bytes_are_a_trace_or_a_trace_error(data):
    with suppress(TraceError):
        assert isinstance(written(data), Trace)


@given(rows=st.lists(st.lists(FIELD, min_size=3, max_size=5), max_size=4), quoted=st.booleans())
@settings(max_examples=150, deadline=None)
def test_any_fields_under_a_good_header_are_jobs_or_a_trace_error(rows, quoted):
    text = io.StringIO()
    text.write(f"{OURS}\n")
    csv.writer(text, quoting=csv.QUOTE_ALL if quoted else csv.QUOTE_MINIMAL).writerows(rows)
    with suppress(TraceError):
        trace = written(text.getvalue().encode("utf-8", "surrogatepass"))
        for spec in trace:
            assert spec.num_gpus >= 1
            assert 0 <= spec.submit_s < float("inf")
            assert 0 <= spec.duration_s < float("inf")
        assert len({spec.job_id for spec in trace}) == len(trace)


@given(data=traces().filter(len).map(as_csv).map(gzip.compress), cut=st.data())
@settings(max_examples=60, deadline=None)
def test_a_damaged_gzip_file_is_a_trace_error_or_still_whole(data, cut):
    at = cut.draw(st.integers(0, len(data) - 1))
    damaged = data[:at] + bytes([data[at] ^ cut.draw(st.integers(1, 255))]) + data[at + 1 :]
    with suppress(TraceError):
        written(damaged)
