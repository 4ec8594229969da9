"""How often the interval of a slowdown has the true one in it, on machines that drift and vary."""

from random import Random

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from rota.share.marks import FORWARD, NONE
from rota.share.slowdown import MOST_PAIRS, PairedSegments
from rota.share.watch import Finished

RUNS, STEP_S = 100, 0.1


def told(draw, *, factor, drift, varies, strays, pairs):
    """What is told of steps that grow by ``drift``, after so many pairs."""
    paired, step, usual_s = PairedSegments(), 0, STEP_S
    while paired.told is None or paired.told.pairs < pairs:
        shut = paired.is_shut(step)
        seconds = usual_s * draw.lognormvariate(0.0, varies) * (1.0 if shut else factor)
        seconds *= 3.0 if draw.random() < strays else 1.0
        each = (*NONE[:FORWARD], seconds, *NONE[FORWARD + 1 :])
        finished = Finished(1, each, 0.0, step)
        paired.note(finished, alone=shut, step_s=STEP_S, piece_s=0.001, limit=1.1)
        step, usual_s = step + 1, usual_s * (1 + drift)
    return paired.told


@settings(max_examples=6, phases=[Phase.explicit, Phase.generate], deadline=None)
@given(
    st.floats(0.95, 1.5),
    st.floats(-0.01, 0.01),
    st.floats(0.01, 0.3),
    st.sampled_from([0.0, 0.02]),
    st.integers(5, MOST_PAIRS),
    st.integers(0, 1000),
)
def test_the_interval_has_the_true_slowdown_in_it_19_times_of_20(
    factor, drift, varies, strays, pairs, seed
):
    draw, within, of_none = Random(seed), 0, 0
    for _ in range(RUNS):
        about = {"drift": drift, "varies": varies, "strays": strays, "pairs": pairs}
        found = told(draw, factor=factor, **about)
        within += found.low <= factor <= found.high
        of_none += found.low > 1.1 and factor <= 1.0
    assert within >= 0.86 * RUNS  # 0.95 less four standard errors
    assert of_none <= 0.05 * RUNS
