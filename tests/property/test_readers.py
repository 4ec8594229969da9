"""Whatever is done to a trace file, reading it gives right jobs and counted rows, or an error."""

import csv
import gzip
import importlib.util
import io
import re
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rota.errors import TraceError
from rota.workload.readers import FORMATS, read_trace
from rota.workload.trace import MAX_GPUS, MAX_ID, MAX_S

_path = Path(__file__).parents[1] / "unit" / "workload" / "readers" / "samples.py"
_spec = importlib.util.spec_from_file_location("samples", _path)
_samples = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_samples)

ROW = "\tpython3 main.py\timages\t--num_steps\t1\t{}\t{}\t1\t-1.000000\t{}\n"
GAVEL = "".join("ResNet-18 (batch size 128)" + ROW.format(900 * i, i, 7 * i) for i in (1, 2, 4))
SAMPLES = {**_samples.SAMPLES, "gavel": GAVEL}
HEADERS = {name: 0 if name in ("alibaba-2020", "gavel") else 1 for name in SAMPLES}
BY_LINE = [name for name in SAMPLES if name != "philly-json"]
NASTY = [
    *(
        "",
        "0",
        "-1",
        "1e999",
        "nan",
        "inf",
        "-inf",
        "9" * 400,
        "1_0",
        "0x1",
        "1.5",
        " ",
        "\0",
        "\r",
    ),
    *('"', '"a', 'a"b', ",", "|", "\t", "\ufeff", "٣", "a" * 200_000, "None", "Unknown", "null"),
    *("2017-13-45 00:00:00", "9999-12-31 23:59:59", "0001-01-01 00:00:00", "2017-10-03", "[]"),
    *("gres/gpu=", "gres/gpu=x", "gres/gpu=999999999", "UNLIMITED", "1-", "{", "}", "[[[", "]"),
]


