"""What a worker learns of the functions that it runs."""

from rota.flow.worker import MEMORY_RUNS, Function


def function():
    return Function("mean", None, None, "", None)


def test_the_first_run_of_a_function_tells_nothing():
    assert function().took(9_000_000) == 0


def test_runs_that_are_disturbed_do_not_change_what_a_function_takes():
    spun = function()
    spun.took(9)
    for at in range(40):
        takes = spun.took(6_400 if at % 3 == 2 else 2_400)
        assert takes == 2_400


def test_a_function_that_has_become_slower_is_known_to_be():
    spun = function()
    runs = [spun.took(took) for took in [100] * 20 + [300] * MEMORY_RUNS]
    assert (runs[19], runs[-1]) == (100, 300)
