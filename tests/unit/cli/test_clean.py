"""``rota clean``: which jobs it takes, what it says, and when it asks."""

import shutil
import sys

import pytest

from rota.folder import Folder
from rota.model.events import JobFinished
from rota.model.job import JobState
from support.served import StandInController, served


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    for name in ("ROTA_SERVER", "ROTA_TOKEN", "VIRTUAL_ENV", "CONDA_PREFIX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ROTA_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    folder = Folder().create()
    with served(folder, StandInController(folder, num_gpus=8)) as it:
        yield it


@pytest.fixture
def rota(cluster, rota):
    """The program, with a cluster to talk to."""
    return rota


@pytest.fixture
def ended(rota, cluster, monkeypatch):
    """Makes a job that has printed something, and ended so many days ago."""

    def make(name, days=0.0, user="me"):
        monkeypatch.setenv("LOGNAME", user)
        job_id = rota("run", "--name", name, "--", "x")[1].strip()
        monkeypatch.setenv("LOGNAME", "me")
        row = cluster.controller.row(job_id)
        cluster.do(cluster.controller.turn)
        cluster.write_log(row, b"x" * 3000)
        finish_s = cluster.controller.now_s() - 86400 * days
        cluster.apply(JobFinished(finish_s, row, JobState.SUCCEEDED, 0))
        return job_id

    return make


def prints(rota, job_id):
    return rota("logs", job_id)[0] == 0


def test_named_jobs_are_cleaned_up_and_the_bytes_are_told(rota, ended):
    ended("a"), ended("b"), ended("c")
    code, out, err = rota("clean", "[1-2]", "--yes")
    assert (code, err) == (0, "")
    assert out.startswith("job 1 (a) of me, ended ")
    assert "\nremoved the output and checkpoints of 2 jobs: " in out and " KiB\n" in out
    assert [prints(rota, job_id) for job_id in "123"] == [False, False, True]
    assert "removed by me with `rota clean` at" in rota("logs", "1")[2]
    assert "its output and checkpoints were removed by me" in rota("show", "1")[1]


def test_of_a_job_that_was_cleaned_up_nothing_is_left_to_remove(rota, ended, cluster):
    ended("a"), ended("b")
    assert rota("clean", "a", "--yes")[0] == 0
    for more in (["--yes"], ["--dry-run"]):
        code, out, err = rota("clean", "a", *more)
        assert (code, err, "removed" in out) == (0, "", False)
        assert out.startswith("job 1 (a) of me, ended ") and out.count("\n") == 1
        assert out.endswith(": nothing is left to remove\n")
    code, out, _ = rota("clean", "a", "b", "--yes")
    assert (code, "removed the output and checkpoints of 1 job: " in out) == (0, True)


def test_a_call_that_was_cut_off_is_finished_and_the_bytes_are_those_there_were(
    rota, ended, cluster, monkeypatch
):
    ended("a"), ended("b")
    files, asked = cluster.controller.files, []
    clean = files.clean

    async def cut_off(row, *, keeps_checkpoints, dry_run):
        """The answer to the first call that removes something is lost."""
        if not dry_run and not asked:
            asked.append(row)
            await clean(row, keeps_checkpoints=keeps_checkpoints, dry_run=False)
        return await clean(row, keeps_checkpoints=keeps_checkpoints, dry_run=dry_run)

    monkeypatch.setattr(files, "clean", cut_off)
    size = rota("clean", "a", "--dry-run")[1].splitlines()[-1]
    code, out, _ = rota("clean", "a", "--yes")
    assert (code, out.splitlines()[-1]) == (0, f"removed the output and checkpoints of {size}")
    shutil.rmtree(cluster.log_path(1).parent.parent)  # removed, and not written down
    assert rota("clean", "b", "--yes")[1].endswith(": nothing is left to remove\n")
    assert cluster.controller.state.cleaned.keys() == {0, 1}


def test_a_dry_run_removes_nothing(rota, ended):
    ended("a")
    code, out, _ = rota("clean", "a", "--dry-run")
    assert (code, out.splitlines()[-1].startswith("1 job: ")) == (0, True)
    assert prints(rota, "1")


def test_old_jobs_are_ones_own_unless_all_are_asked_for(rota, ended, cluster):
    ended("old", days=40), ended("new", days=20), ended("other", days=40, user="ann")
    cluster.controller.cleaner.owner = "me"
    code, out, _ = rota("clean", "--older-than", "30d", "--dry-run")
    assert (code, [line.split()[1] for line in out.splitlines()]) == (0, ["1", "job:"])
    assert rota("clean", "--older-than", "30d", "--all-users", "--yes")[0] == 0
    assert [prints(rota, job_id) for job_id in "123"] == [False, True, False]
    again = rota("clean", "--older-than", "30d", "--all-users", "--yes")
    assert again == (0, "there is nothing to remove\n", "")


def test_what_can_not_be_cleaned_up_is_told_and_the_rest_is(rota, ended, cluster):
    ended("a", days=1), ended("of-ann", user="ann")
    rota("run", "--name", "goes-on", "--after", "1", "--", "x")
    ended("b")
    code, out, err = rota("clean", "a", "of-ann", "goes-on", "b", "nobody", "--yes")
    assert code == 1
    said = ["named in resume_from or depends_on", "only ann can", "goes-on) is ", "no job 'nobody'"]
    for line, words in zip(err.splitlines(), said, strict=True):
        assert line.startswith("error: ") and words in line
    assert "removed the output and checkpoints of 1 job: " in out
    assert [prints(rota, job_id) for job_id in "124"] == [True, True, False]
    code, _, err = rota("clean", "--older-than", "12h", "--yes")
    assert (code, err.startswith("kept: job 1 (a) is named in")) == (0, True)


def test_the_output_alone_can_be_removed(rota, ended):
    ended("a")
    code, out, _ = rota("clean", "1", "--keep-checkpoints", "--yes")
    assert (code, "removed the output of 1 job: " in out) == (0, True)
    assert "its output was removed by me" in rota("show", "1")[1]


@pytest.mark.parametrize("answer", ["y", "n"])
def test_on_a_terminal_it_asks(rota, ended, monkeypatch, answer):
    ended("a")
    monkeypatch.setattr(type(sys.stdin), "isatty", lambda self: True)
    asked = []
    monkeypatch.setattr("click.confirm", lambda text: asked.append(text) or answer == "y")
    code, out, _ = rota("clean", "a")
    assert asked[0].startswith("remove the output and checkpoints of 1 job: ")
    assert (code, "nothing was removed" in out) == ((0, False) if answer == "y" else (1, True))
    assert prints(rota, "1") == (answer == "n")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "name jobs, or say which: --older-than 30d"),
        (["1"], "nobody can be asked here; add --yes, or --dry-run"),
        (["1", "--all-users", "--yes"], "--all-users goes with --older-than"),
        (["--older-than", "old", "--yes"], "--older-than: 'old' can't be used; write for example"),
    ],
)
def test_what_is_unclear_is_refused_in_a_line(rota, words, said):
    code, out, err = rota("clean", *words)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert said in err
