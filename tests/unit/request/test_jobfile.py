"""Job files: what each field takes, and that nothing hostile gets through or breaks anything."""

import datetime
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rota.errors import JobFileError
from rota.model.job import GRACE_S, MET_BY, Adapt, Dependency, Elastic, Notice, Retries, Share
from rota.request.jobfile import (
    FIELDS,
    START,
    SUSPEND,
    JobRequest,
    name_of,
    parse_job,
    program_of,
)


def parse(base="/base/dir", **fields):
    return parse_job({"run": "python train.py"} | fields, workdir=base)


def test_only_run_is_needed():
    assert parse() == JobRequest("train", "python train.py", "/base/dir")


@pytest.mark.parametrize("job", ["3", "digits-2", "sweep.3", "@last"])
def test_a_job_may_begin_with_the_checkpoints_of_another(job):
    assert parse(resume_from=job).resume_from == job


ADAPT = {"batch": {"mode": "adapt", "max_global": 4096}}
RANGE = {"resources": {"gpus": "2..8"}}


def test_every_field():
    request = parse(
        version=1,
        name="mine-1.0",
        priority=90,
        workdir="../x",
        env={"A": "b", "LR": 0.5, "N": 3},
        resources={"gpus": 4},
        processes="node",
        suspend="restart",
        grace="1m",
        time_limit="2h",
        resume_from=3,
    )
    env = (("A", "b"), ("LR", "0.5"), ("N", "3"))
    expected = JobRequest("mine-1.0", "python train.py", "/base/x", env, 90, 4, "node", 7200.0)
    assert request == expected._replace(suspend="restart", grace_s=60.0, resume_from="3")
    assert parse_job(request.to_fields(), workdir="") == request
    program = program_of(request)
    assert program.resume_from == "3"
    assert (program.suspend, program.grace_s, program.processes) == ("restart", 60.0, "node")


@pytest.mark.parametrize(
    ("value", "seconds"),
    [("30s", 30), ("10m", 600), ("2h", 7200), ("1d", 86400), ("90", 90), (90, 90), (1.5, 1.5)],
)
def test_time_limits(value, seconds):
    assert parse(time_limit=value).time_limit_s == seconds


@pytest.mark.parametrize(("value", "number"), [("low", 10), ("normal", 50), ("high", 90), (1, 1)])
def test_priorities(value, number):
    assert parse(priority=value).priority == number


