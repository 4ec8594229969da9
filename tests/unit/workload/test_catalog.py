import math
import re
import tomllib
from itertools import chain

import pytest

from rota.errors import InputError
from rota.workload.catalog import FOLDER, find, gpu_type, load, look_up, sources


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("vgg16", "vgg16"),
        ("VGG-16", "vgg16"),
        ("resnet50", "resnet50"),
        ("ResNet-50 (batch size 64)", "resnet50"),
        ("imagenet", "resnet50"),
        ("inception_v3", "inception3"),
        ("ResNet-18 (batch size 256)", "cifar10"),
        ("LM (batch size 80)", "lm"),
        ("Recommendation (batch size 8192)", "recommendation"),
        ("A3C", "a3c"),
        *((app, app) for app in ("cifar10", "bert", "deepspeech2", "ncf", "yolov3")),
    ],
)
def test_models_are_found_by_the_names_that_traces_use(name, model):
    assert find(name).name == model


def test_a_batch_size_in_the_name_is_the_batch_per_gpu():
    assert find("ResNet-50 (batch size 32)").batch == 32
    assert find("ResNet-50").batch == 64
    assert look_up("ResNet-50 (batch size 0)") == find("resnet50")


def test_an_unknown_model_is_told_with_the_close_one():
    assert look_up("vgg61") is None
    with pytest.raises(InputError, match=r"'vgg61' is not in the catalogue \(did you mean 'vgg1"):
        find("vgg61")


def test_no_name_stands_for_two_models():
    names = [name for profile in load().values() for name in (profile.name, *profile.aliases)]
    plain = [re.sub(r"[\s_-]", "", name).lower() for name in names]
    assert sorted(plain) == sorted(set(plain))


@pytest.mark.parametrize(
    ("model", "skew"),
    [
        ("vgg11", 0.774),
        ("vgg16", 0.744),
        ("vgg19", 0.717),
        ("alexnet", 0.611),
        ("inception3", 0.138),
        ("resnet50", 0.112),
        ("resnet101", 0.075),
        ("resnet152", 0.060),
        ("inception4", 0.044),
    ],
)
def test_skew_is_what_the_simulator_of_tiresias_has(model, skew):
    assert find(model).skew == pytest.approx(skew, abs=0.0006)


def test_a_model_of_unknown_size_has_no_skew():
    assert find("deepspeech2").skew is None


def test_every_figure_names_a_source_that_is_told():
    known = sources()
    for profile in load().values():
        told = (*profile.fits.values(), *profile.core_curves)
        named = chain(profile.sources.values(), (each.source for each in told))
        for source in named:
            assert set(source.split()) <= set(known), profile.name
        figures = {
            key: value
            for key, value in profile._asdict().items()
            if key
            not in ("name", "task", "aliases", "step_times", "fits", "core_curves", "sources")
        }
        told = {key for key, value in figures.items() if value} - {"noise_batch"}
        assert told == set(profile.sources), profile.name


def test_figures_are_of_a_size_that_can_be():
    for profile in load().values():
        if profile.parameters and profile.size_mib:
            # Sizes from the simulator of Tiresias leave out tensors below 1 MB.
            whole_mib = profile.parameters * 4 / 2**20
            assert 0.5 * whole_mib < profile.size_mib < 1.02 * whole_mib, profile.name
        assert profile.skew is None or 0 < profile.skew < 1
        assert list(profile.noise) == [phi for phi in profile.noise if 0 < phi < math.inf]
        for curve in profile.core_curves:
            cores = [count for count, _ in curve.points]
            assert cores == sorted(set(cores))
            assert bool(cores) != bool(curve.by_core)
            assert (curve.cpu_cores is None) == (curve.used_at is None)
        for kind, model in profile.step_times.items():
            terms = [term for term in model if term is not None]
            assert all(0 <= term < 100 for term in terms), (profile.name, kind)
            assert 1 <= model.gamma <= 10
            assert model.compute_s(profile.batch) > 0


def test_fits_say_how_good_they_are_or_that_they_are_derived():
    for profile in load().values():
        assert set(profile.fits) == set(profile.step_times)
        for kind, fit in profile.fits.items():
            assert (fit.median_error is None) == ("derived" in fit.source), (profile.name, kind)
            assert (fit.points == 0) == ("derived" in fit.source)
            if fit.median_error is not None:
                assert fit.median_error < 0.2
                assert fit.median_error <= fit.p90_error


def test_a_model_with_step_times_has_a_batch_size():
    assert not [p.name for p in load().values() if p.step_times and not p.batch]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("V100M32", "v100"),
        ("a100-sxm4", "a100"),
        ("Tesla-T4", "t4"),
        ("A10", "a10"),
        ("t400", "t400"),
        ("h100", "h100"),
        ("", ""),
    ],
)
def test_gpu_types_are_known_by_their_family(name, kind):
    assert gpu_type(name) == kind


def test_resnet50_holds_a_seventy_seventh_of_its_memory_at_the_boundary_of_a_step():
    """Gandiva (OSDI 2018): 0.3 of 23 GB, which is what a suspension at the boundary has to copy."""
    profile = look_up("resnet50")
    assert round(profile.memory_min_mib * 2**20 / 1e9, 1) == 0.3
    assert round(profile.memory_max_mib * 2**20 / 1e9) == 23
    assert profile.memory_max_mib / profile.memory_min_mib == pytest.approx(76.7, abs=0.05)


def test_every_curve_by_cores_is_of_a_model_of_the_catalogue():
    listed = tomllib.loads((FOLDER / "cores.toml").read_text())
    assert set(listed) <= set(load())
    assert sum(len(profile.core_curves) for profile in load().values()) == sum(
        map(len, listed.values())
    )


@pytest.mark.parametrize(
    ("cores", "speed"), [(0.5, 0.185), (1, 0.37), (3.5, 1.15), (7.5, 2.075), (9, 2.4), (24, 2.4)]
)
def test_a_measured_curve_is_linear_between_its_points_and_flat_beyond(cores, speed):
    curve = find("resnet18_imagenet").core_curve("train")
    assert curve.speed(cores) == pytest.approx(speed)
    assert curve.relative(cores, 9) == pytest.approx(speed / 2.4)


def test_the_jobs_of_sads_abstract_have_the_ratios_that_it_states():
    overfeat = find("overfeat").core_curve("train")
    assert overfeat.relative(7, 14) == pytest.approx(0.55)
    assert overfeat.speed(41) == overfeat.speed(40) > overfeat.speed(39)
    (resnet,) = (c for c in find("resnet50").core_curves if c.source == "sad")
    assert resnet._replace(saturating_cores=None).relative(7, 14) == pytest.approx(0.8)
    assert resnet.speed(14) == resnet.speed(7)
    nmt = find("nmt")
    assert nmt.core_curve("validate").relative(4, 24) == pytest.approx(0.25)
    assert nmt.core_curve("train").relative(24, 4) == 1
    assert nmt.core_curve("test") is None
