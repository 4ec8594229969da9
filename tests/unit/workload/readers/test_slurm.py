"""What people have of sacct: joined, repeated, reused, of other forms, of other times."""

from datetime import UTC, datetime

import pytest

from rota.errors import InputError, TraceError
from rota.workload.readers import read_trace
from rota.workload.readers.slurm import COMMAND

HEAD = "JobID|User|State|Submit|Start|Elapsed|AllocTRES|Partition"


def row(job="1", state="COMPLETED", submit="02T08:00", start=None, took="00:10", user="ada"):
    """A row of sacct: ``02T08:00`` is a day and a time of March 2026."""
    start = submit if start is None else start
    at = [text if text == "Unknown" else f"2026-03-{text}:00" for text in (submit, start)]
    return f"{job}|{user}|{state}|{at[0]}|{at[1]}|{took}:00|gres/gpu=1|gpu"


def output(*rows, head=HEAD):
    return "\n".join([head, *rows, ""])


def of(trace):
    return {spec.job_id: spec.duration_s for spec in trace}


def test_a_byte_that_is_no_utf_8_rejects_its_row_alone(write):
    rows = [row("1"), row("2", user="Jos\xe9"), row("3", state="COMPLETED\xff"), row("4")]
    trace = read_trace(write(output(*rows).encode("latin-1")))
    assert list(of(trace)) == ["1", "4"]
    assert trace.rejected == [
        (3, "it holds the byte 0xe9, which is no UTF-8; save it as UTF-8"),
        (4, "it holds the byte 0xff, which is no UTF-8; save it as UTF-8"),
    ]
    with pytest.raises(TraceError, match=r"line 3: it holds the byte 0xe9"):
        read_trace(write(output(*rows).encode("latin-1")), strict=True)


def test_own_tables_lose_the_row_alone_too(write):
    text = "job_id,submit_s,duration_s,num_gpus,user\na,0,1,1,\xe9\nb,0,2,1,ada\n"
    trace = read_trace(write(text.encode("latin-1")))
    assert of(trace) == {"b": 2.0}
    assert trace.num_rejected == 1


def test_joined_outputs_are_read_with_the_header_of_each(write):
    other = "JobID|Submit|Start|Elapsed|State|AllocTRES|User|Account"
    moved = "2|2026-03-02T09:00:00|2026-03-02T09:00:00|00:20:00|COMPLETED|gres/gpu=2|bo|lab"
    trace = read_trace(write(output(row("1")) + output(row("3")) + output(moved, head=other)))
    assert of(trace) == {"1": 600.0, "2": 1200.0, "3": 600.0}
    assert [spec.user for spec in trace] == ["ada", "ada", "bo"]
    assert "headers that came again, as of outputs that were joined: 2" in trace.notes
    assert not trace.num_rejected


def test_outputs_that_overlap_tell_each_run_once_and_as_it_ended(write):
    first = [
        row("1"),
        row("2", state="RUNNING", took="00:05"),
        row("3", "PENDING", start="Unknown"),
    ]
    second = [row("1"), row("2", took="00:30"), row("3", start="02T08:20")]
    for dumps in ((first, second), (second, first)):
        trace = read_trace(write("".join(output(*rows) for rows in dumps)))
        assert of(trace) == {"1": 600.0, "2": 1800.0, "3": 600.0}
        assert trace.waited_s == {"1": 0.0, "2": 0.0, "3": 1200.0}


def test_ids_that_are_used_again_are_other_jobs(write):
    rows = [
        row("7", took="00:30"),
        row("7", submit="20T08:00", took="00:40"),
        row("7", submit="02T09:00", took="00:50", user="bo"),
    ]
    trace = read_trace(write(output(*rows)))
    assert of(trace) == {"7": 1800.0, "7#2": 3000.0, "7#3": 2400.0}
    assert [spec.user for spec in trace] == ["ada", "bo", "ada"]
    assert "jobs with the id of an earlier one, told apart as ID#2 and so on: 2" in trace.notes
    assert not trace.num_rejected


