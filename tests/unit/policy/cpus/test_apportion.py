import pytest

from rota.errors import InputError
from rota.policy.cpus.apportion import CORE, CoreClaim, apportion, bears, fewest, worth
from rota.workload.catalog import find

NODE = 24 * CORE


def claim(model, *, share=3, source="synergy", quantum=CORE, cores=24):
    """The claim of a job whose curve is published."""
    (curve,) = (curve for curve in find(model).core_curves if curve.source == source)
    steps = cores * CORE // quantum
    speeds = tuple(curve.speed((k + 1) * quantum / CORE) for k in range(steps))
    return CoreClaim(share * CORE, speeds)


@pytest.mark.parametrize(
    ("models", "best"),
    [
        (["alexnet"] * 4 + ["gnmt"] * 4, 10.12),
        (["resnet18_imagenet"] * 2 + ["gnmt", "lm", "transformer"] * 2, 10.8),
        (
            [
                "alexnet",
                "resnet18_imagenet",
                "mobilenet",
                "m5",
                "gnmt",
                "lstm",
                "transformer",
                "deepspeech2",
            ],
            9.58,
        ),
    ],
)
def test_the_best_sums_for_synergys_curves_are_found_and_nobody_is_slower(models, best):
    claims = [claim(model) for model in models]
    held = apportion(claims, NODE)
    assert worth(claims, held) == pytest.approx(best, abs=1e-6)
    assert worth(claims, [3 * CORE] * 8) == pytest.approx(8)
    for each, cores in zip(claims, held, strict=True):
        assert worth([each], [cores]) >= 1 - 1e-9


def test_a_curve_that_steepens_again_is_not_climbed_core_by_core():
    """Between 6 and 9 cores nobody measured; taken as steps, the curve is flat up to 9."""
    steps = (0.37, 0.72, 1.0, 1.3, 1.53, 1.75, 1.75, 1.75, *[2.4] * 16)
    resnet18, flat = CoreClaim(3000, steps), CoreClaim(3000, (1.0,))
    mix = [resnet18, resnet18, claim("resnet50"), claim("resnet50"), *[flat] * 4]
    assert worth(mix, apportion(mix, NODE)) == pytest.approx(9.93, abs=1e-6)
    pair = [resnet18, resnet18]
    assert apportion(pair, 15 * CORE) == [9000, 6000]
    assert apportion(pair, 18 * CORE) == [9000, 9000]


