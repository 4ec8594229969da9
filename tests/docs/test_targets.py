"""Each test is in one of the targets that CI runs, and the live paths are in ``make test``."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CLUSTERS = ("tests/process", "tests/parity", "tests/hosts", "tests/engines")


def paths_told() -> list[str]:
    """The live paths that CONTRIBUTING.md lists."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    table = text.partition("| live path |")[2].partition("\n\n")[0]
    return re.findall(r"^\| `(.*?)` \|", table, re.MULTILINE)


def paths_marked() -> dict[str, list[str]]:
    """The live paths that each test takes which is marked so."""
    found = {}
    for file in sorted(file for folder in CLUSTERS for file in (ROOT / folder).glob("test_*.py")):
        for test in ast.parse(file.read_text()).body:
            for mark in getattr(test, "decorator_list", []):
                if ast.unparse(mark).startswith("pytest.mark.live_path("):
                    name = f"{file.relative_to(ROOT).as_posix()}::{test.name}"
                    found[name] = [argument.value for argument in mark.args]
    return found


def test_the_paths_that_are_listed_are_those_that_tests_take():
    taken = {path for paths in paths_marked().values() for path in paths}
    assert sorted(taken) == sorted(paths_told())


def test_every_test_is_in_one_of_the_targets():
    recipe = re.compile(r"^(test|test-cluster): .*\n\t@\$\(PYTEST\) \$\(\w+\) (.*)", re.MULTILINE)
    assert dict(recipe.findall((ROOT / "Makefile").read_text())) == {
        "test": '-m "not cluster and not browser"',
        "test-cluster": (
            f"-m cluster $(if $(filter-out all,$(CASES)),--sampled) {' '.join(CLUSTERS)} $(BESIDE)"
        ),
    }
    beside = "tests/contract/test_providers.py tests/docs/test_examples.py tests/differential"
    assert f"BESIDE := {beside}\n" in (ROOT / "Makefile").read_text()
    stages = re.findall(r"^stage ([\w-]+)", (ROOT / ".ci/run").read_text(), re.MULTILINE)
    assert stages == ["test", "test-cluster", "test-browser", "lint", "types"]
    assert "pytest.mark.browser" in (ROOT / "tests/browser/conftest.py").read_text()


@pytest.mark.process
def test_of_real_clusters_make_test_runs_what_takes_a_live_path():
    words = ["--collect-only", "-q", "-n0", "-m", "not cluster", *CLUSTERS]
    environment = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )
    chosen = {line.partition("[")[0] for line in done.stdout.splitlines() if "::" in line}
    assert chosen == set(paths_marked()), done.stdout
