"""The field's training jobs as data: sizes, step times, memory, cores, each figure with its source.

The figures stand in TOML files beside this module; docs/research/catalog.md shows them as tables.
"""

import re
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from rota.errors import InputError, did_you_mean
from rota.predict.step_time import StepTime
from rota.workload.catalog.core_curve import CoreCurve

FOLDER = Path(__file__).parent
# Figures of models.toml that are one number each.
FIGURES = (
    "batch",
    "parameters",
    "size_mib",
    "largest_mib",
    "memory_min_mib",
    "memory_max_mib",
    "restart_s",
)


class Fit(NamedTuple):
    """Agreement of a step-time model with the data it was fitted to; None if it was derived.

    ``source`` holds keys of :func:`sources`, separated by blanks; ``sync_from`` is the GPU type
    whose terms of synchronisation replace those that nobody measured on this one.
    """

    source: str
    points: int = 0
    median_error: float | None = None
    p90_error: float | None = None
    sync_from: str = ""
    note: str = ""


class ModelProfile(NamedTuple):
    """Published figures of one training job; None or empty where nobody published one.

    ``sources`` names the source of each figure by its key in :func:`sources`. ``batch`` is the
    samples per GPU that speeds are for. ``noise`` is the gradient noise scale in samples over
    equal parts of a run at batch size ``noise_batch``. Each of ``core_curves`` names
    its own source.
    """

    name: str
    task: str
    aliases: tuple[str, ...] = ()
    batch: float | None = None
    parameters: int | None = None
    size_mib: float | None = None
    largest_mib: float | None = None
    memory_min_mib: float | None = None
    memory_max_mib: float | None = None
    restart_s: float | None = None
    core_curves: tuple[CoreCurve, ...] = ()
    noise: tuple[float, ...] = ()
    noise_batch: float | None = None
    step_times: dict[str, StepTime] = {}
    fits: dict[str, Fit] = {}
    sources: dict[str, str] = {}

    def core_curve(self, phase: str) -> CoreCurve | None:
        """The first curve of the phase, None if none was published."""
        return next((curve for curve in self.core_curves if curve.phase == phase), None)

    @property
    def skew(self) -> float | None:
        """The largest tensor over the model's size (Tiresias, section 3.3), if both are known."""
        if not self.size_mib or not self.largest_mib:
            return None
        return self.largest_mib / self.size_mib


@lru_cache(maxsize=1)
def load() -> dict[str, ModelProfile]:
    """Every model of the catalogue by name, in the order of its file."""
    models, cores = _read("models"), _read("cores")
    steps, noise = _read("step_times"), _read("gradient_noise")
    return {
        name: _profile(name, table, steps.get(name, {}), noise.get(name, {}), cores.get(name, []))
        for name, table in models.items()
    }


@lru_cache(maxsize=1)
def sources() -> dict[str, str]:
    """Sources of the figures, by the key that figures name."""
    return _read("sources")


@lru_cache(maxsize=4096)
def look_up(name: str) -> ModelProfile | None:
    """The model called ``name``, or None; case, blanks, ``-`` and ``_`` don't matter.

    Aliases hold too, and ``ResNet-50 (batch size 32)`` is the model with that batch per GPU.
    """
    batch = re.fullmatch(r"(.*?)\s*\(batch size (\d{1,9})\)\s*", name)
    profile = _by_alias().get(_plain(batch[1] if batch else name))
    if profile is not None and batch and int(batch[2]):
        return profile._replace(batch=float(batch[2]))
    return profile


def find(name: str) -> ModelProfile:
    """Like :func:`look_up`. Raises InputError naming similar ones if there is no such model."""
    profile = look_up(name)
    if profile is None:
        hint = did_you_mean(name.lower(), load())
        raise InputError(
            f"model: {name!r} is not in the catalogue{hint}; it has {', '.join(load())}"
        )
    return profile


def gpu_type(name: str) -> str:
    """The catalogue's name of a GPU type: ``V100M32`` and ``v100-16gb`` are ``v100``.

    A type that the catalogue does not have keeps its name, in lower case.
    """
    plain = name.lower()
    for known in gpu_types():
        if re.match(rf"(?:tesla-|nvidia-)*{known}(?!\d)", plain):
            return known
    return plain


@lru_cache(maxsize=1)
def gpu_types() -> tuple[str, ...]:
    """The GPU types on which some model was measured."""
    return tuple(sorted({kind for profile in load().values() for kind in profile.step_times}))


@lru_cache(maxsize=1)
def _by_alias() -> dict[str, ModelProfile]:
    names: dict[str, ModelProfile] = {}
    for profile in load().values():
        for alias in (profile.name, *profile.aliases):
            names[_plain(alias)] = profile
    return names


def _plain(name: str) -> str:
    return re.sub(r"[\s_-]", "", name).lower()


def _read(name: str) -> Any:
    import tomllib

    return tomllib.loads((FOLDER / f"{name}.toml").read_text(encoding="utf-8"))


def _profile(
    name: str,
    table: dict[str, Any],
    steps: dict[str, Any],
    noise: dict[str, Any],
    curves: list[dict[str, Any]],
) -> ModelProfile:
    figures = {key: table[key]["value"] for key in FIGURES if key in table}
    named = {key: table[key]["source"] for key in FIGURES if key in table}
    if noise:
        figures |= {"noise": tuple(noise["phi"]), "noise_batch": noise["batch"]}
        named["noise"] = noise["source"]
    return ModelProfile(
        name=name,
        task=table["task"],
        aliases=tuple(table.get("aliases", ())),
        step_times={kind: StepTime(**_only(StepTime, of)) for kind, of in steps.items()},
        fits={kind: Fit(**_only(Fit, of)) for kind, of in steps.items()},
        core_curves=tuple(_curve(of) for of in curves),
        sources=named,
        **figures,
    )


def _curve(table: dict[str, Any]) -> CoreCurve:
    points = zip(table.get("cores", ()), table.get("speed", ()), strict=True)
    return CoreCurve(points=tuple(points), **_only(CoreCurve, table))


def _only(kind: Any, table: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in table.items() if key in kind._fields}
