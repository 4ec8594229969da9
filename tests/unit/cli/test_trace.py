import gzip
import json

import pytest

from rota.cli.main import main
from rota.workload.readers import read_trace

OURS = "job_id,submit_s,duration_s,num_gpus,vc\n"
ROWS = "a,100,60,1,red\nb,700,3600,8,blue\nc,1300,30,1,red\n"
SACCT = (
    "JobID|Submit|Elapsed|AllocTRES\n"
    "1|2024-01-05T10:00:00|00:10:00|gres/gpu=2\n"
    "2|2024-01-05T10:00:30|soon|gres/gpu=2\n"
    "3|2024-01-05T10:01:00|00:00:10|cpu=2\n"
)


@pytest.fixture
def rota(capfdbinary):
    def rota(*args):
        with pytest.raises(SystemExit) as end:
            main(["trace", *map(str, args)])
        out, err = capfdbinary.readouterr()
        return end.value.code, out, err.decode()

    return rota


@pytest.fixture
def ours(tmp_path):
    path = tmp_path / "ours.csv"
    path.write_text(OURS + ROWS)
    return path


@pytest.fixture
def sacct(tmp_path):
    path = tmp_path / "sacct.txt"
    path.write_text(SACCT)
    return path


def test_show_tells_sizes_durations_load_and_who_asks(rota, ours):
    code, out, err = rota("show", ours, "--cluster", "2x4")
    text = out.decode()
    assert (code, err) == (0, "")
    assert "jobs          3" in text
    assert "load          3.01" in text
    assert "red" in text and "blue" in text
    assert "33.33%" in text


def test_show_prints_one_json_object_and_nothing_else(rota, sacct):
    code, out, err = rota("show", sacct, "--json")
    shape = json.loads(out)
    assert (code, err) == (0, "")
    assert (shape["jobs"], shape["rejected"], shape["load"]) == (1, 1, None)
    assert shape["rejected_rows"][0]["line"] == 3
    assert "CPU jobs left out: 1" in shape["notes"]


def test_rows_that_cannot_be_read_and_what_is_left_out_is_said_on_stderr(rota, sacct, tmp_path):
    code, out, err = rota("convert", sacct, "-")
    assert code == 0
    assert out == b"job_id,submit_s,duration_s,num_gpus,suspension\n1,0,600,2,plain\n"
    assert "1 row could not be read" in err
    assert "line 3: Elapsed is 'soon'" in err
    assert "CPU jobs left out: 1" in err


def test_strict_reading_ends_with_2_and_writes_nothing(rota, sacct, tmp_path):
    code, _, err = rota("convert", sacct, tmp_path / "out.csv", "--strict")
    assert code == 2
    assert "line 3: Elapsed" in err
    assert not (tmp_path / "out.csv").exists()


@pytest.mark.parametrize("name", ["out.csv", "out.csv.gz", "out.parquet"])
def test_a_converted_trace_reads_back_the_same_whatever_it_is_written_as(rota, ours, name):
    out = ours.with_name(name)
    assert rota("convert", ours, out)[0] == 0
    assert list(read_trace(out)) == list(read_trace(ours))
    assert sorted(path.name for path in ours.parent.iterdir()) == sorted([ours.name, name])


def test_what_was_written_is_said_on_stderr(rota, ours, tmp_path):
    out = tmp_path / "out.csv"
    assert rota("convert", ours, out) == (0, b"", f"wrote {out}: 3 jobs\n")
    window = ("window", ours, out, "--first", 1)
    assert rota(*window) == (0, b"", f"wrote {out}: 1 job, in place of what was there\n")
    _, _, err = rota("generate", out.with_suffix(".parquet"), "--num-jobs", 1200, "--gpus", 64)
    assert err == f"wrote {out.with_suffix('.parquet')}: 1,200 jobs\n"
    assert rota("convert", ours, "-")[2] == ""


@pytest.mark.parametrize("command", [["convert"], ["window", "--first", "2"]])
def test_a_trace_is_never_written_over_the_file_it_is_read_from(rota, ours, command):
    for other in (ours, ours.parent / "." / "x" / ".." / ours.name, ours.with_name("link.csv")):
        (ours.parent / "x").mkdir(exist_ok=True)
        if not other.exists():
            other.hardlink_to(ours)
        code, _, err = rota(command[0], ours, other, *command[1:])
        assert (code, "it is the trace that is read" in err) == (2, True)
    assert ours.read_text() == OURS + ROWS


def test_what_is_written_can_be_named(rota, ours):
    out = ours.with_name("out")
    assert rota("convert", ours, out, "--to", "parquet")[0] == 0
    assert out.read_bytes()[:4] == b"PAR1"