@pytest.mark.parametrize("state", ["REQUEUED", "PREEMPTED", "NODE_FAIL"])
def test_a_job_that_waits_long_for_its_next_run_stays_one_job(write, state):
    trace = read_trace(write(output(row("7", state), row("7", submit="20T08:00"))))
    assert of(trace) == {"7": 1200.0}


def test_a_job_that_was_requeued_by_hand_soon_after_its_end_is_one_job(write):
    trace = read_trace(write(output(row("7", "FAILED"), row("7", submit="02T08:14"))))
    assert of(trace) == {"7": 1200.0}


def test_tabs_part_fields_as_bars_do(write):
    text = output(row("1"), row("2")).replace("|", "\t")
    assert of(read_trace(write(text))) == {"1": 600.0, "2": 600.0}
    quoted = output(row("1")).replace("|", ",").replace("gres", '"billing=1,gres')
    assert of(read_trace(write(quoted.replace("gpu=1", 'gpu=1"')))) == {"1": 600.0}


PEOPLE = """JobID           JobName  Partition    Account  AllocCPUS      State ExitCode
------------ ---------- ---------- ---------- ---------- ---------- --------
101               train        gpu        lab          8  COMPLETED      0:0
"""


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{\n "jobs": [\n  {"job_id": 1}\n ],\n "meta": {}\n}\n', "JSON, as sacct --json prints"),
        ('{"meta": {"Slurm": 1}, "jobs": []}', "JSON, as sacct --json prints"),
        ("---\njobs:\n- job_id: 1\n", "YAML, as sacct --yaml prints"),
        (PEOPLE, "a table for people, whose columns are cut off"),
        ("JobID|JobName|State\n1|a|COMPLETED\n", "column 'Submit' is missing"),
        (
            output(row("1")).replace("|", ",").replace("gres", "billing=1,gres"),
            "commas part its fields, and stand within AllocTRES",
        ),
        (output(row("1")).partition("\n")[2], "names no columns; leave --noheader out"),
    ],
)
def test_what_sacct_prints_otherwise_is_named_with_the_command(write, text, says):
    for how in ("auto", "slurm"):
        with pytest.raises(TraceError) as refused:
            read_trace(write(text), how)
        assert says in str(refused.value)
        assert str(refused.value).endswith(COMMAND)


def test_the_clocks_of_the_logs_own_zone_count(write):
    # In Berlin they were put from 2 to 3 on the 29th of March, and back on the 25th of October.
    rows = [
        "1|ada|COMPLETED|2026-03-29T01:30:00|2026-03-29T03:30:00|01:00:00|gres/gpu=1|gpu",
        "2|ada|COMPLETED|2026-10-25T01:30:00|2026-10-25T03:30:00|01:00:00|gres/gpu=1|gpu",
        "3|ada|COMPLETED|2026-10-25T02:50:00|2026-10-25T02:10:00|01:00:00|gres/gpu=1|gpu",
    ]
    file = write(output(*rows))
    assert read_trace(file).waited_s == {"1": 7200.0, "2": 7200.0, "3": 0.0}
    trace = read_trace(file, tz="Europe/Berlin")
    assert trace.waited_s == {"1": 3600.0, "2": 10800.0, "3": 1200.0}
    assert trace.notes == ["submission is counted from 2026-03-29 01:30:00 Europe/Berlin"]
    first = datetime(2026, 3, 29, 0, 30, tzinfo=UTC)
    second = datetime(2026, 10, 24, 23, 30, tzinfo=UTC)
    assert trace.jobs[1].submit_s == (second - first).total_seconds()


def test_a_zone_that_is_not_there_is_told_with_one_that_is(write):
    with pytest.raises(InputError, match=r"--tz: 'Europe/Berln' is no .*'Europe/Berlin'"):
        read_trace(write(output(row("1"))), tz="Europe/Berln")
    for name in ("../etc/passwd", "/etc/localtime", "x\0y"):
        with pytest.raises(InputError, match="is no time zone here"):
            read_trace(write(output(row("1"))), tz=name)
