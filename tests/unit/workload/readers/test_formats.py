"""Other people's formats: what is read from each, and what is left out and said to be."""

import importlib.util
import json
from pathlib import Path

import pytest

from rota.errors import TraceError
from rota.workload.readers import FORMATS, read_trace
from rota.workload.readers.pollux import TRAININGS
from rota.workload.readers.slurm import elapsed_s, gpus_of

_spec = importlib.util.spec_from_file_location("samples", Path(__file__).parent / "samples.py")
_samples = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_samples)
SAMPLES = _samples.SAMPLES


def table(trace):
    return [(s.job_id, s.submit_s, s.duration_s, s.num_gpus, s.vc) for s in trace]


@pytest.mark.parametrize("name", SAMPLES)
def test_every_format_is_recognised_and_may_be_named(write, name):
    path = write(SAMPLES[name])
    trace = read_trace(path)
    assert (len(trace), trace.num_rejected) == (3, 0)
    assert list(read_trace(path, name.removesuffix("-json"))) == list(trace)


@pytest.mark.parametrize("name", [name for name in SAMPLES if not name.endswith("json")])
def test_dos_line_ends_byte_order_mark_and_blank_lines_change_nothing(write, name):
    dressed = "\ufeff" + SAMPLES[name].replace("\n", "\r\n") + "\r\n"
    assert list(read_trace(write(dressed))) == list(read_trace(write(SAMPLES[name])))


@pytest.mark.parametrize("name", [n for n in SAMPLES if n not in ("philly-json", "alibaba-2020")])
def test_columns_may_stand_in_any_order(write, name):
    mark = "|" if name == "slurm" else ","
    rows = [line.split(mark) for line in SAMPLES[name].splitlines()]
    turned = "\n".join(mark.join(reversed(row)) for row in rows)
    assert list(read_trace(write(turned))) == list(read_trace(write(SAMPLES[name])))


@pytest.mark.parametrize("name", [n for n in SAMPLES if FORMATS.get(n)])
def test_a_missing_column_is_named_with_the_one_that_looks_like_it(write, name):
    head, _, rest = SAMPLES[name].partition("\n")
    if name == "alibaba-2020":
        head, rest = ",".join(FORMATS[name]), "job1,1,0,5,100\n"
    column = FORMATS[name][-1]
    renamed = head.replace(column, column + "x")
    with pytest.raises(TraceError, match=f"'{column}' is missing .*'{column}x'"):
        read_trace(write(f"{renamed}\n{rest}"), name)


def test_a_philly_table_has_its_rows_numbers_for_names_and_counts_from_the_first(write):
    trace = read_trace(write(SAMPLES["philly"]))
    assert table(trace) == [
        ("0", 0.0, 600.0, 1, "red"),
        ("1", 55.0, 3600.0, 8, "blue"),
        ("2", 115.0, 70.0, 2, "red"),
    ]
    assert trace.notes == ["submission is counted from 2017-10-03 00:00:05"]


def test_attempts_of_a_philly_job_are_added_up_and_its_gpus_counted_over_hosts(write):
    trace = read_trace(write(SAMPLES["philly-json"]))
    assert table(trace) == [
        ("application_1_1", 0.0, 600.0, 2, "red"),
        ("application_1_2", 1800.0, 60.0, 4, "blue"),
        ("application_1_3", 2400.0, 70.0, 1, "red"),
    ]
    assert [spec.user for spec in trace] == ["ann", "bob", "ann"]
    assert "jobs that were tried more than once, their attempts added up: 1" in trace.notes


@pytest.mark.parametrize(
    ("old", "new", "note"),
    [
        ('"end_time": "2017-10-03 00:11:00"', '"end_time": null', "no start or no end"),
        ('["gpu0", "gpu1"]', "[]", "CPU jobs"),
    ],
)
def test_philly_jobs_that_are_none_of_ours_are_counted(write, old, new, note):
    trace = read_trace(write(SAMPLES["philly-json"].replace(old, new)))
    assert len(trace) == 2
    assert any(note in text for text in trace.notes)


