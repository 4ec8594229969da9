from rota.experiment import sweep_fairness
from rota.experiment.sweep_fairness import MOST_RHO, rhos, run


def test_a_search_waits_for_nobody_longer_than_its_share_would_take_and_nobody_for_it(monkeypatch):
    monkeypatch.setattr(sweep_fairness, "TRIALS", 30)
    fair = rhos("gandiva", 0)
    assert fair.worst_job <= MOST_RHO
    assert fair.search <= MOST_RHO
    assert rhos("fifo", 0).worst_job > 1.5


def test_it_does_not_hold_by_order_of_arrival(monkeypatch):
    monkeypatch.setattr(sweep_fairness, "TRIALS", 30)
    monkeypatch.setattr(sweep_fairness, "SEEDS", [0])
    monkeypatch.setattr(sweep_fairness, "POLICIES", ("fifo", "fifo"))
    outcome = run()
    failed = [figure.name for figure in outcome.figures if not figure.ok]
    assert failed == ["finish-time fairness of the single job that is worst off"]
