"""The field ``share`` of a job file, and what it excludes."""

import pytest

from rota.errors import JobFileError
from rota.model.job import BACKGROUND, FOREGROUND, Share
from rota.request.jobfile import parse_job


def parse(**fields):
    return parse_job({"run": "true", **fields}, workdir="/w")


@pytest.mark.parametrize(
    ("share", "found"),
    [
        (None, None),
        ({"role": "background"}, Share(BACKGROUND)),
        ({"role": "foreground"}, Share(FOREGROUND, 1.1)),
        ({"max_slowdown": 1}, Share(FOREGROUND, 1.0)),
        ({}, Share(FOREGROUND, 1.1)),
    ],
)
def test_a_share_is_read_and_comes_back(share, found):
    request = parse(share=share)
    assert request.share == found
    assert parse_job(request.to_fields(), workdir="").share == found


def test_a_background_job_may_be_a_gang():
    request = parse(share={"role": "background"}, resources={"gpus": 2})
    assert (request.share, request.num_gpus) == (Share(BACKGROUND), 2)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"share": "background"}, "share: 'background'.*{role: background}"),
        ({"share": {"role": "low"}}, "share.role: 'low'.*background or foreground"),
        ({"share": {"rolle": "background"}}, "no field .rolle.*share.role"),
        ({"share": {"max_slowdown": 0.9}}, "share.max_slowdown: 0.9.*from 1.0"),
        ({"share": {"max_slowdown": "much"}}, "share.max_slowdown: 'much'"),
        ({"share": {"max_slowdown": True}}, "share.max_slowdown: True"),
        ({"share": {"max_slowdown": float("nan")}}, "share.max_slowdown: nan"),
        (
            {"share": {"role": "background", "max_slowdown": 1.1}},
            "share.max_slowdown: 1.1.*foreground",
        ),
        (
            {"share": {"role": "background"}, "resources": {"gpus": "1..4"}},
            "resources.gpus: '1..4'.*one size.*gpus: 1",
        ),
        (
            {"share": {"role": "background"}, "processes": "flow", "resources": {"gpus": 2}},
            "resources.gpus: 2.*exactly one GPU",
        ),
        (
            {"share": {"role": "background"}, "batch": {"mode": "adapt", "max_global": 64}},
            "share.role: 'background'.*leave batch out",
        ),
    ],
)
def test_what_cannot_be_is_refused_with_the_fix(fields, words):
    with pytest.raises(JobFileError, match=words):
        parse(**fields)
