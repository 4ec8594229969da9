"""Jobs that run in snapshots: machines have the files of a folder that they can't see."""

import os
import shutil

import pytest
from tests.process.conftest import until


@pytest.fixture(scope="module")
def gpu1(lab):
    return lab.join("gpu1")


@pytest.fixture
def project(lab):
    """A folder of the user's that no machine but the controller's can see."""
    folder = lab.head.base / "project"
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "model").mkdir(parents=True)
    (folder / "model" / "size.txt").write_text("7\n")
    (folder / "run.sh").write_text('read n < model/size.txt; echo "size $n"; ls\n')
    (folder / "run.sh").chmod(0o755)
    return folder


class Run:
    """A job of two GPUs, which only the machine that has joined has."""

    def __init__(self, lab, folder, run, **more):
        self._client = lab.client
        fields = {"run": run, "workdir": str(folder), "snapshot": True, "resources": {"gpus": 2}}
        fields |= {"processes": "node"}
        self.id = lab.client.submit(fields | more)["id"]

    def end(self, state="SUCCEEDED"):
        ended = self._client.wait(self.id, timeout_s=120)
        assert ended["state"] == state, self.printed()
        return ended

    def printed(self):
        return "".join(self._client.logs(self.id))


def unpacked(machine):
    return list((machine.folder.path / "nodes" / "gpu1" / "snapshots").glob("*"))


@pytest.mark.live_path("snapshot")
def test_a_machine_runs_what_it_cannot_see_and_unpacks_it_once(lab, gpu1, project):
    spoiling = "./run.sh && echo 8 > model/size.txt && touch mine"
    first = Run(lab, project, spoiling)
    first.end()
    [place] = unpacked(gpu1)
    written = os.stat(place / "tree").st_ino
    second = Run(lab, project, spoiling)
    second.end()
    assert first.printed() == second.printed() == "size 7\nmodel\nrun.sh\n"
    assert [os.stat(each / "tree").st_ino for each in unpacked(gpu1)] == [written]
    assert len(list(lab.head.folder.snapshots.iterdir())) == 1
    own = gpu1.folder.attempt("gpu1", first.id, 1) / "workdir"
    until(lambda: not (own / "run.sh").exists(), "what it has not changed is removed")
    assert (own / "model" / "size.txt").read_text() == "8\n"
    assert (own / "mine").exists()
    for job in first, second:
        lab.client.clean(job.id)
    until(lambda: not unpacked(gpu1), "what no job needs any more is removed")


def test_a_setup_that_fails_tells_its_last_lines_and_one_that_succeeds_is_not_repeated(
    lab, gpu1, project
):
    times = gpu1.base / "times"
    failing = {"setup": "echo no room; exit 3"}
    ended = Run(lab, project, "true", **failing).end("FAILED")
    assert ended["message"] == "setup failed with exit code 3, and printed last: no room"
    setup = {"setup": f"echo once >> {times}; echo made > made"}
    for _ in range(2):
        job = Run(lab, project, "cat made", **setup)
        job.end()
        assert job.printed() == "made\n"
    assert times.read_text() == "once\n"


def test_a_job_is_handed_in_from_a_machine_that_is_none_of_the_clusters(lab, gpu1):
    """And one whose folder leads out is refused there, with the link."""
    visitor = lab.machine("visitor")
    folder = visitor.base / "work"
    folder.mkdir()
    (folder / "name").write_text("visitor\n")
    environment = {
        "ROTA_SERVER": lab.url,
        "ROTA_TOKEN": lab.head.folder.token.read_text().strip(),
        "ROTA_CA": str(visitor.base / "ca.pem"),
    }
    shutil.copy(lab.head.folder.tls / "ca.pem", visitor.base)
    submit = ["run", "--snapshot", "--gpus=2", "--processes=node", "--wait", "--", "cat", "name"]
    shell = ["env", "--chdir", str(folder), *map("=".join, environment.items())]
    code, text = visitor.rota(*submit, before=shell)
    assert (code, "SUCCEEDED" in text) == (0, True), text
    (folder / "link").symlink_to("/etc/hostname")
    code, text = visitor.rota(*submit, before=shell)
    assert code == 2
    assert "/link': this link leads out of the folder, to '/etc/hostname'" in text