def test_of_overfeat_and_resnet50_on_too_few_cores_the_one_that_needs_fewer_gives_way():
    overfeat = claim("overfeat", share=10, source="sad", cores=40)
    resnet = claim("resnet50", share=11, source="sad", cores=40)
    normalised = [
        each._replace(weight=each.speeds[each.share // CORE - 1] / max(each.speeds))
        for each in (overfeat, resnet)
    ]
    assert apportion(normalised, 21 * CORE, floor="none") == [14000, 7000]


def test_a_job_that_goes_over_to_validation_gets_the_cores_that_shorten_it():
    """Of 4 cores for each GPU, training keeps one busy; 24 shorten validation by 75 %."""
    training, validating = (
        CoreClaim(4 * CORE, tuple(curve.speed(cores + 1) for cores in range(24)))
        for curve in find("nmt").core_curves
    )
    flat = claim("gnmt", share=4)
    before = apportion([training, *[flat] * 5], NODE)
    after = apportion([validating, *[flat] * 5], NODE)
    assert after[0] == 19 * CORE > before[0]
    assert apportion([validating], NODE) == [NODE]
    assert worth([validating], [NODE]) == pytest.approx(4)


def test_quarters_of_a_core_are_dealt_out_where_they_are_the_quantum():
    claims = [claim("alexnet", share=1, quantum=250), claim("gnmt", share=1, quantum=250)]
    assert apportion(claims, 2 * CORE, quantum=250) == [1000, 1000]
    assert apportion(claims, 2 * CORE, quantum=250, floor="none") == [1750, 250]


def test_with_slack_a_job_that_seems_little_slower_gives_cores_away():
    nearly_flat = CoreClaim(3000, (0.98, 0.99, 1.0))
    claims = [nearly_flat, claim("alexnet")]
    assert apportion(claims, 6 * CORE) == [3000, 3000]
    assert apportion(claims, 6 * CORE, slack=0.01) == [2000, 4000]
    assert apportion(claims, 6 * CORE, slack=0.03) == [1000, 5000]


def test_a_job_of_unknown_speed_has_its_share_and_spare_cores():
    unknown, flat = CoreClaim(3000), CoreClaim(3000, (1.0,))
    assert apportion([unknown, claim("alexnet")], 12 * CORE) == [3000, 9000]
    assert apportion([unknown, flat], 12 * CORE) == [6000, 6000]
    assert apportion([unknown, unknown], 6 * CORE, floor="none") == [3000, 3000]


def test_jobs_stay_within_the_cores_that_they_ask_for():
    bounded = claim("alexnet")._replace(least=2000, most=4000)
    assert apportion([bounded, bounded], NODE) == [4000, 4000]
    assert apportion([CoreClaim(3000, (1.0,), least=2000), claim("alexnet")], 8 * CORE) == [
        2000,
        6000,
    ]


def test_speeds_count_relative_to_the_share_whatever_the_bounds():
    """A core makes the first job faster by a quarter of its speed, the second by a third."""
    first = CoreClaim(4000, (1.0, 2.0, 3.0, 4.0, 5.0, 5.0), least=1000, most=5000)
    second = CoreClaim(3000, (1.0, 2.0, 3.0, 4.0, 4.0, 4.0), most=6000)
    assert apportion([first, second], 8 * CORE) == [4000, 4000]
    assert worth([first, second], [4000, 4000]) == pytest.approx(1 + 4 / 3)
    bounded = [first, second._replace(least=4000)]
    assert apportion(bounded, 8 * CORE, floor="none") == [4000, 4000]


def test_floors_that_do_not_fit_together_are_given_up_and_then_least_numbers_of_cores():
    steep = CoreClaim(4000, (1.0, 2.0, 3.0, 4.0))
    assert apportion([steep, steep], 6 * CORE) == [4000, 2000]
    least = steep._replace(least=4000)
    assert apportion([least, least], 6 * CORE) == [4000, 2000]
    assert apportion([steep] * 3, 2 * CORE) == [666, 666, 666]


def test_spare_cores_go_to_nobody_whom_they_slow_down():
    falling = CoreClaim(2000, (1.0, 2.0, 1.5, 1.0))
    assert apportion([falling, falling], 8 * CORE) == [2000, 2000]


def test_of_equal_jobs_the_earlier_has_the_odd_core():
    assert apportion([claim("alexnet")] * 2, 7 * CORE) == [4000, 3000]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"floor": "half"}, "cpu_floor: 'half' must be one of none, proportional"),
        ({"slack": -0.1}, "slack: -0.1 must be a part of a speed"),
        ({"slack": float("nan")}, "slack: nan must be a part of a speed"),
        ({"quantum": 0}, "quantum: 0 thousandths"),
        ({"cores": 1}, "cores: 1 thousandths of a core are not one for each of 2 jobs"),
        ({"claims": [CoreClaim(0)]}, "share 0 and weight 1.0 must be above zero"),
        ({"claims": [CoreClaim(1, weight=float("nan"))]}, "weight nan must be above zero"),
        ({"claims": [CoreClaim(1, least=3, most=2)]}, "3 to 2 thousandths of a core"),
        ({"claims": [CoreClaim(1, (1.0, float("nan")))]}, "must be finite and above zero"),
    ],
)
def test_bad_input_is_told_by_name_and_value(change, words):
    given = {"claims": [CoreClaim(3000)] * 2, "cores": NODE} | change
    with pytest.raises(InputError, match=words):
        apportion(**given)


def test_no_jobs_hold_no_cores():
    assert apportion([], NODE) == []


def test_a_claim_bears_what_leaves_it_its_floor_and_its_bounds():
    alexnet, unknown = claim("alexnet"), CoreClaim(3000)
    bounded = CoreClaim(3000, (1.0,), least=2000, most=4000)

    def borne(one, cores, **more):
        return bears([one], [cores], **more)

    assert borne(alexnet, 3000)
    assert not borne(alexnet, 2000)
    assert borne(alexnet, 2000, floor="none")
    assert borne(CoreClaim(3000, (0.98, 1.0)), 1000, slack=0.03)
    assert not borne(unknown, 2000, floor="none")
    assert [borne(bounded, cores) for cores in (1000, 2000, 4000, 5000)] == [
        False,
        True,
        True,
        False,
    ]


def test_the_fewest_quanta_of_a_claim_are_those_of_its_floor():
    assert fewest(claim("alexnet"), 24, "proportional", 0.03, CORE) == 3
    assert fewest(claim("gnmt"), 24, "proportional", 0.03, CORE) == 1
    assert fewest(claim("alexnet"), 24, "none", 0.03, CORE) == 1
    assert fewest(CoreClaim(3000), 24, "proportional", 0.03, CORE) == 3
    assert fewest(CoreClaim(3000, (1.0,), least=2000), 24, "none", 0.0, CORE) == 2
