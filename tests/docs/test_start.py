"""The pages for a lab's first weeks: short, and true where a program can tell."""

import re
import shlex
import subprocess
from configparser import ConfigParser
from pathlib import Path

import pytest
import yaml

from rota.cli.up import up
from rota.request.jobfile import parse_job, with_inherited
from rota.request.sweepfile import is_sweep, parse_sweep

ROOT = Path(__file__).parents[2]
START = ROOT / "docs" / "start"
DEPLOY = ROOT / "deploy" / "systemd"
MOST_WORDS = 8000
MOST_BYTES_OF_A_PICTURE = 150_000


def block(page: str, name: str) -> str:
    """The block of a page that is marked as this file."""
    found = re.search(rf"<!-- file: {name} -->\n```\w+\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    assert found, name
    return found[1]


def test_a_newcomer_has_little_to_read() -> None:
    pages = [ROOT / "README.md", *START.glob("*.md")]
    words = {page.name: len(page.read_text().split()) for page in pages}
    assert sum(words.values()) <= MOST_WORDS, words


def test_pictures_are_small() -> None:
    pictures = [*(ROOT / "docs").rglob("*.png")]
    assert pictures
    for picture in pictures:
        data = picture.read_bytes()
        assert data.startswith(b"\x89PNG\r\n")
        assert len(data) < MOST_BYTES_OF_A_PICTURE


def test_the_readme_says_what_has_not_been_run_and_compares_the_default_policy() -> None:
    text = (ROOT / "README.md").read_text()
    assert "what takes several GPUs has not been run" in text
    compared = re.findall(r"^rota sim compare(?:.*\\\n)*.*", text, re.MULTILINE)
    assert compared
    default = next(option.default for option in up.params if option.name == "policy_name")
    for command in compared:
        assert "--policy fifo-backfill" in command
        assert f"--policy {default}" in command


def part_of_the_readme(title: str) -> str:
    """The text under this heading of the README; under "" what comes before the first one."""
    text = (ROOT / "README.md").read_text()
    start = f"\n## {title}\n" if title else "# Rota\n"
    assert start in text
    return text.partition(start)[2].partition("\n## ")[0]


def test_the_readme_begins_with_what_programs_need_to_take_turns() -> None:
    first = part_of_the_readme("").strip().partition("\n\n")[0]
    for word in ("takes turns", "CPU", "GPU", "`rota.train`", "`suspend: restart`"):
        assert word in first


def test_the_training_of_the_readme_lasts_long_enough_to_be_looked_at() -> None:
    text = part_of_the_readme("Run a job")
    script = block(text, "train.py")
    steps = re.search(r"s\.steps\((\d+)\)", script)
    pause = re.search(r"time\.sleep\(([0-9.]+)\)", script)
    assert steps and pause
    assert int(steps[1]) * float(pause[1]) == pytest.approx(30.0)
    shown = [text.index(words) for words in ("rota run --", "rota ps", "rota why", "rota wait")]
    assert shown == sorted(shown)
    assert "(docs/dashboard.png)" in text


def test_the_readme_counts_engines_among_what_there_is() -> None:
    for engine in ("Slurm", "Ray", "Kubernetes"):
        assert engine in part_of_the_readme("What else there is")
        assert engine not in part_of_the_readme("What is not there yet")


def slurm_options() -> list[tuple[str, str]]:
    """Each option of Slurm that has a field in job files, with its place in the table as YAML."""
    _, _, rest = (START / "slurm.md").read_text().partition("| `#SBATCH` | job file | remarks |\n")
    rows = [line.split(" | ") for line in rest.partition("\n\n")[0].splitlines()[1:]]
    return [(row[0], row[1].strip("`")) for row in rows if row[1].startswith("`")]


@pytest.mark.parametrize(("option", "field"), slurm_options())
def test_every_option_of_slurm_has_fields_that_job_files_take(option: str, field: str) -> None:
    fields = yaml.safe_load(field) | {"run": "python train.py"}
    parse = parse_sweep if is_sweep(fields) else parse_job
    parse(with_inherited(fields, {"A": "1"}), workdir="/")


def test_the_service_starts_rota_as_rota_can_be_started() -> None:
    unit = ConfigParser(interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string((DEPLOY / "rota.service").read_text())
    service = unit["Service"]
    program, verb, *options = shlex.split(service["ExecStart"])
    assert (Path(program).name, verb) == ("rota", "up")
    assert up.make_context("rota up", options).params["port"] == 8787
    assert service["Environment"] == "ROTA_HOME=/var/lib/" + service["StateDirectory"]
    assert service["KillMode"] == "process"
    assert "PrivateTmp" not in service


@pytest.mark.parametrize("given", [True, False], ids=["for the group", "for others"])
def test_the_variables_of_the_group_are_set_where_the_token_can_be_read(
    tmp_path: Path, given: bool
) -> None:
    token = tmp_path / "token"
    if given:
        token.write_text("t-1\n")
    text = block((START / "several-people.md").read_text(), "rota.sh")
    text = text.replace("/opt/rota/token", str(token)) + 'echo "$ROTA_SERVER ${ROTA_TOKEN-none}"'
    shell = ["env", "-i", "PATH=/usr/bin:/bin", "bash", "-euc", text]
    done = subprocess.run(shell, capture_output=True, text=True, check=True)
    assert done.stdout == f"http://127.0.0.1:8787 {'t-1' if given else 'none'}\n"