@pytest.mark.parametrize(
    ("old", "new", "line", "reason"),
    [
        ('"application_1_1"', "7", 2, "jobid is '7'; it must be text"),
        ("00:11:00", "00:00:00", 2, "end_time is '-60 s after the start'"),
        ("2017-10-03 00:11:00", "yesterday", 2, "end_time is 'yesterday'; it must be a date"),
        ('"vc": "red",\n        "jobid": "application_1_1"', '"vc": ,"jobid": "a"', 2, "not JSON"),
        ('[{"ip": "m1", "gpus": ["gpu0", "gpu1"]}]', "4", 2, "detail is '4'; it must be a list"),
        ('"application_1_3"', '"application_1_2"', 38, "line 16 has the same"),
    ],
)
def test_a_philly_record_that_cannot_be_read_is_rejected_alone(write, old, new, line, reason):
    trace = read_trace(write(SAMPLES["philly-json"].replace(old, new)))
    assert len(trace) == 2
    assert trace.rejected[0][0] == line
    assert reason in trace.rejected[0][1]


def test_a_philly_log_that_breaks_off_gives_what_was_whole(write):
    text = SAMPLES["philly-json"]
    trace = read_trace(write(text[: text.index("application_1_3")]))
    assert (len(trace), trace.num_rejected) == (2, 1)
    assert "the rest of the file is not read" in trace.rejected[0][1]


@pytest.mark.parametrize(
    ("old", "new", "line", "reason"),
    [
        ("    },\n    {", "    }\n    {", 16, "one comma must part it from the record before"),
        ("    },\n    {", "    },\n,    {", 16, "one comma must part it from the record before"),
        ('"vc": "red"', '"vc": "blue", "vc": "red"', 2, "'vc' stands there twice"),
        ('"ip": "m1", "gpus": ["gpu0", "gpu1"]', '"gpus": [], "gpus": [1]', 2, "'gpus' stands"),
    ],
)
def test_a_philly_record_that_is_no_strict_json_is_rejected_alone(write, old, new, line, reason):
    text = SAMPLES["philly-json"].replace(old, new, 1)
    trace = read_trace(write(text))
    assert (len(trace), trace.num_rejected) == (2, 1)
    assert trace.rejected[0][0] == line
    assert reason in trace.rejected[0][1]
    with pytest.raises(TraceError, match="not JSON"):
        read_trace(write(text), strict=True)


def test_what_follows_the_list_of_a_philly_log_is_told_and_not_read(write):
    text = SAMPLES["philly-json"]
    other = text.replace("application_1", "application_2")
    trace = read_trace(write(text + "\n" + other))
    assert len(trace) == 3
    line = text.count("\n") + 2
    assert trace.rejected == [
        (line, "the list has ended; what follows is not read: is it another log?")
    ]
    with pytest.raises(TraceError, match=f"line {line}: the list has ended"):
        read_trace(write(text + "\n" + other), strict=True)
    assert read_trace(write(text + "\n \n"), strict=True).num_rejected == 0


@pytest.mark.parametrize("field", ["jobid", "user", "vc"])
@pytest.mark.parametrize("text", ["\\ud800", "a\\nb", "\\u0000"])
def test_a_text_that_no_csv_can_hold_rejects_a_philly_record(write, field, text):
    log = json.loads(SAMPLES["philly-json"])
    log[0][field] = "TEXT"
    trace = read_trace(write(json.dumps(log).replace("TEXT", text)))
    assert (len(trace), trace.num_rejected) == (2, 1)
    assert "no field may" in trace.rejected[0][1]
    trace.rejected[0][1].encode()


def test_attempts_of_more_than_three_centuries_are_no_job(write):
    log = json.loads(SAMPLES["philly-json"])
    log[1]["attempts"] = [log[1]["attempts"][0] | {"start_time": "0", "end_time": "9999999999"}] * 2
    trace = read_trace(write(json.dumps(log)))
    assert "duration_s is '2e+10'; it must be at most 10,000,000,000" in trace.rejected[0][1]


def test_a_log_of_a_thousand_damaged_records_is_not_read_on(write):
    text = SAMPLES["philly-json"].rstrip("]\n") + ",\n    {" * 3000
    trace = read_trace(write(text))
    assert (len(trace), trace.num_rejected) == (3, 1000)
    assert "the rest of the file is not read" in trace.rejected[-1][1]


def test_a_helios_job_without_a_duration_lasts_from_its_start_to_its_end(write):
    trace = read_trace(write(SAMPLES["helios"]))
    assert table(trace) == [
        ("j1", 0.0, 60.0, 1, "vcA"),
        ("j2", 60.0, 7.0, 16, "vcB"),
        ("j3", 86400.0, 86400.0, 8, "vcA"),
    ]
    assert [spec.user for spec in trace] == ["u1", "u2", "u1"]


