"""The how-to's services: their units are valid, and work for a user without rights."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.process.conftest import until

from rota.experiment.runs import hosts
from rota.folder import Folder

from .conftest import MARK, PORT, Job, Lab, Machine

TOP = Path(__file__).parents[2]
UNITS = {file.name: file.read_text() for file in (TOP / "deploy/systemd").iterdir()}
PROGRAM, LISTENS = "/opt/rota/.venv/bin/rota", "gpu0.lab:7800"
# What the page has `sed` put in place of an option of the controller's unit.
CHANGE = re.findall(r"sed -i 's/(.*?)/(.*?)/'", (TOP / "docs/reference/hosts.md").read_text())
USER = 65534
# The interpreter may be in a folder of root's, so that this user may read everything.
READS = ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]
AS_USER = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", *READS]


class Served(Machine):
    """A machine whose programs run as services do: as a user, with what systemd sets."""

    def __init__(self, host: hosts.Host, base: Path) -> None:
        super().__init__(host, base)
        self.folder = Folder(base / ".local/share/rota")
        os.chown(base, USER, USER)

    @property
    def environment(self) -> dict[str, str]:
        user = {"HOME": str(self.base), "USER": "rota", "LOGNAME": "rota", "SHELL": "/bin/sh"}
        return user | {"PATH": os.defpath, "LANG": "C.UTF-8", MARK: self.host.name}

    def start(self, *words: str, log, before: Sequence[str] = ()) -> subprocess.Popen[str]:
        command = [*AS_USER, *before, sys.executable, "-m", "rota.cli.main", *words]
        return self.host.start(command, self.environment, log)

    def serve(self, unit: str) -> None:
        """Run what a unit starts."""
        (line,) = re.findall(r"^ExecStart=(.*)$", UNITS[unit], re.M)
        for before, after in CHANGE:
            line = line.replace(before, after)
        program, *words = line.replace(LISTENS, f"{self.host.address}:{PORT}").split()
        assert program == PROGRAM
        self.run(*words)

    def stop(self) -> None:
        """End the service's main process, as systemd does for KillMode=process."""
        assert self.process is not None
        found = self.host.processes("up") + self.host.processes("--joined")
        for each in found:
            if "rota.cli.main" in each.cmdline() or "--joined" in each.cmdline():
                each.terminate()
        self.exit_code()


@pytest.fixture(scope="module")
def served():
    """A controller's machine."""
    if reason := hosts.why_none(*hosts.FOR_FAULTS):
        pytest.skip(reason)
    if subprocess.run([*AS_USER, sys.executable, "-c", "import rota"], cwd="/").returncode:
        pytest.skip("other users can't run Rota from this folder")
    base = Path(tempfile.mkdtemp(prefix="rota-services-"))
    base.chmod(0o755)
    with hosts.lan() as lan:
        lab = Lab(lan, base, Served)
        try:
            yield lab
        finally:
            lab.close()
    shutil.rmtree(base)


def test_each_machine_has_its_unit():
    assert set(UNITS) == {"rota.service", "rota-agent.service"}
    assert [("--port 8787", f"--listen {LISTENS}")] == CHANGE


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd")
@pytest.mark.parametrize("unit", UNITS)
def test_a_unit_is_valid(tmp_path, unit):
    program = tmp_path / "rota"
    program.symlink_to("/bin/true")
    file = tmp_path / unit
    file.write_text(UNITS[unit].replace(PROGRAM, str(program)))
    found = subprocess.run(["systemd-analyze", "verify", file], capture_output=True, text=True)
    assert (found.returncode, found.stderr) == (0, "")


def test_services_of_a_user_run_jobs_and_leave_them_alone_when_they_are_restarted(served):
    served.head.serve("rota.service")
    served.until_up()
    gpu1 = served.machine("gpu1")
    gpu1.run(*served.line())  # by hand
    served.until_connected("gpu1", gpu1)
    gpu1.stop()
    until(lambda: not served.node("gpu1")["connected"], "it has ended")
    gpu1.serve("rota-agent.service")
    served.until_connected("gpu1", gpu1)
    served.client.cordon("head")
    job = Job(served, gpu1).until_begun()
    assert job.place == ["gpu1"]
    assert {each.uids().effective for each in gpu1.working()} == {USER}
    gpu1.stop()
    gpu1.serve("rota-agent.service")
    served.until_connected("gpu1", gpu1)
    served.head.stop()
    served.head.serve("rota.service")
    served.until_up()
    served.until_connected("gpu1", gpu1)
    job.ends_in_its_first_attempt()