@pytest.mark.parametrize(
    ("run", "name"),
    [
        ("python train.py --lr 1", "train"),
        ("python -m package.train", "package.train"),
        ("OMP_NUM_THREADS=1 torchrun --nproc 2 src/vit.py", "vit"),
        ("./go.sh fast", "go"),
        ("/usr/bin/nvidia-smi -l", "nvidia-smi"),
        ("echo 'unbalanced", "echo"),
        ("123", "job-123"),
        ("'ü ñ'", "job"),
        ("$(reboot)", "reboot"),
        ("x" * 300 + ".py", "x" * 64),
    ],
)
def test_a_job_without_a_name_gets_its_scripts(run, name):
    assert name_of(run) == name
    assert parse(run=run, name=name).name == name


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"prioriti": 3}, ["prioriti", "did you mean priority?"]),
        *(
            ({"resume_from": value}, ["resume_from", "the id of a job that has ended"])
            for value in (0, -1, True, 1.5, "", "../3", "a b", "@first", ["3"], "x" * 65)
        ),
        ({"resources": {"gpu": 3}}, ["resources", "'gpu'", "did you mean resources.gpus?"]),
        ({"setup": " "}, ["setup: ' '", "leave it out"]),
        ({"snapshot": "yes"}, ["snapshot: 'yes'", "write true"]),
        ({"snapshot": "A5" * 32}, ["snapshot: 'A5", "write true"]),
        ({"snapshot": 1}, ["snapshot: 1", "leave it out"]),
        ({"memory": "3GB"}, ["memory: '3GB'", "resources: {memory: ...}"]),
        ({"resources": {"memory": 64}}, ["resources.memory: 64", "such as 30GB"]),
        ({"resources": {"cpus": 0}}, ["resources.cpus: 0", "from 1"]),
        ({"resources": {"cpus": "many"}}, ["resources.cpus: 'many'"]),
        ({"resources": {"cpus_per_gpu": 0}}, ["resources.cpus_per_gpu: 0", "1 or more", "2..8"]),
        ({"resources": {"cpus_per_gpu": "0..4"}}, ["resources.cpus_per_gpu: '0..4'", "2..8"]),
        ({"resources": {"cpus_per_gpu": "8..2"}}, ["'8..2'", "the smaller number first"]),
        ({"resources": {"cpus_per_gpu": 1.5}}, ["resources.cpus_per_gpu: 1.5", "whole number"]),
        (
            {"resources": {"cpus_per_gpu": 2, "cpus": 4}},
            ["resources.cpus_per_gpu: 2", "excludes resources.cpus", "one of the two"],
        ),
        ({"cpus_per_gpu": 2}, ["cpus_per_gpu: 2", "resources: {cpus_per_gpu: ...}"]),
        ({"resources": {"gpu_type": []}}, ["resources.gpu_type", "leave it out"]),
        ({"resources": {"gpu_type": "a100:4"}}, ["resources.gpu_type: 'a100:4'", "such as a100"]),
        ({"resources": {"gpu_type": [4]}}, ["resources.gpu_type: 4", "[a100, h100]"]),
        ({"tags": ["a b"]}, ["tags: 'a b'", "letter or digit"]),
        ({"tags": [3]}, ["tags: 3", "labels are"]),
        ({"tags": ["x"] * 33}, ["tags", "at most 32"]),
        ({"queue": "-x"}, ["queue", "'-x'", "letter or digit"]),
        ({"queue": ""}, ["queue", "''"]),
        ({"queue": 7}, ["queue", "7"]),
        ({"priority": 101}, ["priority", "101", "1 to 100"]),
        ({"priority": True}, ["priority", "True"]),
        ({"resources": {"gpus": 0}}, ["resources.gpus", "0", "1 or more"]),
        ({"gpus": 2}, ["gpus: 2", "resources: {gpus: ...}"]),
        ({"gpu_memory": "3GB"}, ["gpu_memory: '3GB'", "resources: {gpu_memory: ...}"]),
        ({"resources": {"gpu_memory": 30}}, ["resources.gpu_memory", "30", "such as 30GB"]),
        ({"resources": {"gpu_memory": "0GB"}}, ["resources.gpu_memory", "0GB", "such as 30GB"]),
        ({"resources": {"gpu_memory": "-1GB"}}, ["resources.gpu_memory", "-1GB"]),
        ({"resources": {"gpu_memory": "30gb"}}, ["resources.gpu_memory", "30gb", "30GB"]),
        ({"resources": {"gpus": "8..2"}}, ["resources.gpus", "8..2", "1..8"]),
        ({"resources": {"gpus": "0..2"}}, ["resources.gpus", "0..2"]),
        ({"elastic": {}}, ["elastic", "range of GPUs"]),
        (RANGE | {"elastic": [1]}, ["elastic", "mapping"]),
        (RANGE | {"elastic": {"size": "any"}}, ["elastic", "did you mean elastic.sizes?"]),
        (RANGE | {"elastic": {"sizes": "odd"}}, ["elastic.sizes", "odd", "pow2"]),
        (RANGE | {"elastic": {"sizes": [2, 4]}}, ["elastic.sizes", "2..8", "add 8"]),
        (RANGE | {"elastic": {"sizes": [4, 8]}}, ["elastic.sizes", "2..8", "add 2"]),
        (RANGE | {"elastic": {"sizes": [2, 8, 16]}}, ["elastic.sizes: 16", "2..8"]),
        (RANGE | {"elastic": {"sizes": [2, 8, 0]}}, ["elastic.sizes: 0", "whole numbers"]),
        (RANGE | {"elastic": {"sizes": [2, 8, True]}}, ["elastic.sizes: True", "whole numbers"]),
        (
            {"resources": {"gpus": "5..7"}, "elastic": {"sizes": "pow2"}},
            ["elastic.sizes", "no power of two in 5..7"],
        ),
        (
            {"resources": {"gpus": "4..7"}, "elastic": {"sizes": "pow2"}},
            ["elastic.sizes", "no power of two but 4 in 4..7"],
        ),
        (
            RANGE | {"elastic": {"price_per_gpu_hour": 3}},
            ["elastic.price_per_gpu_hour: 3", "utility"],
        ),
        (RANGE | {"elastic": {"price_per_gpu_hour": -1}}, ["elastic.price_per_gpu_hour", "-1"]),
        (
            RANGE | {"elastic": {"utility": {"value": 3}}},
            ["elastic.utility", "deadline is missing"],
        ),
        (
            RANGE | {"elastic": {"utility": {"deadline": "soon", "value": 3}}},
            ["elastic.utility.deadline", "soon", "2h"],
        ),
        (
            RANGE | {"elastic": {"utility": {"deadline": "2h", "value": 0}}},
            ["elastic.utility.value", "0"],
        ),
        (RANGE | {"processes": "node"}, ["processes", "node", "one process per GPU"]),
        (
            {"resources": {"gpus": "1..9999999"}},
            ["resources.gpus", "1..9999999"],
        ),
        ({"resources": {"gpus": "1..5000"}}, ["elastic.sizes", "1024", "pow2"]),
        ({"resources": 2}, ["resources", "{gpus: 2}"]),
        ({"batch": 64}, ["batch", "64", "{mode: adapt, max_global: 4096}"]),
        ({"batch": {"max_global": 64}}, ["batch.mode", "None", "adapt, fixed"]),
        ({"batch": {"mode": "auto"}}, ["batch.mode", "'auto'", "adapt, fixed"]),
        ({"batch": {"mode": "adapt"}}, ["batch", "max_global is missing"]),
        ({"batch": {"mode": "adapt", "max_globl": 1}}, ["batch", "did you mean batch.max_global?"]),
        (ADAPT | {"batch": {"mode": "adapt", "max_global": 0}}, ["batch.max_global: 0"]),
        (
            {"batch": {"mode": "adapt", "max_global": 64, "max_per_gpu": 65}},
            ["batch.max_per_gpu: 65", "above batch.max_global, 64"],
        ),
        (
            {"batch": {"mode": "adapt", "max_global": 64, "max_per_gpu": True}},
            ["batch.max_per_gpu: True", "whole number of samples"],
        ),
        (
            {"batch": {"mode": "adapt", "max_global": 64, "min_per_gpu": 0}},
            ["batch.min_per_gpu: 0", "whole number of samples"],
        ),
        (
            {"batch": {"mode": "adapt", "max_global": 64, "min_per_gpu": 4, "max_per_gpu": 6}},
            ["batch.min_per_gpu: 4", "write 3 or less, or raise batch.max_per_gpu to 7 or more"],
        ),
        (
            {
                "resources": {"gpus": "2..4"},
                "batch": {"mode": "adapt", "max_global": 15, "min_per_gpu": 8},
            },
            ["batch.min_per_gpu: 8", "more than batch.max_global, 15 on 2 GPUs"],
        ),
        ({"batch": {"mode": "fixed", "max_global": 64}}, ["batch.max_global", "mode: adapt"]),
        (ADAPT | {"processes": "node"}, ["processes", "node", "one process per GPU"]),
        (ADAPT | {"suspend": "stop"}, ["suspend", "stop", "between steps"]),
        ({"time_limit": "soon"}, ["time_limit", "soon", "10m"]),
        ({"time_limit": -1}, ["time_limit", "-1"]),
        ({"time_limit": datetime.date(2024, 1, 1)}, ["time_limit"]),
        ({"env": ["A=b"]}, ["env", "mapping"]),
        ({"env": {"A": True}}, ["env.A", "quotes"]),
        ({"env": {"1A": "x"}}, ["env", "1A"]),
        ({"env": {"A=B": "x"}}, ["env", "A=B"]),
        ({"processes": "thread"}, ["processes", "thread", "node"]),
        ({"suspend": "kill"}, ["suspend", "kill", "cuda-checkpoint, restart"]),
        ({"suspend": True}, ["suspend", "True"]),
        (RANGE | {"suspend": "restart"}, ["suspend", "restart", "range of GPUs"]),
        ({"grace": 5}, ["grace", "5", "suspend: restart"]),
        ({"suspend": "stop", "grace": 5}, ["grace", "suspend: restart"]),
        ({"suspend": "restart", "grace": 0}, ["grace", "0", "30s"]),
        ({"suspend": "restart", "grace": "61m"}, ["grace", "61m", "1h or less"]),
        ({"version": 2}, ["version", "2", "version: 1"]),
        ({"run": ""}, ["run"]),
        ({"run": ["python", "x"]}, ["run", "text"]),
        ({"run": "a\0b"}, ["run", "NUL"]),
        ({"name": "a b"}, ["name", "a b"]),
        ({"name": "a\n"}, ["name"]),
        ({"name": "12"}, ["name", "12"]),
        ({"workdir": "a\x1bb"}, ["workdir", "\\x1b", "control"]),
    ],
)
def test_an_error_names_the_field_the_value_and_the_fix(fields, words):
    with pytest.raises(JobFileError) as caught:
        parse(**fields)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_run_is_needed():
    with pytest.raises(JobFileError, match="run: it is missing"):
        parse_job({}, workdir="/")