def test_acme_logs_are_helios_logs_with_zones_and_types(write):
    text = (
        "job_id,user,node_num,gpu_num,cpu_num,type,state,submit_time,duration\n"
        "x,u,1.0,8.0,32,Other,COMPLETED,2023-03-01 00:00:00+08:00,30\n"
        "y,u,1.0,0.0,32,Other,COMPLETED,2023-03-01 00:00:00+08:00,30\n"
    )
    trace = read_trace(write(text))
    assert table(trace) == [("x", 0.0, 30.0, 8, "Other")]
    assert trace.notes[0] == "submission is counted from 2023-02-28 16:00:00"
    assert trace.notes[1] == "CPU jobs left out: 1"


def test_tasks_of_one_pai_job_are_one_gang_and_fractions_are_rounded_up(write):
    trace = read_trace(write(SAMPLES["alibaba-2020"]))
    assert table(trace) == [
        ("job1", 0.0, 600.0, 2, ""),
        ("job2", 200.0, 60.0, 1, ""),
        ("job3", 300.0, 100.0, 5, ""),
    ]
    assert "jobs that ask for fractions of GPUs, rounded up to whole GPUs: 1" in trace.notes


def test_a_pai_task_that_cannot_be_read_takes_its_job_with_it(write):
    text = SAMPLES["alibaba-2020"].replace("job1,ps,1", "job1,ps,x")
    trace = read_trace(write(text))
    assert [spec.job_id for spec in trace] == ["job2", "job3"]
    assert trace.rejected == [(2, "inst_num is 'x'; it must be a number of instances")]
    assert "jobs left out of which a row could not be read: 1" in trace.notes


def test_pai_jobs_without_gpus_or_without_an_end_are_counted(write):
    text = (
        SAMPLES["alibaba-2020"] + "job4,w,1,Terminated,5,6,1,1,0,\njob5,w,1,Running,5,,1,1,100,T4\n"
    )
    notes = read_trace(write(text)).notes
    assert "CPU jobs left out: 1" in notes
    assert "jobs left out that had not ended: 1" in notes


def test_a_pod_lasts_from_its_scheduling_to_its_deletion(write):
    trace = read_trace(write(SAMPLES["alibaba-2023"]))
    assert table(trace) == [
        ("pod-1", 0.0, 590.0, 1, "LS"),
        ("pod-2", 100.0, 60.0, 8, "BE"),
        ("pod-3", 200.0, 3000.0, 1, "LS"),
    ]
    assert trace.notes == ["jobs that ask for a fraction of a GPU, each counted as 1 GPU: 1"]


def test_pods_that_never_ran_or_have_no_gpu_are_counted(write):
    text = SAMPLES["alibaba-2023"] + (
        "p4,1,1,0,0,,LS,Running,1,2,1\np5,1,1,1,1000,,LS,Pending,1,2,\n"
        "p6,1,1,1,1000,,LS,Running,1,,1\n"
    )
    trace = read_trace(write(text))
    assert len(trace) == 3
    assert sum("left out" in note for note in trace.notes) == 3


def test_a_pollux_job_trains_for_its_measured_steps(write):
    trace = read_trace(write(SAMPLES["pollux"]))
    assert [spec.model for spec in trace] == ["cifar10", "bert", "ncf"]
    assert [spec.num_gpus for spec in trace] == [6, 8, 1]
    # Hand-made: 1548 steps of 32,768 samples on one T4 take about half a minute.
    assert 25 < trace.jobs[2].duration_s < 60
    # 384 samples on 8 GPUs are 4 rounds of 12: three without exchanging gradients.
    assert trace.jobs[1].duration_s > 480 * 4 * 0.8
    assert set(TRAININGS) == {"bert", "cifar10", "deepspeech2", "imagenet", "ncf", "yolov3"}


@pytest.mark.parametrize(
    ("row", "reason"),
    [("x,1,gpt9,1,8", "application is 'gpt9'"), ("x,1,bert,1,13", "bert was measured at 12, 24")],
)
def test_a_pollux_job_that_nobody_measured_is_rejected(write, row, reason):
    trace = read_trace(write(SAMPLES["pollux"] + row + "\n"))
    assert len(trace) == 3
    assert reason in trace.rejected[0][1]


