import pytest

from rota.experiment.base import Figure, Outcome, load, names, summary


def figure(ours):
    return Figure("share", "GPUs", 1.0, None, ours, 0.9, 1.1)


@pytest.mark.parametrize(
    ("ours", "ok"), [(0.9, True), (1.1, True), (0.89, False), (1.11, False), (float("nan"), False)]
)
def test_a_figure_is_ok_within_its_bounds_and_on_them(ours, ok):
    assert figure(ours).ok is ok


@pytest.mark.parametrize(
    ("figures", "holds"),
    [([figure(1.0)], True), ([figure(1.0), figure(2.0)], False), ([], False)],
    ids=["all within", "one out", "none at all"],
)
def test_an_experiment_holds_if_all_figures_do(figures, holds):
    assert Outcome("x", [], {}, figures).holds is holds


@pytest.mark.parametrize("name", names())
def test_every_experiment_says_what_it_reproduces_and_can_be_run(name):
    assert summary(name)
    assert callable(load(name).run)