def read(data, format="auto"):
    """The trace that the bytes are; None if they are refused as they should be."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "jobs.csv"
        path.write_bytes(data)
        try:
            trace = read_trace(path, format)
        except TraceError as error:
            assert "jobs.csv" in str(error)
            assert len(str(error)) < 1000
            return None
    assert trace.num_rejected >= len(trace.rejected)
    assert len({spec.job_id for spec in trace}) == len(trace) > 0
    for spec in trace:
        assert 0 < len(spec.job_id) <= MAX_ID
        assert 1 <= spec.num_gpus <= MAX_GPUS
        assert isinstance(spec.num_gpus, int)
        assert 0 <= spec.submit_s <= MAX_S
        assert 0 <= spec.duration_s <= MAX_S
        assert all(speed == 0 or 1e-3 <= speed <= 1e3 for _, speed in spec.speeds)
        texts = "".join((spec.job_id, spec.name, spec.user, spec.vc, spec.model))
        assert not {"\n", "\r", "\0"}.intersection(texts)
        texts.encode()
    return trace


def format_of(name):
    return name.removesuffix("-json")


EDITS = st.lists(
    st.tuples(
        st.integers(0, 10_000),
        st.sampled_from(["insert", "replace", "delete", "cut"]),
        st.one_of(st.sampled_from(NASTY).map(str.encode), st.binary(max_size=3)),
    ),
    min_size=1,
    max_size=4,
)


def edited(data, edits):
    for place, kind, what in edits:
        at = place % (len(data) + 1)
        if kind == "insert":
            data = data[:at] + what + data[at:]
        elif kind == "replace":
            data = data[:at] + what + data[at + len(what) :]
        elif kind == "delete":
            data = data[:at] + data[at + 1 + place % 7 :]
        else:
            data = data[:at]
    return data


@pytest.mark.parametrize("name", SAMPLES)
@given(edits=EDITS, named=st.booleans(), pack=st.booleans())
@settings(max_examples=60, deadline=None)
def test_a_file_damaged_anywhere_is_jobs_in_range_or_a_clear_error(name, edits, named, pack):
    data = edited(SAMPLES[name].encode(), edits)
    read(gzip.compress(data) if pack else data, format_of(name) if named else "auto")


@pytest.mark.parametrize("name", BY_LINE)
@given(edits=st.data())
@settings(max_examples=60, deadline=None)
def test_a_damaged_row_leaves_the_other_rows_as_they_are_and_is_counted(name, edits):
    lines = SAMPLES[name].encode().splitlines()
    whole = {spec.job_id: spec for spec in read(SAMPLES[name].encode())}
    index = edits.draw(st.integers(HEADERS[name], len(lines) - 1))
    row = lines[index]
    # A task's name says which job it belongs to: another name is another job's task.
    kept = row[: row.index(b",") + 1] if name == "alibaba-2020" else b""
    damaged = kept + edited(row[len(kept) :], edits.draw(EDITS))
    damaged = damaged.decode("utf-8", "replace").replace("\n", " ").replace("\r", " ").encode()
    trace = read(b"\n".join([*lines[:index], damaged, *lines[index + 1 :]]), format_of(name))
    if trace is None or (name == "gavel" and not damaged.strip()):
        return  # Gavel's jobs are named by the number of their row, blank lines aside
    touched = list(whole)[index - HEADERS[name]] if name != "alibaba-2020" else kept[:-1].decode()
    untouched = [whole[job] for job in whole if job != touched]
    found = {spec.job_id: spec for spec in trace}
    shifts = set()
    for spec in untouched:
        now = found.get(spec.job_id)
        if any("has the same" in reason for _, reason in trace.rejected):
            continue  # the damaged row took another's name
        if now is None and any("it goes on with line" in reason for _, reason in trace.rejected):
            continue  # the damaged row ends within quotation marks, and lacks fields
        assert now is not None
        assert now._replace(submit_s=0.0, priority=1) == spec._replace(submit_s=0.0, priority=1)
        shifts.add(round(now.submit_s - spec.submit_s, 6))
    assert len(shifts) <= 1
    if name != "alibaba-2020":
        assert accounted(trace) == len(lines[HEADERS[name] :]) - (not damaged.decode().strip())


def accounted(trace):
    """The rows that became jobs, were rejected, or are none of ours."""
    left_out = [re.search(r"left out.*: (\d+)$", note) for note in trace.notes]
    return len(trace) + trace.num_rejected + sum(int(match[1]) for match in left_out if match)


@pytest.mark.parametrize("name", BY_LINE)
@given(order=st.permutations(range(3)), extra=st.integers(0, 3))
@settings(max_examples=20, deadline=None)
def test_rows_and_further_columns_may_stand_in_any_order(name, order, extra):
    lines = SAMPLES[name].splitlines()
    head, rows = lines[: HEADERS[name]], lines[HEADERS[name] :]
    turned = [rows[at] for at in order] + rows[3:]
    mark = "|" if name == "slurm" else ","
    if head:
        head[0] += "".join(f"{mark}note{i}" for i in range(extra))
        turned = [row + mark * extra for row in turned]
    trace = read("\n".join([*head, *turned]).encode(), format_of(name))
    whole = read(SAMPLES[name].encode())
    if name in ("philly", "gavel"):  # there, jobs are named by their rows
        assert sorted(s.submit_s for s in trace) == sorted(s.submit_s for s in whole)
    else:
        assert list(trace) == list(whole)


@pytest.mark.parametrize("name", [name for name in BY_LINE if HEADERS[name]])
@given(
    fields=st.lists(
        st.lists(st.sampled_from(NASTY) | st.text(max_size=6), min_size=12, max_size=12),
        min_size=1,
        max_size=3,
    )
)
@settings(max_examples=40, deadline=None)
def test_rows_of_hostile_fields_are_counted_beside_the_good_ones(name, fields):
    mark = "|" if name == "slurm" else ","
    lines = SAMPLES[name].splitlines()
    width = lines[0].count(mark) + 1
    hostile = [mark.join(re.sub(r"[\r\n\x00]", "", text) for text in row[:width]) for row in fields]
    data = "\n".join([*lines, *hostile]).encode("utf-8", "replace")
    trace = read(data, format_of(name))
    assert trace is not None
    assert len(trace) >= 3 or "has the same" in str(trace.rejected)


@pytest.mark.parametrize("format", list(FORMATS))
@given(data=st.binary(max_size=100) | st.text(st.characters(codec="utf-8")).map(str.encode))
@settings(max_examples=40, deadline=None)
def test_any_bytes_under_any_format_are_a_trace_or_a_trace_error(format, data):
    read(data, format)


PART = st.text('ab1,"\n', max_size=4) | st.sampled_from(["1", "\nx,0,9,1\n", "\n y,0,9,1", '"\n'])
ROWS = st.lists(st.lists(PART, min_size=4, max_size=4), max_size=5)


@given(rows=ROWS)
@settings(max_examples=150, deadline=None)
def test_no_quoted_field_with_line_ends_gives_a_job_that_csv_does_not_have(rows):
    data = io.StringIO()
    writer = csv.writer(data, lineterminator="\n")
    writer.writerows([["job_id", "submit_s", "duration_s", "num_gpus"], *rows, ["z", 0, 1, 1]])
    trace = read(data.getvalue().encode())
    ids = {row[0].strip() for row in rows if "\n" not in "".join(row)}
    assert {spec.job_id for spec in trace or ()} <= ids | {"z"}


@given(edits=EDITS)
@settings(max_examples=60, deadline=None)
def test_a_damaged_parquet_file_is_jobs_in_range_or_a_clear_error(edits):
    read(edited(PARQUET, edits))


def _parquet():
    from io import BytesIO

    from rota.workload.writer import write_trace

    data = BytesIO()
    write_trace(read(SAMPLES["rota"].encode()), data, "parquet")
    return data.getvalue()


PARQUET = _parquet()


@given(depth=st.integers(1, 200_000), what=st.sampled_from(["[", '{"a":', '[{"jobid":']))
@settings(max_examples=20, deadline=None)
def test_a_deeply_nested_log_is_an_error(depth, what):
    assert read(b"[" + what.encode() * depth) is None