def test_a_relative_folder_is_refused_where_there_is_no_base():
    with pytest.raises(JobFileError, match="absolute"):
        parse(base="", workdir="x")


HUGE = [
    {"run": "x" * 200_000},
    {"env": {"A": "x" * 200_000}},
    {"env": {f"A{i}": "x" * 1000 for i in range(1000)}},
    {"name": "x" * 65},
    {"workdir": "/" + "x" * 5000},
    {"priority": 10**5000},
    {"resources": {"gpus": 10**5000}},
    {"resources": {"gpus": "9" * 5000}},
    {"env": {"A": 10**5000}},
    {"time_limit": 10**5000},
    {"time_limit": "9" * 400 + "d"},
    {"time_limit": float("inf")},
    {"time_limit": float("nan")},
    {"x" * 100_000: 1},
]


@pytest.mark.parametrize("fields", HUGE)
def test_huge_values_are_refused_in_few_words(fields):
    with pytest.raises(JobFileError) as caught:
        parse(**fields)
    assert len(str(caught.value)) < 600


def test_a_bomb_of_references_is_refused_in_few_words():
    bomb = ["x"] * 10
    for _ in range(50):
        bomb = [bomb] * 10
    loop = []
    loop.append(loop)
    for value in (bomb, loop):
        for field in FIELDS:
            with pytest.raises(JobFileError) as caught:
                parse(**{field: value})
            assert len(str(caught.value)) < 1000


