"""Every benchmark is told of, and none fails where the public data is not there."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted((ROOT / "bench").glob("[a-z]*.py"))
NEED_DATA = [script for script in SCRIPTS if "is_there(" in script.read_text()]


def test_every_benchmark_is_listed() -> None:
    page = (ROOT / "docs" / "research" / "benchmarks.md").read_text()
    assert SCRIPTS
    assert not [file.name for file in SCRIPTS if f"[`bench/{file.name}`](" not in page]


@pytest.mark.process
@pytest.mark.parametrize("script", NEED_DATA, ids=lambda script: script.name)
@pytest.mark.parametrize("data", [[], ["--data", "nowhere"]], ids=["not given", "not there"])
def test_without_its_data_a_benchmark_is_skipped(script: Path, data: list[str]) -> None:
    done = subprocess.run([sys.executable, script, *data], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("skipped: ")
