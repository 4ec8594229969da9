"""Write the tables of docs/research/catalog.md from the model catalogue itself.

python docs/generate_catalog.py           write the file
python docs/generate_catalog.py --check   say whether the file is what it should be
"""

import sys
from collections.abc import Iterable
from pathlib import Path

from rota.predict.step_time import Shape, StepTime, relative_speed
from rota.workload.catalog import ModelProfile, load, sources
from rota.workload.catalog.core_curve import CoreCurve

PAGE = Path(__file__).parent / "research" / "catalog.md"
HEADING = "\n## The catalogue\n"
SCATTERED = 4  # GPUs, each on a node of its own
FIT = ("scattered", "points", "error", "source")
CURVE = (
    "phase",
    "speed by cores per GPU",
    "cores that saturate a GPU",
    "cores in use",
    "use of the GPU",
    "source",
)
OTHER = (
    "noise scale over a run",
    "memory MiB",
    "restart s",
)


def page() -> str:
    """The page as it should be: the text before the tables as it stands, the tables anew."""
    head, heading, _ = PAGE.read_text().partition(HEADING)
    return head + heading + tables()


def tables() -> str:
    """All figures of the catalogue as Markdown."""
    profiles = load().values()
    parts = [
        "\n### Models\n",
        *table(
            ("model", "trains", "also called", "parameters", "size MiB", "largest MiB", "skew"),
            (
                (
                    f"`{p.name}`",
                    p.task,
                    ", ".join(f"`{alias}`" for alias in p.aliases),
                    figure(p, "parameters", ","),
                    figure(p, "size_mib"),
                    figure(p, "largest_mib"),
                    "" if p.skew is None else f"{p.skew:.3f}",
                )
                for p in profiles
            ),
        ),
        "\n### Step times\n",
        *table(
            ("model", "GPU", "samples per GPU", *StepTime._fields, *FIT),
            (step_row(p, kind) for p in profiles for kind in sorted(p.step_times)),
        ),
        "\n### Speed by CPU cores\n",
        *table(
            ("model", *CURVE),
            (core_row(p.name, curve) for p in profiles for curve in p.core_curves),
        ),
        "\n### Gradient noise, memory, restarts\n",
        *table(
            ("model", *OTHER),
            (row for p in profiles if any((row := other_row(p))[1:])),
        ),
        "\n### Sources\n",
        *table(("key", "source"), ((f"`{key}`", words) for key, words in sources().items())),
        "",
    ]
    return "\n".join(parts)


def table(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    """Lines of a Markdown table."""
    lines = [header, tuple("---" for _ in header), *rows]
    return [f"|{'|'.join(f' {cell} ' if cell else ' ' for cell in line)}|" for line in lines]


def figure(profile: ModelProfile, key: str, form: str = "g") -> str:
    """A figure with the key of its source, or nothing."""
    value = getattr(profile, key)
    return "" if value is None else f"{value:{form}} ({profile.sources[key]})"


def step_row(profile: ModelProfile, kind: str) -> tuple[str, ...]:
    model, fit, batch = profile.step_times[kind], profile.fits[kind], profile.batch
    assert batch is not None
    terms = ["" if term is None else f"{term:.3g}" for term in model]
    slow = relative_speed(
        profile.step_times,
        batch,
        Shape(kind, SCATTERED, SCATTERED),
        Shape(kind, SCATTERED, 1),
    )
    error = "" if fit.median_error is None else f"{fit.median_error:.1%}, {fit.p90_error:.1%}"
    words = fit.source
    words += f"; exchange as on {fit.sync_from}" if fit.sync_from else ""
    words += f"; {fit.note}" if fit.note else ""
    known = any(term is not None for term in (model.alpha_r, model.alpha_n))
    return (
        f"`{profile.name}`",
        kind,
        f"{batch:g}",
        *terms,
        f"{slow:.2f}" if known else "",
        str(fit.points or ""),
        error,
        words,
    )


def core_row(name: str, curve: CoreCurve) -> tuple[str, ...]:
    speeds = ", ".join(f"{cores:g}: {speed:g}" for cores, speed in curve.points)
    if not speeds:
        speeds = f"1 / ({curve.fixed:g} + {curve.by_core:g} / cores)"
    used = "" if curve.cpu_cores is None else f"{curve.cpu_cores:g} of {curve.used_at:g}"
    return (
        f"`{name}`",
        curve.phase,
        speeds,
        "" if curve.saturating_cores is None else f"{curve.saturating_cores:g}",
        used,
        "" if curve.device_util is None else f"{curve.device_util:.0%}",
        curve.source,
    )


def other_row(profile: ModelProfile) -> tuple[str, ...]:
    noise = ", ".join(f"{phi:,.0f}" for phi in profile.noise)
    low, high = figure(profile, "memory_min_mib"), figure(profile, "memory_max_mib")
    return (
        f"`{profile.name}`",
        f"{noise} at {profile.noise_batch:g} ({profile.sources['noise']})" if noise else "",
        f"{low} to {high}" if low else "",
        figure(profile, "restart_s"),
    )


def main() -> int:
    text = page()
    if "--check" in sys.argv[1:]:
        return 0 if PAGE.read_text() == text else 1
    PAGE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
