"""``rota sim compare`` and ``sweep``: what is run, what is printed, what is refused."""

import csv
import json
import os
import re
import signal
import subprocess
import sys
import time
from itertools import groupby
from math import inf

import psutil
import pytest

from rota.cli import simgrid
from rota.cli.simgrid import parse_axes
from rota.errors import InputError

DRAWN = ("--generate", "philly", "--num-jobs", "40", "--cluster", "2x8")


def summaries(out):
    return [{k: v for k, v in run.items() if k != "cpu_s"} for run in json.loads(out)]


def test_every_policy_runs_with_every_load_and_seed(rota):
    args = ("sim", "compare", *DRAWN, "--policy", "fifo", "--policy", "srtf", "--json")
    code, out, _ = rota(*args, "--seeds", "3,0-1", "--loads", "0.5,1")
    assert code == 0
    runs = [(run["policy"], run["load"], run["seed"]) for run in json.loads(out)]
    assert runs == [(p, x, s) for p in ("fifo", "srtf") for x in (0.5, 1.0) for s in (3, 0, 1)]


def test_a_table_of_seeds_has_means_and_intervals(rota):
    args = ("sim", "compare", *DRAWN, "--policy", "fifo", "--seeds", "0-4")
    _, out, _ = rota(*args, "--json")
    jct = [run["avg_jct_s"] for run in json.loads(out)]
    mean = sum(jct) / 5
    deviation = (sum((value - mean) ** 2 for value in jct) / 4) ** 0.5
    half = 2.7764 * deviation / 5**0.5
    _, table, _ = rota(*args)
    header, line, *notes = table.splitlines()
    assert header.split()[:4] == ["policy", "information", "seeds", "avg"]
    assert f"{mean:,.0f} ±{half:,.0f}" in line
    assert "95 % confidence" in notes[0]
    assert len(header) <= 110


def test_the_csv_has_means_and_the_ends_of_the_intervals(rota, tmp_path):
    table = tmp_path / "table.csv"
    args = ("sim", "compare", *DRAWN, "--policy", "fifo", "--policy", "srtf", "--seeds", "0-2")
    code, _, _ = rota(*args, "--loads", "0.5,1", "--csv", table)
    assert code == 0
    with table.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["policy"], row["load"], row["seeds"]) for row in rows] == [
        ("fifo", "0.5", "3"),
        ("fifo", "1", "3"),
        ("srtf*", "0.5", "3"),
        ("srtf*", "1", "3"),
    ]
    low, mean, high = (float(rows[0][f"avg_jct_s{end}"]) for end in ("_low", "", "_high"))
    assert low < mean < high
    assert rows[0]["bins_SS_avg_slowdown"]


def test_all_figures_are_in_the_wide_table(rota, trace):
    args = ("sim", "compare", "--trace", trace, "--cluster", "1x8", "--policy", "fifo", "--wide")
    _, table, _ = rota(*args)
    for heading in ("p99 s", "worst rho", "Jain index", "slowdown SS", "fragmentation"):
        assert re.search(rf"^{heading}  +\S", table, re.MULTILINE)
    _, table, _ = rota(*args, "--no-history")
    assert "fragmentation" not in table


def test_a_load_makes_the_jobs_of_a_file_arrive_faster(rota, trace):
    args = ("sim", "compare", "--trace", trace, "--cluster", "9x8", "--policy", "fifo", "--json")
    _, out, _ = rota(*args, "--loads", "1,2", "--no-costs")
    first, second = json.loads(out)
    # There is room for all: who arrives last (at 570 s) or runs longest ends last.
    assert first["avg_jct_s"] == second["avg_jct_s"]
    assert first["makespan_s"] > second["makespan_s"]


def test_a_sweep_runs_every_combination(rota, trace):
    args = ("sim", "sweep", "--trace", trace, "--cluster", "1x8", "--policy", "tiresias")
    code, out, _ = rota(
        *(*args, "--set", "promote_knob=0", "--set", "min_run_time_s=0", "--no-costs"),
        *("--over", "thresholds=600|600,1800", "--over", "resume_s=0,60", "--json"),
    )
    assert code == 0
    runs = json.loads(out)
    points = [(run["settings"]["thresholds"], run["overheads"]["resume_s"]) for run in runs]
    assert points == [([600], 0), ([600], 60), ([600, 1800], 0), ([600, 1800], 60)]
    assert [run["avg_jct_s"] for run in runs][:3] == [1254.0, 1408.5, 1302.0]


