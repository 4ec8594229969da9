import csv
import json
import stat
import subprocess
import sys

import pytest

from rota.report.metrics import PER_JOB_COLUMNS
from rota.sim.machine import FREE

KEYS = ("policy", "needs_duration", "jobs", "finished", "avg_jct_s", "median_jct_s", "p95_jct_s")
KEYS += ("p99_jct_s", "makespan_s", "avg_queue_s", "preemptions", "migrations", "gpu_utilisation")
KEYS += ("events", "decisions", "cpu_s")


def test_run_prints_one_json_object_and_nothing_else(rota, trace):
    code, out, err = rota(
        *("sim", "run", "--trace", trace, "--cluster", "1x8", "--policy", "tiresias"),
        *("--set", "thresholds=600,1800", "--set", "promote_knob=0", "--no-costs", "--json"),
    )
    assert (code, err) == (0, "")
    summary = json.loads(out)
    assert set(KEYS) <= set(summary)
    assert summary["policy"] == "tiresias"
    assert (summary["jobs"], summary["finished"]) == (20, 20)
    assert (summary["avg_jct_s"], summary["preemptions"]) == (1302.0, 18)
    assert summary["settings"] == {"thresholds": [600, 1800], "promote_knob": 0, "within": "entry"}
    assert summary["overheads"] == FREE._asdict()
    assert summary["cpu_s"] > 0


def test_costs_can_be_given_one_by_one(rota, trace):
    code, out, _ = rota(
        *("sim", "run", "--trace", trace, "--cluster", "1x8", "--policy", "tiresias", "--json"),
        *("--set", "thresholds=600", "--set", "promote_knob=0", "--set", "min_run_time_s=0"),
        *("--resume-s", 60, "--suspend-s", 0, "--cold-start-s", 0, "--migrate-s", 0),
    )
    assert code == 0
    summary = json.loads(out)
    assert (summary["avg_jct_s"], summary["avg_queue_s"]) == (1408.5, 949.5)


OWNED = "job_id,submit_s,duration_s,num_gpus,user\na,0,60,1,ann\nb,0,60,1,{}\n"


@pytest.mark.parametrize("command", ["run", "compare"])
def test_shares_between_users_are_refused_while_there_is_one(rota, tmp_path, command):
    for user in ("ann", "bob"):
        (tmp_path / f"{user}.csv").write_text(OWNED.format(user))
    fair = ("sim", command, "--cluster", "1x4", "--policy", "las:fair_share=user", "--trace")
    if command == "run":
        fair = ("sim", "run", "--cluster", "1x4", "--policy", "las", "--set", "fair_share=user")
        fair += ("--trace",)
    code, _, err = rota(*fair, tmp_path / "ann.csv")
    assert code == 2
    assert "fair_share=user has no effect: the jobs of ann.csv are all of 'ann'; give" in err
    assert rota(*fair, tmp_path / "bob.csv")[0] == 0


def test_compare_prints_one_json_array_in_the_order_asked_for(rota, trace):
    code, out, err = rota(
        *("sim", "compare", "--trace", trace, "--cluster", "1x8", "--no-costs", "--json"),
        *("--policy", "srtf", "--policy", "fifo"),
        *("--policy", "tiresias:thresholds=600:promote_knob=0:within=first-start"),
    )
    assert (code, err) == (0, "")
    summaries = json.loads(out)
    assert [s["policy"] for s in summaries] == ["srtf", "fifo", "tiresias"]
    assert [s["avg_jct_s"] for s in summaries] == [1033.5, 2082.0, 1254.0]
    assert [s["needs_duration"] for s in summaries] == [True, False, False]
    assert all(set(KEYS) <= set(s) for s in summaries)


def test_the_tables_mark_oracles_and_name_settings(rota, trace):
    args = ("--trace", trace, "--cluster", "1x8", "--no-costs")
    _, table, _ = rota(
        *("sim", "compare", *args, "--policy", "srtf", "--policy", "fifo"),
        *("--policy", "tiresias:thresholds=600"),
    )
    lines = table.splitlines()
    assert lines[1].startswith("srtf* ")
    assert lines[2].startswith("fifo ")
    assert lines[3].startswith("tiresias:thresholds=600 ")
    assert "oracle" in lines[4]
    _, one, _ = rota("sim", "run", *args, "--policy", "fifo")
    assert "2,082.0" in one
    assert "oracle" not in one