def test_the_same_jobs_are_the_same_bytes_gzipped_or_not(rota, ours):
    first, second = ours.with_name("one.csv.gz"), ours.with_name("two.csv.gz")
    rota("convert", ours, first)
    rota("convert", ours, second)
    assert first.read_bytes() == second.read_bytes()
    assert gzip.decompress(first.read_bytes()).decode() == OURS + ROWS


def test_generate_writes_the_same_trace_for_the_same_seed(rota, tmp_path):
    arguments = ("--profile", "philly-multi", "--num-jobs", 200, "--gpus", 64, "--seed", 3)
    first = rota("generate", "-", *arguments)
    assert first[0] == 0
    assert first == rota("generate", "-", *arguments)
    path = tmp_path / "made.csv"
    path.write_bytes(first[1])
    assert len(read_trace(path)) == 200


def test_generate_takes_a_span_with_a_unit(rota, tmp_path):
    path = tmp_path / "made.csv"
    assert rota("generate", path, "--span", "2d", "--gpus", 256, "--load", 0.5)[0] == 0
    trace = read_trace(path)
    assert trace.jobs[-1].submit_s < 2 * 86400
    asked = sum(spec.num_gpus * spec.duration_s for spec in trace)
    assert asked == pytest.approx(0.5 * 256 * 2 * 86400, rel=0.02)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["generate", "-", "--gpus", 8], "either --num-jobs or --span"),
        (["generate", "-", "--gpus", 8, "--num-jobs", 1, "--span", "1h"], "either --num-jobs"),
        (["generate", "-", "--gpus", 8, "--span", "1y"], "no span such as"),
        (["generate", "-", "--gpus", 8, "--span", "9" * 400], "more than 10,000,000,000 seconds"),
        (["generate", "-", "--gpus", 8, "--num-jobs", 9, "--load", 1e308], "load is 1e+308"),
        (["generate", "-", "--gpus", 0, "--num-jobs", 1], "num_gpus is 0"),
        (["window", "OURS", "-"], "--start, --end or --first"),
        (["window", "OURS", "-", "--start", "1d"], "goes from 100 to 1,300 s"),
        (["convert", "OURS", "."], "it is a folder"),
        (["convert", "OURS", "/nowhere/out.csv"], "there is no folder /nowhere"),
        (["convert", "OURS", "/dev/null"], "no plain file"),
        (["convert", "OURS", "x" * 300], "check the path"),
        (["convert", "OURS", "/proc/x.csv"], "OUT /proc/x.csv: "),
        (["show", "absent.csv"], "check the path"),
        (["show", "OURS", "--cluster", "x"], "cluster"),
    ],
)
def test_a_wrong_request_ends_with_2_and_one_line(rota, ours, arguments, says):
    code, _, err = rota(*(ours if text == "OURS" else text for text in arguments))
    assert code == 2
    assert says in err
    assert len(err.splitlines()) == 1


def test_a_window_keeps_what_arrives_in_it(rota, ours):
    code, out, _ = rota("window", ours, "-", "--start", "200", "--end", "20m")
    assert (code, out.decode()) == (0, OURS + "b,700,3600,8,blue\n")


def test_a_window_may_keep_the_first_jobs_and_count_from_the_first_of_them(rota, ours):
    _, out, _ = rota("window", ours, "-", "--start", "10m", "--first", 2, "--rebase")
    assert out.decode() == OURS + "b,0,3600,8,blue\nc,600,30,1,red\n"


def test_a_job_that_no_csv_can_hold_leaves_the_old_file_as_it_was(rota, tmp_path):
    out = tmp_path / "out.csv"
    out.write_text("old")
    wrong = tmp_path / "wrong.parquet"
    _parquet_with_a_line_end(wrong)
    code, _, err = rota("convert", wrong, out)
    assert code == 2
    assert "line end" in err
    assert out.read_text() == "old"
    assert not list(tmp_path.glob(".*.part"))


def _parquet_with_a_line_end(path):
    import pyarrow
    from pyarrow.parquet import write_table

    columns = {"job_id": ["a\nb"], "submit_s": [0.0], "duration_s": [1.0], "num_gpus": [1]}
    write_table(pyarrow.table(columns), path)


def test_a_window_leaves_out_dependencies_on_jobs_outside_of_it_and_says_so(rota, tmp_path):
    whole = tmp_path / "whole.csv"
    rows = "a,0,60,1,\nb,10,60,1,a\nc,20,60,1,a;b\n"
    whole.write_text(f"job_id,submit_s,duration_s,num_gpus,depends_on\n{rows}")
    _, out, err = rota("window", whole, "-", "--start", "5")
    assert out.decode().splitlines()[1:] == ["b,10,60,1,", "c,20,60,1,b"]
    assert "dependencies left out, on jobs outside of the window: 2" in err