def test_a_sweep_of_cluster_sizes_has_a_column_for_them(rota, trace):
    args = ("sim", "sweep", "--trace", trace, "--cluster", "1x8", "--policy", "fifo-backfill")
    code, table, _ = rota(*args, "--over", "cluster=1x8|2x8|1x8,1x16")
    assert code == 0
    header, *lines = table.splitlines()
    assert header.split()[:2] == ["policy", "cluster"]
    assert [line.split()[1] for line in lines[:3]] == ["1x8", "2x8", "1x8,1x16"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("promote_knob=1,2", ("promote_knob", ["1", "2"])),
        ("thresholds=600|600,1800", ("thresholds", ["600", "600,1800"])),
        ("thresholds=600,1800|", None),
        ("thresholds=", None),
        ("=1,2", None),
        ("thresholds", None),
        ("load=1,,2", None),
        ("load=1,1", None),
    ],
)
def test_what_changes_is_a_key_and_its_values(text, expected):
    if expected is not None:
        assert parse_axes([text]) == [expected]
    else:
        with pytest.raises(InputError, match="--over"):
            parse_axes([text])


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--over", "promote_nob=1,2"], "did you mean 'promote_knob'"),
        (["--over", "checkpoint=1,2"], "did you mean 'checkpoint_s'"),
        (["--over", "checkpoint_s=1,2"], "--checkpoint-s has no effect without"),
        (["--over", "mtbf_s=100,x"], "--over mtbf_s=x: 'x' is not a number"),
        (["--over", "mtbf_s=100,0"], "mtbf_s is 0"),
        (["--over", "mtbf_s=100,200", "--mtbf-s", "5"], "--mtbf-s is given, and swept over"),
        (["--over", "resume_s=1e11"], "from 0 to 1e10"),
        (["--over", "promote_knob=1,x"], "promote_knob='x'"),
        (["--over", "load=0,1"], "--over load=0"),
        (["--over", "load=1,2", "--loads", "3"], "say the same"),
        (["--over", "cluster=8"], "15x4"),
        (["--over", "resume_s=-1"], "--over resume_s=-1"),
        (["--over", "load=1", "--over", "load=2"], "given twice"),
        (["--over", "within=entry", "--set", "within=entry"], "is swept over"),
        (["--over", "load=1,2", "--seeds", "0-1"], "nothing here is drawn by chance"),
        (["--over", "load=1,2", "--csv", "no/such/folder/t.csv"], "no folder"),
        (["--over", "load=1,2", "--workers", "0"], "--workers"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_wrong_sweeps_are_one_clear_line(rota, trace, more, says):
    args = ("sim", "sweep", "--trace", trace, "--cluster", "1x8", "--policy", "tiresias", *more)
    code, out, err = rota(*args)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert says in err
    assert err.count("\n") == 1


def test_a_sweep_of_clusters_needs_no_other_cluster(rota, trace):
    args = ("sim", "sweep", "--trace", trace, "--policy", "fifo", "--json")
    code, out, _ = rota(*args, "--over", "cluster=1x8|2x8")
    assert (code, [run["cluster"] for run in json.loads(out)]) == (0, ["1x8", "2x8"])
    code, _, err = rota(*args, "--over", "load=1,2")
    assert (code, "give the cluster by --cluster" in err) == (2, True)


def test_faults_can_be_swept(rota):
    args = ("sim", "sweep", "--generate", "philly", "--num-jobs", "40", "--cluster", "2x8")
    code, out, _ = rota(
        *(*args, "--policy", "fifo", "--json"),
        *("--over", "mtbf_s=20000,90000", "--over", "checkpoint_s=60,3600"),
    )
    assert code == 0
    runs = json.loads(out)
    assert [(run["faults"]["mtbf_s"], run["faults"]["checkpoint_s"]) for run in runs] == [
        (20000, 60),
        (20000, 3600),
        (90000, 60),
        (90000, 3600),
    ]
    lost = [run["lost_attempts"] for run in runs]
    assert lost[0] > lost[2] > 0
    assert all(run["node_failures"] >= 1 for run in runs)


def test_loads_are_run_as_they_were_given(rota, trace):
    args = ("sim", "compare", "--trace", trace, "--cluster", "1x8", "--policy", "fifo", "--json")
    code, out, _ = rota(*args, "--loads", "0.1234567, 0.12345678")
    assert (code, [run["load"] for run in json.loads(out)]) == (0, [0.1234567, 0.12345678])


def test_a_run_that_fails_does_not_take_the_others_with_it(rota, trace, tmp_path):
    table = tmp_path / "table.csv"
    args = ("sim", "sweep", "--trace", trace, "--policy", "fifo", "--csv", table)
    code, out, err = rota(*args, "--over", "cluster=1x4|1x8|2x8")
    assert code == 1
    assert [line.split()[1] for line in out.splitlines()[1:3]] == ["1x8", "2x8"]
    assert err.startswith("error: fifo, cluster 1x4, seed 0: job ")
    assert err.count("error: ") == 1
    assert len(table.read_text().splitlines()) == 3


def test_a_table_keeps_to_the_terminal(rota, trace, monkeypatch):
    args = ("sim", "compare", "--trace", trace, "--cluster", "1x8")
    args += ("--policy", "fifo", "--policy", "tiresias", "--policy", "srtf")
    _, free, _ = rota(*args)
    assert "not enough room" not in free
    for width in (60, 80):
        monkeypatch.setenv("COLUMNS", str(width))
        _, table, _ = rota(*args)
        assert all(len(line) <= width for line in table.splitlines())
        assert "not enough room for: CPU s" in table
        _, table, _ = rota(*args, "--wide")
        assert all(len(line) <= width for line in table.splitlines())
    monkeypatch.setenv("COLUMNS", "40")
    _, table, _ = rota(*args, "--wide")
    assert table.count("\njobs ") == 2


def test_two_seeds_are_said_to_be_few(rota):
    args = ("sim", "compare", *DRAWN, "--policy", "fifo", "--seeds")
    assert "fewer than 3 seeds" in rota(*args, "0-1")[1]
    assert "fewer than 3 seeds" not in rota(*args, "0-2")[1]


def test_the_run_that_fails_is_named(rota, trace):
    args = ("sim", "compare", "--trace", trace, "--cluster", "1x4", "--policy", "fifo")
    code, _, err = rota(*args, "--policy", "srtf")
    assert code == 2
    assert err.startswith("error: fifo, seed 0: job ")


@pytest.mark.process
def test_several_processes_give_what_one_gives(rota):
    args = ("sim", "compare", *DRAWN, "--policy", "gandiva", "--policy", "srtf", "--seeds", "0-2")
    args += ("--json",)
    _, one, _ = rota(*args, "--workers", "1")
    _, two, _ = rota(*args, "--workers", "2")
    assert summaries(one) == summaries(two)
    left = [" ".join(child.cmdline()) for child in psutil.Process().children(recursive=True)]
    # Python keeps one process of its own, which cleans up after others.
    assert all("resource_tracker" in command for command in left)


@pytest.mark.process
def test_an_error_in_another_process_is_one_clear_line(rota, trace):
    args = ("sim", "compare", "--trace", trace, "--cluster", "1x4")
    code, out, err = rota(*args, "--policy", "fifo", "--policy", "srtf", "--workers", "2")
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert ", seed 0: job " in err
    assert err.count("\n") == 1


@pytest.mark.process
def test_ctrl_c_leaves_no_process():
    command = [sys.executable, "-m", "rota.cli.main", "sim", "compare", "--workers", "2"]
    command += ["--generate", "philly", "--num-jobs", "200000", "--cluster", "64x8"]
    command += ["--policy", "fifo", "--policy", "srtf", "--policy", "tiresias"]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    group = os.getpgid(process.pid)
    while len(workers := working(process.pid)) < 2:
        assert process.poll() is None
        time.sleep(0.05)
    os.killpg(group, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert (out, err.strip()) == (b"", b"")
    _, alive = psutil.wait_procs(workers, timeout=30)
    assert not alive


@pytest.mark.process
def test_a_program_that_is_killed_takes_its_processes_with_it():
    command = [sys.executable, "-m", "rota.cli.main", "sim", "compare", "--workers", "2"]
    command += ["--generate", "philly", "--num-jobs", "200000", "--cluster", "64x8"]
    command += ["--policy", "fifo", "--policy", "srtf"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while len(workers := working(process.pid)) < 2:
        assert process.poll() is None
        time.sleep(0.05)
    process.kill()
    process.wait()
    _, alive = psutil.wait_procs(workers, timeout=30)
    assert not alive


def working(pid):
    """The children that simulate and have begun to."""
    children = psutil.Process(pid).children()
    found = [c for c in children if "spawn_main" in " ".join(c.cmdline())]
    return [child for child in found if child.cpu_times().user > 0.3]


@pytest.mark.process
def test_the_same_inputs_give_the_same_bits_whatever_the_hash_seed():
    command = [sys.executable, "-m", "rota.cli.main", "sim", "compare", *DRAWN, "--json"]
    policies = ["fifo", "tiresias:thresholds=600", "gandiva", "srtf", "las", "yarn-cs"]
    command += [arg for policy in policies for arg in ("--policy", policy)]
    command += ["--mtbf-s", "90000", "--seeds", "5"]
    printed = [
        summaries(subprocess.check_output(command, env=os.environ | {"PYTHONHASHSEED": seed}))
        for seed in ("0", "1")
    ]
    assert printed[0] == printed[1]
    assert len(list(groupby(printed[0], key=lambda run: run["policy"]))) == len(policies)


def test_all_is_every_policy_with_the_best_first(rota):
    args = ("sim", "compare", *DRAWN, "--policy", "all", "--seeds", "0,1", "--no-turn")
    code, out, err = rota(*args)
    assert code == 0
    assert "left out, as they need --profiles: optimus, optimus-oracle, pollux" in err
    header, *lines = out.splitlines()
    assert "against fifo-backfill" in header
    named = {line.split()[0].rstrip("*") for line in lines}
    assert {"fifo", "fifo-backfill", "gandiva", "tiresias", "srtf", "max-min-fairness"} <= named
    rows = [line for line in lines if line.split()[1] in ("none", "oracle", "history", "label")]
    averages = [float(line.split()[3].replace(",", "")) for line in rows]
    assert averages == sorted(averages) and len(averages) > 10
    assert sum(line.startswith("verdict: ") for line in lines) == 1
    assert not any(line.startswith("cost: ") for line in lines)


LIMITS = "job_id,submit_s,duration_s,num_gpus{}\na,0,60,3{}\nhead,1,60,4\nb,2,60,1{}\n"


def test_a_policy_that_goes_by_time_limits_is_left_out_of_all_where_there_are_none(rota, tmp_path):
    args = ("sim", "compare", "--cluster", "1x4", "--no-turn", "--trace", tmp_path / "jobs.csv")
    (tmp_path / "jobs.csv").write_text(LIMITS.format("", "", ""))
    _, out, err = rota(*args, "--policy", "all")
    assert "left out, as no job has a time limit: easy-backfill; give the trace a column" in err
    assert "easy-backfill" not in out
    _, out, err = rota(*args, "--policy", "easy-backfill", "--policy", "fifo")
    assert "easy-backfill: no job has a time limit, so that few pass the head of the line" in err
    assert "easy-backfill" in out
    _, _, err = rota(*args, "--policy", "easy-backfill:default_limit_s=60")
    assert "time limit" not in err
    limited = LIMITS.format(",time_limit_s", ",60", ",60").replace("head,1,60,4", "head,1,60,4,60")
    (tmp_path / "limited.csv").write_text(limited)
    _, out, err = rota(*args[:-1], tmp_path / "limited.csv", "--policy", "all")
    assert "time limit" not in err
    assert "easy-backfill" in out


def test_a_run_says_that_no_job_has_a_time_limit(rota):
    _, _, err = rota("sim", "run", *DRAWN, "--policy", "easy-backfill")
    assert "no job has a time limit" in err and "default_limit_s" in err


def test_all_with_others_compares_with_the_first_of_these(rota):
    args = ("sim", "compare", *DRAWN, "--no-turn")
    _, out, _ = rota(*args, "--policy", "las:priority=ignore", "--policy", "all")
    assert "against las:priority=ignore" in out.splitlines()[0]


def test_the_cost_at_which_the_ranking_turns_is_looked_for(rota, trace, monkeypatch):
    monkeypatch.setattr(simgrid, "LONG_TURN_S", inf)
    args = ("sim", "compare", "--trace", trace, "--cluster", "1x8", "--policy", "fifo-backfill")
    args += ("--policy", "gandiva:quantum_s=30", "--policy", "tiresias")
    for more in ((), ("--turn",)):
        _, out, _ = rota(*args, *more)
        assert sum(line.startswith("cost: ") for line in out.splitlines()) == 1
    _, out, _ = rota(*args, "--no-turn")
    assert "cost: " not in out


def test_a_turn_that_takes_long_is_offered(rota, trace, monkeypatch):
    monkeypatch.setattr(simgrid, "LONG_TURN_S", 0.0)
    args = ("sim", "compare", "--trace", trace, "--cluster", "1x8", "--policy", "fifo")
    _, out, _ = rota(*args, "--policy", "tiresias")
    assert "--turn looks for the cost" in out


def test_clusters_are_compared(rota, trace):
    args = ("sim", "compare", "--trace", trace, "--policy", "fifo", "--policy", "tiresias")
    code, out, _ = rota(*args, "--cluster", "1x8", "--cluster", "2x8")
    header, *lines = out.splitlines()
    assert (code, header.split()[:2]) == (0, ["policy", "cluster"])
    assert [line.split()[:2] for line in lines[:4]] == [
        ["fifo", "1x8"],
        ["fifo", "2x8"],
        ["tiresias", "1x8"],
        ["tiresias", "2x8"],
    ]
    assert [line.split(":")[0] for line in lines if line.startswith("verdict")] == [
        "verdict, cluster 1x8",
        "verdict, cluster 2x8",
    ]
    code, _, err = rota(*args, "--cluster", "1x8", "--cluster", "1x8")
    assert code == 2 and "--cluster 1x8 stands there twice" in err


SACCT = """JobID|State|Submit|Start|Elapsed|AllocTRES
1|COMPLETED|2026-03-01T00:00:00|2026-03-01T00:01:00|00:10:00|gres/gpu=1
2|COMPLETED|2026-03-01T00:00:10|2026-03-01T00:00:10|00:20:00|gres/gpu=1
"""


def test_a_log_that_tells_when_jobs_started_has_a_line_of_its_own(rota, tmp_path):
    log, table = tmp_path / "sacct.txt", tmp_path / "table.csv"
    log.write_text(SACCT)
    args = ("sim", "compare", "--trace", log, "--cluster", "1x1", "--policy", "fifo")
    _, out, _ = rota(*args, "--policy", "srtf", "--csv", table)
    line = next(line for line in out.splitlines() if line.startswith("as it was  "))
    assert line.split()[3] == "930.0"  # 60 + 600 s, and 1,200 s
    assert "as it was: jobs waited 30.0 s on average, and here " in out
    with table.open(newline="") as file:
        rows = {row["policy"]: row for row in csv.DictReader(file)}
    assert rows["as it was"]["avg_queue_s"] == "30.0"
    _, out, _ = rota(*args, "--loads", "2")
    assert "as it was" not in out


def test_a_verdict_on_another_cluster_than_the_logs_is_not_to_be_trusted(rota, tmp_path):
    log = tmp_path / "sacct.txt"
    log.write_text(SACCT.replace("00:01:00|00:10:00", "05:00:00|00:10:00"))
    args = ("sim", "compare", "--trace", log, "--cluster", "8x8", "--no-turn")
    for policies in (("fifo", "tiresias"), ("tiresias",)):  # without one like the log's, it is run
        given = [word for name in policies for word in ("--policy", name)]
        _, out, _ = rota(*args, *given)
        line = next(line for line in out.splitlines() if line.startswith("verdict: "))
        assert line.startswith("verdict: don't trust this: the cluster is not the log's. ")
        assert "The log's jobs held at most 1 GPU at once; 8x8 has 64." in line
        assert out.count("if it were: ") == len(policies) - 1
    page = tmp_path / "page.html"
    rota(*args, "--policy", "fifo", "--html", page)
    opening = page.read_text().partition("Job completion times")[0]
    assert "<td>verdict</td><td>don&#x27;t trust this: the cluster is not the log" in opening
    assert "<td>as it was</td>" in opening and "<td>costs</td>" in opening


def test_jobs_of_a_log_keep_their_gpus_unless_costs_say_how_they_are_suspended(rota, tmp_path):
    log, own = tmp_path / "sacct.txt", tmp_path / "own.csv"
    rows = [
        f"{n}|COMPLETED|2026-03-01T00:00:{n:02}|2026-03-01T00:01:00|05:00:00|gres/gpu=1"
        for n in range(1, 5)
    ]
    log.write_text("\n".join(["JobID|State|Submit|Start|Elapsed|AllocTRES", *rows, ""]))
    rota("trace", "convert", log, own)
    args = ("sim", "compare", "--cluster", "1x2", "--policy", "fifo", "--policy", "gandiva")
    for trace in (log, own):
        runs = summaries(rota(*args, "--trace", trace, "--json")[1])[:2]
        assert [(run["costs"], run["preemptions"]) for run in runs] == [("plain", 0)] * 2
        _, out, _ = rota(*args, "--trace", trace, "--turn")
        assert "costs: plain: none, as jobs keep their GPUs until they end" in out
        assert "if jobs restarted from their own checkpoints (--costs restart): " in out
        assert "if jobs used rota.train (--costs cooperative): " in out
    preemptions = {}
    for name in ("restart", "cooperative"):
        runs = summaries(rota(*args, "--trace", log, "--json", "--costs", name)[1])
        assert runs[1]["costs"] == name
        preemptions[name] = runs[1]["preemptions"]
    assert 0 < 10 * preemptions["restart"] < preemptions["cooperative"]
    text = own.read_text().splitlines()
    own.write_text("\n".join([*text[:2], *(row.replace("plain", "restart") for row in text[2:])]))
    _, out, _ = rota(*args, "--trace", own)
    assert "costs: by job: 30 s without progress" in out


def test_durations_that_can_hardly_be_seconds_are_told_with_the_fix(rota, tmp_path):
    file = tmp_path / "jobs.csv"
    file.write_text("job_id,submit_s,duration_s,num_gpus\n1,0,1000000,1\n2,0,3000000,1\n")
    args = ("sim", "run", "--trace", file, "--cluster", "1x2", "--policy", "fifo", "--json")
    _, out, err = rota(*args)
    assert "the median of the durations is 23 days: if they are milliseconds, give --unit ms" in err
    _, out, err = rota(*args, "--unit", "ms", "--no-costs")
    assert (json.loads(out)["avg_jct_s"], err) == (2000.0, "")
    code, _, err = rota("sim", "run", *DRAWN, "--policy", "fifo", "--unit", "ms")
    assert code == 2 and "no effect on drawn jobs" in err


def test_policies_are_listed_with_what_they_need(rota):
    code, out, _ = rota("policies")
    header, *lines = out.splitlines()
    assert (code, header.split()[0]) == (0, "POLICY")
    told = {line.split()[0]: line for line in lines}
    assert told["srtf"].split()[1] == "oracle" and told["tiresias"].split()[1] == "none"
    found = {each["name"]: each for each in json.loads(rota("policies", "--json")[1])}
    assert found.keys() == told.keys()
    assert not found["srtf"]["live"] and found["gandiva"]["live"]
    assert all(each["what"].endswith(".") for each in found.values())
