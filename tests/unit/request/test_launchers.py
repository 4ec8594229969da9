"""Commands with torchrun and its like: found where they are run, and started once."""

import pytest

from rota.errors import JobFileError
from rota.request.jobfile import parse_job, with_inherited
from rota.request.launchers import advice, launcher_of


@pytest.mark.parametrize(
    ("run", "name"),
    [
        ("torchrun train.py", "torchrun"),
        ("/opt/env/bin/torchrun --nproc_per_node=2 train.py", "torchrun"),
        ("cd x && A=1 torchrun train.py", "torchrun"),
        ("cd x;torchrun train.py", "torchrun"),
        ("conda run -n env torchrun train.py", "torchrun"),
        ("python -m torch.distributed.run train.py", "torchrun"),
        ("python3.11 -m torch.distributed.launch train.py", "torchrun"),
        ("accelerate launch --cpu train.py", "accelerate launch"),
        ("python -m accelerate.commands.launch train.py", "accelerate launch"),
        ("accelerate-launch --cpu train.py", "accelerate launch"),
        ("python -m accelerate.commands.accelerate_cli launch t.py", "accelerate launch"),
        ("python -m accelerate.commands.accelerate_cli config", None),
        ("python -m deepspeed.launcher.runner train.py", "deepspeed"),
        ("deepspeed train.py", "deepspeed"),
        ("python train.py", None),
        ("python train.py --launcher deepspeed", None),
        ("bash torchrun.sh torchrun", None),
        ("accelerate config", None),
        ("python -m train torchrun", None),
        ("echo 'torchrun", None),
        ("echo 'a torchrun b'", None),
        ("", None),
    ],
)
def test_a_launcher_is_found_where_it_is_run(run, name):
    found = launcher_of(run)
    assert (found.name if found else None) == name


@pytest.mark.parametrize(
    ("run", "gpus", "processes", "words"),
    [
        ("python train.py", 2, "gpu", []),
        ("torchrun train.py", 1, "gpu", []),
        ("torchrun train.py", 2, "node", ["started once, with 2 GPUs"]),
        ("torchrun train.py", 2, "gpu", ["starts it 2 times: leave processes out"]),
        ("torchrun --nproc-per-node 2 train.py", 2, "node", ["started once"]),
        ("torchrun --nproc_per_node=8 t.py", 2, "node", ["once", "_node is 8, and the job has 2"]),
        ("torchrun --nproc-per-node 8 t.py", 1, "gpu", ["is 8, and the job has 1 GPU"]),
        ("torchrun --nproc-per-node gpu t.py", 2, "node", ["once"]),
        ("accelerate launch t.py", 2, "node", ["once", "add --main_process_port 0"]),
        ("accelerate launch --main_process_port 0 t.py", 2, "node", ["once"]),
        ("deepspeed t.py", 2, "node", ["once", "add --master_port"]),
    ],
)
def test_what_is_to_know_about_it_is_told(run, gpus, processes, words):
    lines = advice(run, gpus, processes)
    assert len(lines) == len(words)
    assert all(word in line for word, line in zip(words, lines, strict=True)), lines


@pytest.mark.parametrize(
    ("fields", "processes"),
    [
        ({"run": "torchrun t.py", "resources": {"gpus": 2}}, "node"),
        ({"run": "torchrun t.py"}, "gpu"),
        ({"run": "torchrun t.py", "resources": {"gpus": 2}, "processes": "gpu"}, "gpu"),
        ({"run": "python t.py", "resources": {"gpus": 2}}, "gpu"),
    ],
)
def test_it_is_started_once_unless_the_file_says_otherwise(fields, processes):
    assert parse_job(fields, workdir="/").processes == processes


def test_it_can_not_have_a_range_of_gpus():
    with pytest.raises(JobFileError, match=r"resources.gpus: '1\.\.4'.*torchrun"):
        parse_job({"run": "torchrun t.py", "resources": {"gpus": "1..4"}}, workdir="/")


@pytest.mark.parametrize("launcher", ["torchrun", "accelerate launch", "deepspeed"])
def test_the_limit_of_a_launcher_is_told_if_the_grace_is_longer(launcher):
    assert advice(f"{launcher} t.py", 1, "node", 30.0) == []
    (line,) = advice(f"cd a && {launcher} t.py", 1, "node", 120.0)
    assert line.startswith(f"{launcher} kills all ranks 30 s after one ends with an error")
    assert "grace (120 s)" in line


def test_variables_are_passed_on_by_name_where_the_job_is_handed_in():
    fields = {"run": "true", "env": {"inherit": ["A", "B"], "B": "own"}}
    assert with_inherited(fields, {"A": "1", "B": "2", "C": "3"})["env"] == {"A": "1", "B": "own"}
    assert with_inherited({"run": "true"}, {}) == {"run": "true"}
    assert with_inherited("no mapping", {}) == "no mapping"
    named = {"env": {"inherit": "a variable of this name"}}
    assert with_inherited(named, {}) == named
    for names in (["MISSING"], [1]):
        with pytest.raises(JobFileError, match=r"env\.inherit: .*it is not set here"):
            with_inherited({"env": {"inherit": names}}, {})


def test_names_in_another_form_are_refused():
    with pytest.raises(JobFileError, match=r"env\.inherit: .*write a list of names"):
        parse_job({"run": "true", "env": {"inherit": {"A": 1}}}, workdir="/")
