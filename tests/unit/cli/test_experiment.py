import json
from types import SimpleNamespace

import pytest

from rota.errors import DataMissingError
from rota.experiment.base import Figure, Outcome


def experiment_that(monkeypatch, run):
    monkeypatch.setattr("rota.experiment.base.load", lambda name: SimpleNamespace(run=run))


def outcome(ours):
    return Outcome("demo", [1, 2], {"jobs": 3}, [Figure("share", "x", 1.0, None, ours, 0.9, 1.1)])


def test_list_names_each_experiment_with_a_sentence(rota):
    code, out, _ = rota("experiment", "list")
    assert code == 0
    listed = dict(line.split(maxsplit=1) for line in out.splitlines())
    assert listed["gandiva-timeslice"].startswith("Time-slicing")
    assert listed["tiresias-example"].startswith("The worked example of Tiresias")


def test_list_tells_which_options_an_experiment_takes(rota):
    listed = dict(line.split(maxsplit=1) for line in rota("experiment", "list")[1].splitlines())
    assert listed["pollux-jct"].endswith(" [--data]")
    assert listed["gandiva-timeslice"].endswith(" [--live, --hosts]")
    assert not listed["tiresias-example"].endswith("]")


def test_the_json_has_the_published_shape(rota):
    code, out, err = rota("experiment", "run", "gandiva-timeslice", "--json")
    assert (code, err) == (0, "")
    result = json.loads(out)
    assert list(result) == ["experiment", "seeds", "settings", "figures", "holds"]
    assert result["experiment"] == "gandiva-timeslice"
    assert result["holds"] is True
    keys = ["name", "unit", "published", "baseline", "ours", "low", "high", "least", "most"]
    keys += ["every", "ok"]
    assert all(list(figure) == keys for figure in result["figures"])


def test_the_text_shows_bounds_settings_and_verdict(rota):
    code, out, _ = rota("experiment", "run", "gandiva-timeslice")
    assert code == 0
    assert '"resume_s": 0.125' in out
    assert "0.66 .. 0.6733" in out
    assert out.endswith("gandiva-timeslice holds\n")


def test_what_is_not_judged_has_no_bounds_and_seeds_show_their_spread(rota, monkeypatch):
    figures = [
        Figure("share", "x", 1.0, None, 1.0, 0.9, 1.1),
        Figure("queue", "s", None, None, 50.0, least=40.0, most=70.0),
    ]
    experiment_that(monkeypatch, lambda: Outcome("demo", [1], {}, figures))
    code, out, _ = rota("experiment", "run", "demo")
    assert code == 0
    assert "over seeds" in out
    assert "40 .. 70" in out
    assert out.splitlines()[-3].split()[-2:] == ["-", "-"]


def test_bounds_for_every_seed_are_told(rota, monkeypatch):
    figure = Figure("share", "x", None, None, 1.0, 0.9, 1.1, least=0.5, most=1.0, every=True)
    experiment_that(monkeypatch, lambda: Outcome("demo", [1], {}, [figure]))
    code, out, _ = rota("experiment", "run", "demo")
    assert code == 1
    assert out.splitlines()[-3].split()[-5:] == ["0.9", "..", "1.1", "each", "NO"]


def test_what_has_no_seeds_shows_extremes(rota, monkeypatch):
    figure = Figure("error", "%", None, None, 5.0, 0.0, 15.0, least=1.0, most=9.0)
    experiment_that(monkeypatch, lambda: Outcome("demo", [], {}, [figure]))
    _, out, _ = rota("experiment", "run", "demo")
    assert "over seeds" not in out
    assert "extremes" in out
    assert "1 .. 9" in out


def test_the_table_keeps_to_the_terminal(rota, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = rota("experiment", "run", "tiresias-example")
    assert code == 0
    _, _, table = out.partition("\n\n")
    assert all(len(line) <= 80 for line in table.splitlines())
    assert "not enough room for: baseline; --json has all" in table


@pytest.mark.parametrize("flag", [[], ["--json"]], ids=["text", "json"])
def test_a_figure_out_of_bounds_is_exit_code_1(rota, monkeypatch, flag):
    experiment_that(monkeypatch, lambda: outcome(1.2))
    code, out, err = rota("experiment", "run", "demo", *flag)
    assert (code, err) == (1, "")
    if flag:
        assert json.loads(out)["holds"] is False
    else:
        assert "NO" in out
        assert "does not hold" in out


def test_absent_data_is_exit_code_3_and_a_sentence(rota, monkeypatch):
    def run(data):
        raise DataMissingError(f"{data}: no philly.csv there; see docs/data.md")

    experiment_that(monkeypatch, run)
    code, out, err = rota("experiment", "run", "demo", "--data", "/nowhere", "--json")
    assert (code, out) == (3, "")
    assert err == "error: /nowhere: no philly.csv there; see docs/data.md\n"


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["gandiva-timeslise"], "did you mean 'gandiva-timeslice'"),
        (["base"], "there is no experiment 'base'"),
        (["gandiva_timeslice"], "did you mean 'gandiva-timeslice'"),
        (["tiresias-example", "--live"], "leave out --live"),
        (["gandiva-timeslice", "--data", "."], "leave out --data"),
        (["gandiva-timeslice", "--hosts", "3"], "add --live"),
        (["pollux-jct", "--hosts", "3"], "leave out --hosts"),
    ],
    ids=" ".join,
)
def test_what_cannot_be_run_is_refused(rota, args, says):
    code, out, err = rota("experiment", "run", *args)
    assert (code, out) == (2, "")
    assert says in err
    assert err.count("\n") == 1
