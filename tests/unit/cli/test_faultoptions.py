import re

import click
import pytest
from click.testing import CliRunner

from rota.cli.faultoptions import FAULT_OPTIONS, parse_faults
from rota.cli.optiongroups import options
from rota.errors import InputError
from rota.sim.faults import Fault, Faults, What


@pytest.fixture
def faults_of():
    def faults_of(*args):
        found = []

        @click.command()
        @options(FAULT_OPTIONS)
        def command(**options):
            found.append(parse_faults(**options))

        result = CliRunner().invoke(command, list(args))
        if result.exception is not None:
            raise result.exception
        return found[0]

    return faults_of


def test_no_options_are_no_faults(faults_of):
    assert faults_of() is None


def test_the_defaults_are_those_of_the_simulator(faults_of):
    assert faults_of("--mtbf-s", "1000") == Faults(mtbf_s=1000.0)
    assert faults_of("--worker-mtbf-s", "1e6") == Faults(worker_mtbf_s=1e6)
    assert faults_of("--straggler-every-s", "50") == Faults(straggler_every_s=50.0)


def test_the_help_texts_tell_the_simulators_defaults():
    for option in FAULT_OPTIONS:
        parameter = option(lambda: None).__click_params__[0]
        told = re.search(r"\[default: (.*)\]", parameter.help)
        default = Faults._field_defaults.get(parameter.name)
        assert (told and float(told[1])) == default, parameter.name


def test_every_option_arrives(faults_of, tmp_path):
    script = tmp_path / "faults.csv"
    script.write_text("at_s,what,node\n5,fail,node0\n")
    options = {
        "--mtbf-s": 1.0,
        "--mttr-s": 2.0,
        "--worker-mtbf-s": 3.0,
        "--straggler-every-s": 4.0,
        "--straggler-for-s": 5.0,
        "--straggler-speed": 0.6,
        "--checkpoint-s": 7.0,
    }
    args = [text for option, value in options.items() for text in (option, str(value))]
    expected = Faults(0, 1.0, 2.0, 3.0, 4.0, 5.0, 0.6, 7.0, (Fault(5.0, What.FAIL, "node0"),))
    assert faults_of(*args, "--faults", str(script)) == expected


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--mtbf-s", "0"], "mtbf_s is 0; give from 0.001 to 10,000,000,000 seconds"),
        (["--mtbf-s", "nan"], "mtbf_s is nan; give from 0.001 to 10,000,000,000 seconds"),
        (["--worker-mtbf-s", "-1"], "worker_mtbf_s is -1; give"),
        (
            ["--straggler-every-s", "9", "--straggler-speed", "1.5"],
            "straggler_speed is 1.5; give a number from 0.001 to 1",
        ),
        (["--mttr-s", "5"], "--mttr-s has no effect without --mtbf-s; give one, or drop it"),
        (["--straggler-speed", "0.5", "--mtbf-s", "9"], "without --straggler-every-s"),
        (
            ["--checkpoint-s", "5", "--straggler-every-s", "9"],
            "--checkpoint-s has no effect without --faults or --mtbf-s or --worker-mtbf-s",
        ),
        (["--faults", "/nowhere/x.csv"], "check the path"),
    ],
)
def test_an_option_that_makes_no_sense_is_refused(faults_of, args, says):
    with pytest.raises(InputError) as error:
        faults_of(*args)
    assert says in str(error.value)