def test_the_per_job_table_is_written_whole(rota, trace, tmp_path):
    out_csv = tmp_path / "out.csv"
    out_csv.write_text("old")
    args = ("sim", "run", "--trace", trace, "--cluster", "1x8", "--policy", "fifo")
    code, out, _ = rota(*args, "--no-costs", "--per-job", out_csv, "--json")
    assert code == 0
    with out_csv.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == PER_JOB_COLUMNS
    assert [row["job_id"] for row in rows] == [str(i) for i in range(20)]
    jct = [float(row["jct_s"]) for row in rows]
    assert sum(jct) / 20 == json.loads(out)["avg_jct_s"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.csv", "twenty.csv"]


def test_a_run_that_fails_leaves_the_old_per_job_table(rota, trace, tmp_path):
    out_csv = tmp_path / "out.csv"
    out_csv.write_text("old")
    args = ("sim", "run", "--trace", trace, "--cluster", "1x4", "--policy", "fifo")
    code, out, err = rota(*args, "--per-job", out_csv, "--json")
    assert (code, out) == (2, "")
    assert "asks for 8 GPUs" in err
    assert out_csv.read_text() == "old"


def test_cores_are_shared_out_only_where_the_cluster_has_some(rota, trace):
    shares = ("sim", "run", "--trace", trace, "--policy", "fifo", "--set", "cpus=equal")
    code, _, err = rota(*shares, "--cluster", "1x8")
    assert code == 2
    assert "cpus=equal has no effect" in err
    assert "--cluster 1x8:cpus=24" in err
    code, out, _ = rota(*shares, "--cluster", "1x8:cpus=24:mem=500", "--json")
    assert code == 0
    assert json.loads(out)["settings"]["cpus"] == "equal"


def test_what_settings_turn_off_is_told_beside_the_figures(rota, trace):
    said = "policy gandiva: with quotas=equal, jobs take turns over the whole cluster"
    world = ("--trace", trace, "--cluster", "2x4")
    code, _, err = rota("sim", "run", *world, "--policy", "gandiva:quotas=equal")
    assert (code, err.count(said)) == (0, 1)
    both = ("--policy", "gandiva", "--policy", "gandiva:quotas=equal", "--loads", "1,2")
    code, out, err = rota("sim", "compare", *world, *both, "--json")
    assert (code, len(json.loads(out)), err.count(said)) == (0, 4, 1)
    assert said not in rota("sim", "run", *world, "--policy", "gandiva")[2]


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--policy", "fif"], "did you mean 'fifo'"),
        (["--policy", "tiresias", "--set", "thresholds"], "not of the form KEY=VALUE"),
        (["--policy", "gandiva", "--set", "quantum_s"], "write for example quantum_s=60"),
        (["--policy", "gandiva:quotas=equal:pack=on"], "pack=on and quotas=equal exclude"),
        (["--policy", "tiresias", "--set", "=600"], "not of the form KEY=VALUE"),
        (["--policy", "tiresias", "--set", "threshold=1"], "did you mean 'thresholds'"),
        (["--policy", "tiresias", "--set", "within=a", "--set", "within=b"], "given twice"),
        (["--policy", "fifo", "--resume-s", "-1"], "--resume-s: -1.0"),
        (["--policy", "fifo", "--resume-s", "nan"], "--resume-s: nan"),
        (["--policy", "fifo", "--resume-s", "1", "--no-costs"], "contradict"),
        (["--policy", "fifo", "--cluster", "8"], "15x4"),
        (["--policy", "fifo", "--trace", "nothing.csv"], "nothing.csv"),
        (["--policy", "fifo", "--format", "tiresias"], "'num_gpu' is missing"),
        (["--policy", "fifo", "--format", "nobody"], "--format"),
        (["--policy", "fifo", "--per-job", "no/such/folder/out.csv"], "no folder"),
        (["--policy", "fifo", "--per-job", "."], "it is a folder"),
        (["--policy", "fifo", "--html", "no/such/folder/out.html"], "--html"),
        (["--policy", "fifo", "--html", "."], "it is a folder"),
        (["--policy", "fifo", "--load", "0"], "--load: 0.0"),
        (["--policy", "fifo", "--load", "1e-320"], "from 1e-6 to 1e6"),
        (["--policy", "fifo", "--cold-start-s", "1e308"], "from 0 to 1e10"),
        (["--policy", "fifo", "--png", ""], "--png names nothing"),
        (["--policy", "fifo", "--html", "a.html", "--png", "./a.html"], "what --html names"),
        (["--policy", "fifo", "--load", "nan"], "--load: nan"),
        (["--policy", "fifo", "--num-jobs", "5"], "--num-jobs has no effect"),
        (["--policy", "fifo", "--span", "5m"], "--span has no effect"),
        (["--policy", "fifo", "--generate", "philly"], "not by both"),
        (["--policy", "fifo", "--mttr-s", "5"], "--mttr-s"),
        (["--policy", "fifo", "--mtbf-s", "0"], "mtbf_s is 0; give"),
        (["--policy", "fifo", "--oversubscription", "4"], "no effect on a cluster without racks"),
        (["--policy", "fifo", "--oversubscription", "0.5"], "0.5 is not a number from 1"),
        (["--policy", "fifo", "--interference", "1"], "1 is not a part of 1"),
        (["--policy", "fifo", "--interference", "nan"], "nan is not a part of 1"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_wrong_input_is_one_clear_line(rota, trace, more, says):
    code, out, err = rota("sim", "run", "--trace", trace, "--cluster", "1x8", "--json", *more)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert says in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("through", ["itself", "a link"])
def test_the_trace_is_not_written_over(rota, trace, tmp_path, through):
    before = trace.read_bytes()
    given = tmp_path / "link.csv"
    given.symlink_to(trace)
    given = trace if through == "itself" else given
    args = ("sim", "run", "--trace", given, "--cluster", "1x8", "--policy", "fifo")
    code, _, err = rota(*args, "--per-job", trace)
    assert (code, "what --trace names" in err) == (2, True)
    assert trace.read_bytes() == before


def test_two_outputs_do_not_share_a_file(rota, trace, tmp_path):
    args = ("sim", "run", "--trace", trace, "--cluster", "1x8", "--policy", "fifo")
    out = tmp_path / "out"
    code, _, err = rota(*args, "--per-job", out, "--html", tmp_path / "." / "out")
    assert (code, "what --per-job names" in err) == (2, True)
    assert not out.exists()


def test_pictures_that_cannot_be_written_leave_the_old_ones(rota, trace, tmp_path, monkeypatch):
    page, folder = tmp_path / "page.html", tmp_path / "figures"
    folder.mkdir()
    old = [page, folder / "completion.png"]
    for path in old:
        path.write_text("old")

    def full(path, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("rota.cli.outfile.Path.replace", full)
    args = ("sim", "run", "--trace", trace, "--cluster", "1x8", "--policy", "fifo")
    for more in (("--html", page), ("--png", folder)):
        code, _, err = rota(*args, *more)
        assert code == 2
        assert "None" not in err
        assert f"error: {more[0]} {more[1]}" in err
        assert "No space left on device" in err
    assert [path.read_text() for path in old] == ["old", "old"]
    assert sorted(path.name for path in folder.iterdir()) == ["completion.png"]


def test_the_page_names_the_jobs_and_the_seed_where_it_matters(rota, trace, tmp_path):
    page = tmp_path / "page.html"
    rota("sim", "run", "--trace", trace, "--cluster", "1x8", "--policy", "fifo", "--html", page)
    assert "<title>twenty.csv on 1x8</title>" in page.read_text()
    assert "seed: " not in page.read_text()
    drawn = ("--generate", "philly", "--num-jobs", "20", "--cluster", "2x8", "--policy", "fifo")
    rota("sim", "compare", *drawn, "--seeds", "0-3", "--html", page)
    assert "<title>philly-20 on 2x8</title>" in page.read_text()
    assert "seeds: 0, 1, 2, 3." in page.read_text()


def test_tables_and_pages_call_costs_by_the_name_of_their_option(rota, trace, tmp_path):
    page = tmp_path / "page.html"
    args = ("sim", "compare", "--trace", trace, "--cluster", "1x8", "--policy", "tiresias")
    _, out, _ = rota(*args, "--costs", "restart", "--wide", "--html", page)
    assert "cost GPU s" in out
    text = page.read_text()
    assert "<td>restart: 30 s without progress" in text
    assert "overhead" not in out + text.partition("<script")[0]


def test_the_older_name_of_no_costs_is_taken_too(rota, trace):
    args = ("sim", "run", "--trace", trace, "--cluster", "1x8", "--policy", "fifo", "--json")
    code, out, _ = rota(*args, "--no-overheads")
    assert code == 0
    assert json.loads(out)["overheads"] == FREE._asdict()


def test_json_has_no_number_that_is_not_one(rota, trace, monkeypatch):
    monkeypatch.setattr("rota.cli.simoutput.cpu_s", lambda: float("inf"))
    args = ("sim", "run", "--trace", trace, "--cluster", "1x8", "--policy", "fifo", "--json")
    code, out, err = rota(*args)
    assert (code, out) == (1, "")
    assert "not a finite number" in err


def test_slow_links_between_racks_slow_the_gangs_that_cross_them(rota, tmp_path):
    jobs = tmp_path / "jobs.csv"
    jobs.write_text("job_id,submit_s,duration_s,num_gpus,model\na,0,600,8,vgg16\n")
    args = ("sim", "run", "--trace", jobs, "--cluster", "2x4:rack=1", "--policy", "fifo", "--json")
    _, level, _ = rota(*args, "--speeds", "catalog")
    _, slow, _ = rota(*args, "--oversubscription", "4")
    assert json.loads(slow)["oversubscription"] == 4
    assert json.loads(slow)["speeds"] == "catalog"
    assert json.loads(slow)["makespan_s"] > 1.2 * json.loads(level)["makespan_s"]
    code, _, err = rota(*args, "--oversubscription", "4", "--speeds", "none")
    assert (code, "no effect with --speeds none" in err) == (2, True)


@pytest.mark.parametrize(
    "twice",
    [
        ("fifo", "fifo"),
        ("tiresias", "tiresias:thresholds=3600"),
        ("gandiva:quantum_s=60", "gandiva"),
    ],
    ids=" and ".join,
)
def test_the_same_policy_twice_is_refused(rota, trace, twice):
    policies = [arg for text in twice for arg in ("--policy", text)]
    code, out, err = rota("sim", "compare", "--trace", trace, "--cluster", "1x8", *policies)
    assert (code, out) == (2, "")
    assert "twice" in err


def test_a_folder_that_cannot_be_written_is_told_before_the_run(rota, trace, tmp_path, monkeypatch):
    closed = tmp_path / "closed"
    closed.mkdir()
    closed.chmod(stat.S_IRUSR | stat.S_IXUSR)
    # root may write everywhere, so that the answer of the system is given here.
    monkeypatch.setattr("rota.cli.outfile.os.access", lambda path, mode: path != closed)
    args = ("sim", "run", "--trace", trace, "--cluster", "1x8", "--policy", "fifo")
    code, _, err = rota(*args, "--per-job", closed / "out.csv")
    assert code == 2
    assert "can't be written" in err


@pytest.mark.process
def test_a_run_loads_no_library_that_it_does_not_use(trace):
    heavy = ["numpy", "scipy", "rich", "plotly", "matplotlib", "multiprocessing", "sqlalchemy"]
    code = (
        "import sys\n"
        "from rota.cli.main import cli\n"
        "cli.main(sys.argv[1:], standalone_mode=False)\n"
        f"print(*(name for name in {heavy} if name in sys.modules), end='', file=sys.stderr)\n"
    )
    args = ("sim", "run", "--trace", str(trace), "--cluster", "1x8", "--policy", "tiresias")
    done = subprocess.run([sys.executable, "-c", code, *args], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
