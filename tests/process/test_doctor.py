"""``rota doctor`` on this machine, with the training that it suspends."""

import re
import subprocess
import sys


def test_a_training_is_suspended_and_goes_on_and_nothing_is_left(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("ROTA_HOME", str(tmp_path / "home"))
    command = [sys.executable, "-m", "rota.cli.main", "doctor"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("suspend, resume"))
    assert re.search(r" ok +suspended after \d+ ms \(.+\), went on after \d+ ms .*; 5 times", line)
    assert not list(tmp_path.glob("rota-doctor-*"))