hostile = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(exclude_categories=()))
    | st.binary()
    | st.dates(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers() | st.none(), inner),
    max_leaves=8,
)
keys = st.sampled_from([*FIELDS, "gpus", "nmae"]) | st.text()


@given(hostile | st.dictionaries(keys, hostile), st.sampled_from(["/base", ""]))
def test_anything_is_a_request_or_a_job_file_error(fields, workdir):
    try:
        request = parse_job(fields, workdir=workdir)
    except JobFileError as error:
        assert not any(ord(char) < 32 for char in str(error))
        assert len(str(error)) < 1000
    else:
        assert parse_job(request.to_fields(), workdir="") == request


plain = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
names = st.from_regex(r"[A-Za-z][A-Za-z0-9._-]{0,63}", fullmatch=True)


@given(
    st.builds(
        JobRequest,
        name=names,
        run=plain.filter(str.strip),
        workdir=st.just("/w"),
        env=st.dictionaries(names.map(lambda n: n.replace(".", "_").replace("-", "_")), plain).map(
            lambda env: tuple(env.items())
        ),
        priority=st.integers(1, 100),
        num_gpus=st.integers(1, 1_000_000),
        processes=st.sampled_from(["gpu", "node", "flow"]),
        time_limit_s=st.none() | st.floats(0.001, 1e8),
        queue=st.just("") | names,
        elastic=st.none(),
        adapt=st.none(),
        suspend=st.sampled_from(SUSPEND),
        grace_s=st.floats(0.001, 3600),
        resume_from=st.sampled_from(["", "3", "digits-2", "@last"]),
        gpu_memory_gb=st.none() | st.floats(1e-3, 1e4).map(lambda gb: round(gb, 9)),
        depends_on=st.just(())
        | st.tuples(st.builds(Dependency, names, st.sampled_from([*MET_BY]))),
        gpu_types=st.just(()) | st.just(("a100", "h100-80gb")),
        host_memory_gb=st.none() | st.floats(1e-3, 1e4).map(lambda gb: round(gb, 9)),
        cpus=st.integers(0, 100),
        cpus_per_gpu=st.none() | st.just((2, 8)) | st.just((3, 3)),
        start=st.sampled_from(START),
        setup=st.just("") | plain.filter(str.strip),
        snapshot=st.booleans() | st.just("a5" * 32),
        share=st.none()
        | st.builds(
            Share,
            st.just("foreground"),
            st.floats(1.0, 100.0),
            st.none() | st.floats(0.001, 1e6),
        ),
        idle_s=st.none() | st.floats(0.001, 1e8),
        tags=st.just(()) | st.just(("paper:v2", "lr=0.1")),
        notices=st.just(()) | st.just((Notice("team", ("failed", "ended")),)),
        retries=st.none()
        | st.builds(Retries, st.integers(1, 9), st.just(("failed",)), st.floats(0.01, 1e5)),
    )
    .map(lambda r: r._replace(suspend="auto") if r.processes == "flow" else r)
    .map(lambda r: r if r.processes == "flow" else r._replace(idle_s=None, share=None))
    .map(lambda r: r if r.suspend == "restart" else r._replace(grace_s=GRACE_S))
    .map(lambda r: r._replace(cpus_per_gpu=None) if r.cpus else r)
)
def test_a_request_comes_back_from_its_fields(request):
    assert parse_job(json.loads(json.dumps(request.to_fields())), workdir="") == request


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("02:00:00", 7200.0), ("1-00:00:01", 86401.0), ("36:15:00", 130500.0), ("90m", 5400.0)],
)
def test_a_time_limit_is_read_as_slurm_writes_it_too(text, seconds):
    assert parse(time_limit=text).time_limit_s == seconds


