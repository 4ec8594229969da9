import gzip
import json

import pytest

from rota.errors import TraceError
from rota.workload.readers import read_trace
from rota.workload.readers.gavel import Pair, catalog_rates, read_gavel, read_pairs, read_rates

LM = "LM (batch size 40)"
TABLE = {
    "k80": {f"('{LM}', 1)": {"null": 10.0}, f"('{LM}', 2)": {"null": 0.0, "('A3C', 2)": [1, 2]}},
    "v100": {f"('{LM}', 1)": {"null": 40.0}, f"('{LM}', 2)": {"null": 80}},
    "v100_unconsolidated": {f"('{LM}', 1)": {"null": 1.0}},
}


def row(model=LM, steps=4000, gpus=1, weight="1", slo="-1.000000", arrival="0"):
    columns = model, "python3 main.py --x %s", "lm", "--steps", 1, steps, gpus, weight, slo, arrival
    return "\t".join(map(str, columns)) + "\n"


@pytest.fixture
def table(write):
    return write(gzip.compress(json.dumps(TABLE).encode()), "rates.json.gz")


def test_steps_become_seconds_on_a_v100_by_the_table(write, table):
    (job,) = read_gavel(write(row(arrival="536.5")), table)
    assert (job.job_id, job.submit_s, job.duration_s, job.num_gpus) == ("0", 536.5, 100.0, 1)
    assert (job.model, job.priority) == (LM, 50)
    assert dict(job.speeds) == {"v100": 1.0, "k80": 0.25}


def test_a_rate_of_zero_says_that_the_job_can_not_run_there(write, table):
    (job,) = read_gavel(write(row(gpus=2)), table)
    assert dict(job.speeds) == {"v100": 1.0, "k80": 0.0}
    assert job.duration_s == 50.0


def test_without_a_table_the_catalogue_tells_the_rates(write):
    (job,) = read_trace(write(row(gpus=4)), "gavel")
    rates = catalog_rates(LM, 4)
    assert job.duration_s == pytest.approx(4000 / rates["v100"])
    assert dict(job.speeds)["k80"] == pytest.approx(rates["k80"] / rates["v100"])
    assert read_gavel(write(row(gpus=4))).jobs == [job]


def test_the_format_is_told_by_its_first_row(write):
    assert len(read_trace(write(row() + row(steps=1)))) == 2


def test_weights_become_priorities_in_their_proportion(write, table):
    text = row(weight="1") + row(weight="5.0") + row(weight="2.5")
    trace = read_gavel(write(text), table)
    assert [job.priority for job in trace] == [20, 100, 50]
    assert not trace.notes


def test_weights_that_no_priority_can_express_are_rounded_and_that_is_told(write, table):
    trace = read_gavel(write(row(weight="1") + row(weight="1000")), table)
    assert [job.priority for job in trace] == [1, 100]
    assert "rounded" in trace.notes[0]


def test_deadlines_are_counted_and_not_used(write, table):
    trace = read_gavel(write(row(slo="1.5") + row()), table)
    assert trace.notes == ["jobs with a deadline, which is not used: 1"]


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ("a\tb\n", "2 fields between tabs where a row of this format has 10"),
        (row(steps=0), "total_steps is '0'; it must be a whole number"),
        (row(steps="many"), "total_steps is 'many'"),
        (row(gpus="1.5"), "scale_factor is '1.5'"),
        (row(weight="0"), "priority_weight is '0'; it must be a number above zero"),
        (row(weight="nan"), "priority_weight is 'nan'"),
        (row(slo="soon"), "SLO is 'soon'"),
        (row(arrival="-1"), "arrival_time is '-1'"),
        (row(model="VGG"), "job_type is 'VGG'; no rate is known for it on 1 v100 GPUs"),
        (row(gpus=8), "no rate is known for it on 8 v100 GPUs"),
    ],
)
def test_a_row_that_can_not_be_read_is_rejected_with_its_line_and_reason(write, table, bad, reason):
    trace = read_gavel(write(row() + "\n" + bad + row()), table)
    assert [job.job_id for job in trace] == ["0", "2"]
    ((line, told),) = trace.rejected
    assert line == 3
    assert reason in told
    with pytest.raises(TraceError, match="line 3"):
        read_gavel(write(row() + "\n" + bad), table, strict=True)


@pytest.mark.parametrize(
    "text",
    [
        "not json",
        "[]",
        '{"v100": 3}',
        '{"v100": {"LM": {"null": 3}}}',
        """{"v100": {"('LM', 1)": 3}}""",
        """{"v100": {"('LM', 1)": {}}}""",
        """{"v100": {"('LM', 1)": {"null": -1}}}""",
        """{"v100": {"('LM', 1)": {"null": NaN}}}""",
        """{"v100": {"('LM', 1)": {"null": true}}}""",
        """{"v100": {"('LM', 1)": {"null": 1%s}}}""" % ("0" * 400),
        "[" * 100_000,
    ],
)
def test_a_table_that_is_none_is_refused(write, text):
    with pytest.raises(TraceError, match="throughputs"):
        read_rates(write(text, "rates.json"))


def test_files_that_can_not_be_read_at_all_are_told(write, tmp_path, table):
    with pytest.raises(TraceError, match="check the path"):
        read_gavel(tmp_path / "absent", table)
    with pytest.raises(TraceError, match="cut off"):
        read_gavel(write(gzip.compress(row().encode() * 50)[:-20]), table)
    with pytest.raises(TraceError, match="UTF-8"):
        read_gavel(write(b"\xff\xfe" + row().encode()), table)


def beside(pair):
    """A table of two jobs on a P100, and what was measured of both together."""
    job, other, gang = "('A', 1)", "('B', 1)", "('C', 2)"
    return json.dumps(
        {
            "p100": {
                job: {"null": 4.0, other: pair, gang: [1.0, 1.0], "('A3C', 1)": [1.0, 1.0]},
                other: {"null": 2.0},
                gang: {"null": 3.0, gang: [0.0, 0.0]},
                "('never alone', 1)": {"null": 0.0, job: [1.0, 1.0]},
            }
        }
    )


def test_pairs_are_those_on_the_same_gpus_of_which_both_are_known_alone(write):
    pairs = read_pairs(write(beside([3.0, 1.0]), "rates.json"), "p100")
    assert pairs == [Pair(1, 4.0, 2.0, 3.0, 1.0), Pair(2, 3.0, 3.0, 0.0, 0.0)]
    assert pairs[0].speeds == (0.75, 0.5)


@pytest.mark.parametrize("pair", [3, [1.0], [1.0, -1.0], [0.0, 1.0], [1.0, "x"]])
def test_a_pair_that_can_not_be_read_is_refused(write, pair):
    with pytest.raises(TraceError, match="list of two numbers above zero, or of two zeros"):
        read_pairs(write(beside(pair), "rates.json"), "p100")


def test_a_gpu_type_without_measurements_is_refused(write):
    with pytest.raises(TraceError, match="no GPU type 'h100', only p100"):
        read_pairs(write(beside([1.0, 1.0]), "rates.json"), "h100")
