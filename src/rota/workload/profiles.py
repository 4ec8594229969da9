"""Parameters of synthetic load, as tables: one profile for each public log it imitates.

Every figure is the published log's unless its comment says that it was chosen here, and to what
end. The logs: Philly (Microsoft, 2017), Helios (SenseTime, 2020), Acme (Shanghai AI Laboratory,
2023), PAI (Alibaba, 2020 and 2023); job-size tables also from Gavel's generator and Muri's traces.
"""

from typing import NamedTuple

Hump = tuple[float, float, float]  # weight, mu and sigma of the natural logarithm of seconds


class Profile(NamedTuple):
    """The shape of one cluster's load.

    ``gpus`` gives each gang size its share of the jobs. ``humps`` gives, for gangs of up to so many
    GPUs, a mixture of log-normal durations; its first hump is the early failures. ``dispersion`` is
    the variance over the mean of the arrivals in ten minutes, the daily and weekly cycle taken
    out. ``sweep_share`` of the jobs come in sweeps of equal one-GPU jobs. ``vcs`` gives each
    virtual cluster its share of the jobs.
    """

    gpus: tuple[tuple[int, float], ...]
    humps: tuple[tuple[int, tuple[Hump, ...]], ...]
    vcs: tuple[tuple[str, float], ...]
    days: tuple[float, ...]
    dispersion: float = 15.0
    sweep_share: float = 0.15
    users_per_vc: int = 20


ANY = 1 << 30
LONGEST_S = 53 * 86_400.0  # the longest job of the Philly log ran for 53 days

# Helios, Venus: the share of each hour's arrivals, from midnight.
HOURS = (
    *(0.037, 0.027, 0.025, 0.016, 0.011, 0.009, 0.008, 0.009, 0.016, 0.033, 0.054, 0.061),
    *(0.049, 0.054, 0.065, 0.069, 0.072, 0.072, 0.053, 0.055, 0.056, 0.057, 0.048, 0.043),
)
# Monday to Sunday. Philly's own; in Helios a day of the weekend has 0.6 of a working day's jobs.
PHILLY_DAYS = (0.123, 0.152, 0.163, 0.184, 0.206, 0.087, 0.085)
HELIOS_DAYS = (0.161, 0.161, 0.161, 0.161, 0.161, 0.0975, 0.0975)

# Philly. One GPU: the log's short hump of 65 s, and three more chosen here so that all sizes
# together have the log's p10, p50, p90, p95, p99 and mean. More GPUs: two humps fitted to 2-4, to 8
# and to more, the longer one (for 8 the shorter) moved here so that each size has the log's mean.
PHILLY_HUMPS = (
    (1, ((0.190, 4.17, 0.18), (0.587, 6.91, 1.46), (0.174, 8.73, 0.30), (0.049, 11.08, 1.03))),
    (2, ((0.49, 3.32, 0.94), (0.51, 9.07, 2.06))),
    (4, ((0.49, 3.32, 0.94), (0.51, 10.21, 2.06))),
    (8, ((0.69, 8.48, 2.60), (0.31, 12.25, 0.63))),
    (16, ((0.50, 6.31, 2.32), (0.50, 11.94, 0.99))),
    (ANY, ((0.50, 6.31, 2.32), (0.50, 10.38, 0.99))),
)
PHILLY_GPUS = ((1, 0.932), (2, 0.022), (4, 0.023), (8, 0.020), (16, 0.0024), (32, 0.0008))
# Half of Philly's rows come from one virtual cluster; the other shares were chosen here.
PHILLY_VCS = (
    *(("vc0", 0.50), ("vc1", 0.14), ("vc2", 0.09), ("vc3", 0.07), ("vc4", 0.05), ("vc5", 0.04)),
    *(("vc6", 0.03), ("vc7", 0.02), ("vc8", 0.02), ("vc9", 0.01), ("vc10", 0.01)),
    *(("vc11", 0.005), ("vc12", 0.005), ("vc13", 0.005), ("vc14", 0.005)),
)

_PHILLY = Profile(PHILLY_GPUS, PHILLY_HUMPS, PHILLY_VCS, PHILLY_DAYS)

# Of the profiles below, mean and median duration and the mean gang are the published ones; the
# weight of the early failures is the share of failed jobs; the rest was chosen here to meet these.
PROFILES = {
    "philly": _PHILLY,
    # Gavel's generator: Philly's durations by size, but far more large gangs.
    "philly-multi": _PHILLY._replace(
        gpus=((1, 0.69), (2, 0.03), (4, 0.13), (8, 0.13), (16, 0.02), (32, 0.006))
    ),
    "muri2": _PHILLY._replace(
        gpus=((1, 0.41), (2, 0.03), (4, 0.16), (8, 0.32), (16, 0.07), (32, 0.01))
    ),
    "helios-earth": Profile(
        gpus=((1, 0.80), (2, 0.05), (4, 0.055), (8, 0.075), (16, 0.015), (32, 0.005)),
        humps=((ANY, ((0.13, 3.40, 1.00), (0.87, 5.887, 2.389))),),
        vcs=(
            *(("vc0", 0.30), ("vc1", 0.18), ("vc2", 0.14), ("vc3", 0.10), ("vc4", 0.08)),
            *(("vc5", 0.07), ("vc6", 0.05), ("vc7", 0.04), ("vc8", 0.03), ("vc9", 0.01)),
        ),
        days=HELIOS_DAYS,
    ),
    # Seren: swarms of small evaluation jobs beside few very large training runs.
    "acme": Profile(
        gpus=(
            *((1, 0.6296), (2, 0.06), (4, 0.06), (8, 0.185), (16, 0.03), (32, 0.018)),
            *((64, 0.0105), (128, 0.0046), (256, 0.0014), (512, 0.0006), (1024, 0.0003)),
        ),
        humps=((ANY, ((0.43, 3.40, 1.00), (0.57, 6.345, 1.7066))),),
        vcs=(("pretrain", 0.05), ("evaluate", 0.75), ("finetune", 0.12), ("debug", 0.08)),
        days=HELIOS_DAYS,
    ),
    # Gangs as in the complete log of 2023: 98.9 % of one GPU, 0.6 % of eight.
    "pai": Profile(
        gpus=((1, 0.989), (2, 0.003), (4, 0.002), (8, 0.006)),
        humps=((ANY, ((0.25, 4.00, 1.00), (0.75, 6.967, 1.895))),),
        vcs=(("serving", 0.35), ("search", 0.25), ("ads", 0.25), ("research", 0.15)),
        days=HELIOS_DAYS,
        users_per_vc=50,
    ),
}

# The models that a job of so many GPU-hours trains (Pollux, OSDI 2021, table 1 and section 5.2).
MODELS = (
    (1.0, ("cifar10", "ncf")),
    (10.0, ("bert", "deepspeech2")),
    (100.0, ("yolov3",)),
    (float("inf"), ("resnet50",)),
)