def test_slurm_jobs_take_their_gpus_from_what_was_allocated_or_else_asked_for(write):
    trace = read_trace(write(SAMPLES["slurm"]))
    assert table(trace) == [
        ("101", 0.0, 600.0, 2, "gpu"),
        ("102_7", 20.0, 93784.0, 16, "long"),
        ("103", 3600.0, 7200.0, 1, "gpu"),
    ]


def test_slurm_rows_that_are_no_finished_gpu_job_are_counted(write):
    rows = [
        "101.batch||||2024-01-05T10:00:00|2024-01-05T10:00:05|00:10:00|gres/gpu=2|",
        "104|a|gpu|PENDING|2024-01-05T10:00:00|Unknown|00:00:00||gres/gpu=2",
        "105|a|gpu|RUNNING|2024-01-05T10:00:00|2024-01-05T10:00:00|00:00:09|gres/gpu=2|",
        "106|a|cpu|COMPLETED|2024-01-05T10:00:00|2024-01-05T10:00:00|00:00:09|cpu=2|cpu=2",
        "107|a|gpu|CANCELLED by 5|2024-01-05T10:00:00|None|00:00:00||gres/gpu=2",
    ]
    trace = read_trace(write(SAMPLES["slurm"] + "\n".join(rows) + "\n"))
    assert (len(trace), trace.num_rejected) == (3, 0)
    assert trace.notes[1:] == [
        "job steps left out: 1",
        "jobs left out that never started: 2",
        "jobs left out that had not ended: 1",
        "CPU jobs left out: 1",
    ]


HEADER = "JobID|User|JobName|State|Submit|Start|Elapsed|Timelimit|AllocTRES|ReqTRES\n"


def run(job, state, submit, start, elapsed, gpus=2, limit="02:00:00", user="ada", name="gan"):
    """A row of sacct; times are hours and minutes of one day."""
    submit, start = (t if t == "Unknown" else f"2026-03-02T{t}:00" for t in (submit, start))
    tres = f"gres/gpu={gpus}" if gpus else ""
    return f"{job}|{user}|{name}|{state}|{submit}|{start}|{elapsed}:00|{limit}|{tres}|\n"


FIRST = run("7", "REQUEUED", "08:00", "08:10", "01:00")
SECOND = run("7", "PREEMPTED", "09:20", "09:30", "00:30")
LAST = run("7", "COMPLETED", "10:10", "10:20", "00:40")
PUT_TOGETHER = "jobs that were requeued or resized, with the time of all their runs: 1"
NO_END = "jobs left out that had not ended: 1"


