"""Flow jobs in job files: their weight, their time without operations, and what they exclude."""

import pytest

from rota.errors import JobFileError
from rota.model.job import Elastic, Share
from rota.request.jobfile import parse_job, program_of
from rota.request.launchers import advice


def parse(**fields):
    return parse_job({"run": "python drive.py", "processes": "flow", **fields}, workdir="/w")


def test_a_flow_job_is_read():
    request = parse(share={"weight": 4}, idle="10m", resources={"gpus": "1..4"})
    assert request.share == Share("foreground", None, 4.0)
    assert request.elastic == Elastic((1, 2, 3, 4))
    program = program_of(request)
    assert (program.processes, program.idle_s) == ("flow", 600.0)
    assert parse(share={"weight": 4, "max_slowdown": 1.2}).share == Share("foreground", 1.2, 4.0)
    plain = parse()
    assert (plain.share, plain.idle_s, plain.elastic) == (None, None, None)
    background = parse(share={"role": "background", "weight": 0.5})
    assert background.share == Share("background", None, 0.5)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"share": {"weight": 0}}, "share.weight: 0 .*a number from 0.001"),
        ({"share": {"weight": "much"}}, "share.weight: 'much'"),
        ({"share": {"weight": float("nan")}}, "share.weight: nan"),
        ({"share": {"weight": 4}, "processes": "gpu"}, "share.weight: 4 .*processes: flow"),
        ({"idle": "10m", "processes": "gpu"}, "idle: '10m' .*processes: flow"),
        ({"idle": "soon"}, "idle: 'soon' .*30s, 10m"),
        ({"suspend": "restart"}, "suspend: 'restart' .*between its operations"),
        ({"batch": {"mode": "adapt", "max_global": 64}}, "processes: 'flow' .*one process per GPU"),
        ({"processes": "node", "resources": {"gpus": "1..4"}}, "processes: 'node' .*flow job"),
        ({"processes": "flows"}, "processes: 'flows' .*through rota.flow"),
    ],
)
def test_what_cannot_be_is_refused_with_the_fix(fields, words):
    with pytest.raises(JobFileError, match=words):
        parse(**fields)


def test_a_launcher_is_no_flow_job():
    [line] = advice("torchrun drive.py", 1, "flow")
    assert line.endswith("run the script itself")
    assert advice("python drive.py", 2, "flow") == []
