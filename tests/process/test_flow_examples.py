"""The plain examples of programs that drive several devices, and those for Rota, do the same."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["pipeline", "actor_learner", "mixture"])
def test_both_of_a_pair_print_the_same(name):
    plain, rota = (printed(f"{kind}_{name}.py") for kind in ("plain", "rota"))
    assert plain
    assert [words for words, _ in rota] == [words for words, _ in plain]
    for (_, one), (_, other) in zip(plain, rota, strict=True):
        assert one == pytest.approx(other, rel=1e-3)


def printed(script):
    """The lines of a script that is run: their words, and their numbers."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, script, "--steps", "20"],
        cwd=EXAMPLES,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    number = r"-?\d+\.?\d*"
    return [
        (re.sub(number, "#", line), [float(each) for each in re.findall(number, line)])
        for line in done.stdout.splitlines()
    ]