@pytest.mark.parametrize(
    ("rows", "found", "waited_s", "notes"),
    [
        # Three runs of 130 minutes from 08:00 to 11:00: 50 minutes without GPUs.
        ([FIRST, SECOND, LAST], (7800, 2, 21600), 3000, [PUT_TOGETHER]),
        ([LAST, FIRST, SECOND], (7800, 2, 21600), 3000, [PUT_TOGETHER]),
        ([FIRST], (3600, 2, 7200), 600, []),
        ([FIRST, FIRST, SECOND], (5400, 2, 14400), 1800, ["a run again: 1", PUT_TOGETHER]),
        ([FIRST, run("7", "NODE_FAIL", "09:10", "09:10", "00:10")], (4200, 2, 14400), 600, None),
        # It was taken away again before it had begun anew.
        (
            [FIRST, run("7", "CANCELLED by 5", "09:20", "Unknown", "00:00")],
            (3600, 2, 7200),
            600,
            [],
        ),
        ([FIRST, run("7", "FAILED", "09:10", "09:20", "00:00")], (3600, 2, 14400), 1200, None),
        # Resized from 2 GPUs to 4 after an hour: 4 GPU hours.
        (
            [
                run("7", "RESIZING", "08:00", "08:00", "01:00"),
                run("7", "COMPLETED", "08:00", "09:00", "00:30", gpus=4),
            ],
            (3600, 4, 14400),
            1800,
            [PUT_TOGETHER, "with several numbers of GPUs: the last, for the same GPU time: 1"],
        ),
        (
            [FIRST, run("7", "FAILED", "09:20", "09:20", "00:10", limit="UNLIMITED")],
            (4200, 2, None),
            1200,
            None,
        ),
        ([FIRST, run("7", "PENDING", "09:20", "Unknown", "00:00")], None, None, [NO_END]),
        ([FIRST, run("7", "RUNNING", "09:20", "09:30", "00:30")], None, None, [NO_END]),
        ([run("7", "RESIZING", "08:00", "08:00", "01:00")], None, None, [NO_END]),
        ([run("7", "REQUEUED", "08:00", "Unknown", "00:00")], None, None, ["never started: 1"]),
        ([run("7", "REQUEUED", "08:00", "08:00", "01:00", gpus=0)], None, None, ["CPU jobs left"]),
        # Elements of an array, and parts of a heterogeneous job.
        ([FIRST, run("7_1", "FAILED", "08:00", "08:10", "01:00")], (3600, 2, 7200), 600, []),
        ([FIRST, run("7+1", "FAILED", "08:00", "08:10", "01:00")], (3600, 2, 7200), 600, []),
        ([FIRST, run("7.batch", "FAILED", "08:00", "08:10", "01:00")], (3600, 2, 7200), 600, None),
    ],
)
def test_runs_of_a_requeued_job_are_one_job_of_slurm(write, rows, found, waited_s, notes):
    other = run("1", "COMPLETED", "07:00", "07:00", "00:10", name="other")
    trace = read_trace(write(HEADER + other + "".join(rows)), strict=True)
    jobs = {spec.job_id: spec for spec in trace}
    spec = jobs.get("7")
    assert (spec and (spec.duration_s, spec.num_gpus, spec.time_limit_s)) == found
    assert trace.waited_s.get("7") == waited_s
    assert spec is None or spec.submit_s == 3600  # from the first submission
    if notes is not None:
        assert len(trace.notes) == 1 + len(notes)
        assert all(note in told for note, told in zip(notes, trace.notes[1:], strict=True))


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("00:00:01", 1),
        ("1-00:00:00", 86400),
        ("01:02", 62),
        ("00:00:01.500", 1.5),
        ("100:00:00", 360000),
    ],
)
def test_elapsed_times_of_slurm(text, seconds):
    assert elapsed_s(text) == seconds


@pytest.mark.parametrize("text", ["", "5", "INVALID", "1-", "-00:01:00", "1:2:3:4", "a:b", "0:99"])
def test_what_is_no_elapsed_time_is_refused(text):
    with pytest.raises(TraceError, match="Elapsed is"):
        elapsed_s(text)


@pytest.mark.parametrize(
    ("column", "text", "seconds"),
    [
        ("Timelimit", "1-00:00:00", 86400),
        ("Timelimit", "02:00:00", 7200),
        ("Timelimit", "UNLIMITED", None),
        ("Timelimit", "Partition_Limit", None),
        ("TimelimitRaw", "90", 5400),
        ("TimelimitRaw", "UNLIMITED", None),
        ("TimelimitRaw", "", None),
    ],
)
def test_time_limits_of_slurm(write, column, text, seconds):
    head = f"JobID|Submit|Elapsed|AllocTRES|{column}"
    (spec,) = read_trace(write(f"{head}\n1|2024-01-05T10:00:00|00:00:01|gres/gpu=1|{text}\n"))
    assert spec.time_limit_s == seconds


@pytest.mark.parametrize(
    ("tres", "gpus"),
    [
        ("", 0),
        ("cpu=8,mem=4G", 0),
        ("gres/gpu=0", 0),
        ("gres/gpu=4,gres/gpu:a100=4", 4),
        ("gres/gpu:a100=1,gres/gpu:v100=2", 3),
        ("gres/gpumem=10G,gres/gpu=2,gres/gpuutil=5", 2),
    ],
)
def test_gpus_in_a_list_of_trackable_resources(tres, gpus):
    assert gpus_of(tres) == gpus


def test_slurm_output_without_gpus_says_which_column_to_add(write):
    text = "JobID|Submit|Elapsed\n1|2024-01-05T10:00:00|00:00:01\n"
    with pytest.raises(TraceError, match=r"AllocTRES nor ReqTRES .* --format"):
        read_trace(write(text))


def test_a_log_of_cpu_jobs_alone_is_refused_with_what_was_left_out(write):
    text = SAMPLES["slurm"].replace("gres/gpu", "gres/fpga")
    with pytest.raises(TraceError, match=r"no job; .*CPU jobs left out: 3"):
        read_trace(write(text))
