import pytest

from rota.cli.costoptions import DEFAULT_SET, parse_costs
from rota.errors import InputError
from rota.model.job import JobSpec, Suspension
from rota.sim.costsets import NETWORK_BYTES_S, SETS, UNKNOWN, costs_text
from rota.sim.machine import FREE, Costs, restarts


def test_costs_not_given_are_those_of_a_restart():
    charges = parse_costs(False, resume_s=60.0, suspend_s=None)
    assert charges.costs == restarts(30.0)._replace(resume_s=60.0)
    assert (charges.cost_set, charges.given) == (DEFAULT_SET, {"resume_s": 60.0})
    assert parse_costs(True, resume_s=None).costs == FREE


def test_restarts_alone_may_cost():
    costs = parse_costs(False, 30.0, resume_s=None).costs
    assert (costs.cold_start_s, costs.resume_s, costs.resize_pause_s) == (30.0, 30.0, 30.0)
    assert sum(costs) == 90.0
    for no_costs, given, other in (
        (True, {}, "no-costs"),
        (False, {"suspend_s": 1.0}, "suspend-s"),
    ):
        with pytest.raises(InputError, match=f"--restart-s and --{other} contradict"):
            parse_costs(no_costs, 30.0, **given)
    with pytest.raises(InputError, match="--restart-s: -1"):
        parse_costs(False, -1.0)
    with pytest.raises(InputError, match="--costs and --restart-s contradict"):
        parse_costs(False, 30.0, "cooperative")


def test_a_known_model_is_charged_by_its_size_and_others_by_their_memory():
    of = SETS["cooperative"]
    small, large = (
        of(JobSpec("1", 1, 0.0, model="resnet18")),
        of(JobSpec("2", 1, 0.0, model="bert")),
    )
    assert Costs().suspend_s < small.suspend_s < large.suspend_s < of(UNKNOWN).suspend_s
    told = of(JobSpec("3", 1, 0.0, memory_gb=10.0))
    assert told.suspend_s == pytest.approx(1.0 + Costs().suspend_s)
    assert told.migrate_s == pytest.approx(1.5 + 10e9 / NETWORK_BYTES_S)


@pytest.mark.parametrize(
    ("text", "costs"),
    [
        ("restart_s: 60", restarts(60.0)),
        ("restart_s: 60\nsuspend_s: 2", restarts(60.0)._replace(suspend_s=2.0)),
        ("resume_s: 1", Costs()._replace(resume_s=1.0)),
    ],
)
def test_a_file_names_costs(tmp_path, text, costs):
    file = tmp_path / "costs.yaml"
    file.write_text(text)
    how = Suspension.RESTART if "restart_s" in text else Suspension.BOUNDARY
    assert parse_costs(False, None, str(file)) == (costs, "", {}, how)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "write seconds by name"),
        ("- 1", "write seconds by name"),
        ("resume: 1", "no 'resume' .did you mean 'resume_s'"),
        ("resume_s: soon", "resume_s: 'soon' is not a number of seconds"),
        ("resume_s: true", "resume_s: True is not a number of seconds"),
        ("resume_s: -1", "resume_s: -1 is not a number of seconds from 0"),
        ("a: [", "can't be read"),
    ],
)
def test_a_file_that_names_none_is_refused(tmp_path, text, error):
    file = tmp_path / "costs.yaml"
    file.write_text(text)
    with pytest.raises(InputError, match=error):
        parse_costs(False, None, str(file))


def test_a_set_that_is_not_there_is_told_with_those_that_are():
    with pytest.raises(InputError, match="neither a set \\(cooperative, restart, plain\\) nor"):
        parse_costs(False, None, "cooperativ")


def test_what_is_charged_is_told_in_a_clause():
    assert costs_text("", FREE) == "none"
    whenever = "60 s without progress whenever a job gets GPUs, or others"
    assert costs_text("", restarts(60.0)) == whenever
    assert costs_text("restart", restarts(60.0)) == f"restart: {whenever}"
    assert "suspend 0.0015 s" in costs_text("", Costs())
    assert costs_text("cooperative", Costs()).endswith("by the size of models that are known")