@pytest.mark.parametrize("text", ["00:00:00", "2:00", "1:60:00", "1:00:60", "4000-00:00:00"])
def test_what_is_no_time_of_slurm_s_is_refused(text):
    with pytest.raises(JobFileError, match=f"time_limit: '{text}' can't be used"):
        parse(time_limit=text)


@pytest.mark.parametrize(
    ("text", "gb"),
    [
        ("30GB", 30.0),
        ("1.5 GiB", 1.610612736),
        ("800MB", 0.8),
        (" 2GiB ", 2.147483648),
        (None, None),
    ],
)
def test_gpu_memory_is_read_with_its_unit(text, gb):
    assert parse(resources={"gpus": 2, "gpu_memory": text}).gpu_memory_gb == gb


@pytest.mark.parametrize(
    ("fields", "elastic"),
    [
        ({}, Elastic((2, 3, 4, 5, 6, 7, 8))),
        ({"elastic": None}, Elastic((2, 3, 4, 5, 6, 7, 8))),
        ({"elastic": {"sizes": "pow2"}}, Elastic((2, 4, 8))),
        ({"elastic": {"sizes": [8, 2, "4"]}}, Elastic((2, 4, 8))),
        (
            {
                "elastic": {
                    "sizes": [2, 8],
                    "utility": {"deadline": "2h", "value": 100},
                    "price_per_gpu_hour": 1.5,
                }
            },
            Elastic((2, 8), 7200.0, 100.0, 1.5),
        ),
    ],
)
def test_a_range_of_gpus_makes_an_elastic_job(fields, elastic):
    request = parse(**RANGE, **fields)
    assert (request.num_gpus, request.elastic) == (2, elastic)
    assert parse_job(json.loads(json.dumps(request.to_fields())), workdir="") == request


@pytest.mark.parametrize(
    ("fields", "adapt"),
    [
        ({}, None),
        ({"mode": "fixed"}, None),
        ({"mode": "adapt", "max_global": 4096}, Adapt(4096)),
        ({"mode": "adapt", "max_global": "4096", "max_per_gpu": 256}, Adapt(4096, 256)),
        ({"mode": "adapt", "max_global": 64, "min_per_gpu": 2}, Adapt(64, None, 2)),
        (
            {"mode": "adapt", "max_global": 64, "min_per_gpu": 4, "max_per_gpu": 7},
            Adapt(64, 7, 4),
        ),
    ],
)
def test_the_scheduler_may_choose_batches_within_limits(fields, adapt):
    request = parse(**({"batch": fields} if fields else {}))
    assert request.adapt == adapt
    assert parse_job(json.loads(json.dumps(request.to_fields())), workdir="") == request


def test_powers_of_two_begin_with_the_least_number():
    request = parse(resources={"gpus": "3..12"}, elastic={"sizes": "pow2"})
    assert request.elastic == Elastic((3, 4, 8))


@given(st.text(st.characters(exclude_categories=[])))
def test_any_command_yields_a_name_that_is_one(run):
    assert parse(name=name_of(run)).name
