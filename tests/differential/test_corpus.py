"""A job runs as a plain call of Python does, in every way in which its program is started."""

from pathlib import Path

import pytest

from differential.corpus import CASES, Case
from differential.ways import as_job, plainly
from support.lone_agent import LoneAgent

STARTS = ("fresh", "warm")
CALLS = (
    "script",
    pytest.param("-m", marks=pytest.mark.cluster),
    pytest.param("link", marks=pytest.mark.cluster),
)


@pytest.fixture(scope="module")
def agent(tmp_path_factory):
    with LoneAgent(tmp_path_factory.mktemp("agent"), num_gpus=1) as agent:
        yield agent


def cases(*, draws: bool) -> list[object]:
    return [pytest.param(case, id=case.name) for case in CASES if case.draws == draws]


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("case", cases(draws=False))
def test_a_job_prints_and_leaves_what_a_plain_run_does(
    agent, tmp_path: Path, case: Case, call: str
):
    plain = plainly(tmp_path / "plain", case, call)
    for start in STARTS:
        found = as_job(agent, tmp_path / start, case, call, start)
        if start == "warm" and case.unlike_forked:
            assert found != plain, "it is told as a difference, and is none"
        else:
            assert found == plain, start


@pytest.mark.parametrize("case", cases(draws=True))
def test_no_two_jobs_draw_the_same(agent, tmp_path: Path, case: Case):
    runs = [plainly(tmp_path / "plain", case, "script")]
    for start in STARTS:
        for number in range(2):
            run = as_job(agent, tmp_path / f"{start}{number}", case, "script", start)
            if start == "fresh" or not case.unlike_forked:
                runs.append(run)
    assert [run.code for run in runs] == [0] * len(runs)
    for draws in zip(*(run.log.splitlines() for run in runs), strict=True):
        assert len(set(draws)) == len(runs), draws
