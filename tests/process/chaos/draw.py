"""What a run of the chaos test does, drawn from a seed: jobs, what their users want, and faults."""

import random
from pathlib import Path
from typing import Any, NamedTuple

PROGRAMS = Path(__file__).parents[1] / "scripts" / "chaos"

# Policies, with settings under which much happens in a minute.
POLICIES: dict[str, dict[str, str]] = {
    "fifo-backfill": {},
    "gandiva": {"quantum_s": "0.5", "trial_s": "1.0", "idle_s": "1.0", "stay_s": "1.0"},
    "tiresias": {"thresholds": "1", "promote_knob": "2", "min_run_time_s": "0"},
    "elastic": {"look_s": "0.5", "threshold": "0.01"},
    "pollux": {"interval_s": "1.0", "restart_s": "1.0", "horizon_s": "30.0"},
    "las": {"quantum_s": "0.7"},
    "round-robin": {"quantum_s": "0.7"},
    "max-min-fairness": {"round_s": "1.0"},
    "optimus": {"every_s": "1.0"},
    "tiresias-gittins": {"thresholds": "1", "promote_knob": "2", "min_samples": "1"},
    "smallest-first": {},
    "yarn-cs": {},
}

# Points at which a party can be stopped (``scripts/stops``), to be killed there or to go on.
POINTS = {
    "controller": [
        *("answered-before", "answered-after", "write_down-before", "write_down-after"),
        *("dispatch-before", "dispatch-after", "pass_on-before", "tell_drop-before"),
        *("submit_sweep-after", "submit_trial-before", "submit_trial-after"),
    ],
    "agent": [
        *("suspend-before", "suspend-after", "suspended-before", "suspended-after"),
        *("resume-before", "resume-after", "resumed-after"),
        *("leave_processes-before", "leave_processes-after", "spill-before", "spill-after"),
        *("draft-before", "draft-after", "moved-before", "moved-after", "verify-after"),
        *("vacate-before", "describe-after", "fetch_state-after", "put_in_place-before"),
        *("settle-before", "settle-after", "fork-before", "fork-after", "came-before"),
        *("came-after", "drop-before", "tune-before", "tuned-before"),
    ],
}


class Job(NamedTuple):
    """A job or a search. ``fields`` are those of a job file, without what the run adds.

    ``code`` is what the program exits with (below 0: the signal that it dies of), None if it has
    no end. ``draw`` says how a training's batches are drawn, "" for what trains nothing.
    """

    name: str
    kind: str
    program: str  # the command, with {programs} for the folder of the programs
    fields: dict[str, Any]
    code: int | None = 0
    steps: int = 0
    draw: str = ""
    own: bool = False  # it goes on from checkpoints of its own

    @property
    def gpus(self) -> Any:
        """The size of its gang, or the range of sizes."""
        return self.fields["resources"]["gpus"]

    @property
    def elastic(self) -> bool:
        """Whether its gang may have several sizes."""
        return isinstance(self.gpus, str)


class Move(NamedTuple):
    """What happens once the run is ``at_s`` seconds old.

    ``submit``, ``suspend``, ``resume``, ``cancel``: by a user, of the job ``what``. ``kill``,
    ``pause``: of the parties ``what``; pauses, and the time until a killed controller comes back,
    last ``for_s``. ``arm``: ``what`` is a party and a point; the party is killed there, with the
    others that follow, or goes on if ``for_s`` is above 0. ``interrupt``: SIGTERM to the
    controller. ``down``: `rota down`, and up again.
    """

    at_s: float
    do: str
    what: tuple[str, ...]
    for_s: float = 0.0


class Plan(NamedTuple):
    """A whole run."""

    seed: int
    seconds: float
    policy: str
    nodes: int
    gpus: int
    host_memory: str
    jobs: tuple[Job, ...]
    moves: tuple[Move, ...]

    def __str__(self) -> str:
        cluster = f"{self.nodes} nodes of {self.gpus} slots, host memory {self.host_memory}"
        lines = [f"seed {self.seed}, {self.seconds:g} s, policy {self.policy}, {cluster}"]
        lines += [f"  {job.name}: {job.program} {job.fields}" for job in self.jobs]
        lines += [f"  {m.at_s:6.2f} {m.do} {' '.join(m.what)} {m.for_s:.2f}" for m in self.moves]
        return "\n".join(lines)


# -- jobs ------------------------------------------------------------------------------------------


def _steps(r: random.Random) -> int:
    return r.choice([10, 30, 60, 120])


def _training(r: random.Random, name: str, draw: str, gpus: Any = 1, more: str = "") -> Job:
    steps = _steps(r)
    program = f"python {{programs}}/train.py --draw {draw} --steps {steps} --pace 0.02{more}"
    return Job(name, "", program, {"resources": {"gpus": gpus}}, steps=steps, draw=draw)


def _trained(r: random.Random, name: str, most: int) -> Job:
    return _training(r, name, "stream")


def _checkpointed(r: random.Random, name: str, most: int) -> Job:
    return _training(r, name, "step", more=f" --checkpoint-every {r.choice([1, 7, 20])}")


def _gang(r: random.Random, name: str, most: int) -> Job:
    return _training(r, name, r.choice(["stream", "loader"]), gpus=min(2, most))


def _elastic(r: random.Random, name: str, most: int) -> Job:
    return _training(r, name, "loader", gpus=f"1..{max(2, most)}")


def _adaptive(r: random.Random, name: str, most: int) -> Job:
    job = _training(r, name, "loader", gpus=f"1..{max(2, most)}", more=" --adapt")
    return job._replace(fields=job.fields | {"batch": {"mode": "adapt", "max_global": 48}})


def _opaque(r: random.Random, name: str, words: str = "", steps: int = 0, **more: Any) -> Job:
    """A program without the library: in the warm process, below a shell, or with two ranks."""
    steps = steps or _steps(r)
    program = f"python {{programs}}/program.py --steps {steps}{words}"
    program += r.choice(["", "", "; exit $?"])
    return Job(name, "", program, {"resources": {"gpus": 1}}, steps=steps)._replace(**more)


def _counts(r: random.Random, name: str, most: int) -> Job:
    job = _opaque(r, name)
    return job._replace(fields={"resources": {"gpus": r.choice([1, min(2, most)])}})


def _shell(r: random.Random, name: str, most: int) -> Job:
    code, steps = r.choice([0, 0, 3]), r.choice([5, 20, 60])
    program = f"bash {{programs}}/loop.sh {steps} 0.03 {code}"
    return Job(name, "", program, {"resources": {"gpus": 1}}, code=code, steps=steps)


def _deaf(r: random.Random, name: str, most: int) -> Job:
    return _opaque(r, name, " --deaf")


def _family(r: random.Random, name: str, most: int) -> Job:
    return _opaque(r, name, " --family")


def _hides(r: random.Random, name: str, most: int) -> Job:
    return _opaque(r, name, " --hide")


def _sessions(r: random.Random, name: str, most: int) -> Job:
    """Two trainings below one shell, each with a session of its own."""
    job = _training(r, name, "stream")
    return job._replace(program=f"PART=1 {job.program} & PART=2 {job.program} || exit 1; wait $!")


def _exits(r: random.Random, name: str, most: int) -> Job:
    code = r.choice([1, 7, 255])
    return _opaque(r, name, f" --exit {code}", steps=r.choice([1, 10]), code=code)


def _dies(r: random.Random, name: str, most: int) -> Job:
    signal = r.choice([6, 11, 15])
    job = _opaque(r, name, f" --die {signal}", steps=r.choice([1, 10]))
    return job._replace(code=128 + signal if ";" in job.program else -signal)


def _talks(r: random.Random, name: str, most: int) -> Job:
    return _opaque(r, name, f" --talk {r.choice([1, 100])}")


def _restarts(r: random.Random, name: str, most: int) -> Job:
    fields = {"resources": {"gpus": 1}, "suspend": "restart", "grace": "5s"}
    return _opaque(r, name, " --own", own=True, fields=fields)


def _endless(r: random.Random, name: str, most: int) -> Job:
    words = r.choice(["", " --deaf", " --family"])
    return _opaque(r, name, words, steps=-1, code=None)


def _limited(r: random.Random, name: str, most: int) -> Job:
    fields = {"resources": {"gpus": 1}, "time_limit": r.choice(["1s", "2s"])}
    return _opaque(r, name, r.choice(["", " --deaf"]), steps=-1, code=None, fields=fields)


def _sweep(r: random.Random, name: str, most: int) -> Job:
    steps, algorithm = r.choice([3, 15]), r.choice(["grid", "random"])
    sweep = {
        "metric": "gain",
        "goal": "maximize",
        "space": {"x": {"choice": [1.0, 2.0, 3.0, 4.0, 5.0]}},
        "algorithm": {"name": algorithm, "seed": r.randrange(100)},
        "max_trials": r.choice([2, 5]),
        "rungs": r.choice(["on", "off"]),
        "max_failures": 10_000,
    }
    program = f"python {{programs}}/trial.py --steps {steps}"
    return Job(name, "", program, {"resources": {"gpus": 1}, "sweep": sweep}, steps=steps)


# How likely each kind is, and who draws one.
KINDS = {
    "trained": (4, _trained),
    "checkpointed": (3, _checkpointed),
    "gang": (3, _gang),
    "elastic": (3, _elastic),
    "adaptive": (2, _adaptive),
    "counts": (2, _counts),
    "shell": (2, _shell),
    "deaf": (1, _deaf),
    "family": (2, _family),
    "hides": (1, _hides),
    "sessions": (0.5, _sessions),
    "exits": (1, _exits),
    "dies": (1, _dies),
    "talks": (1, _talks),
    "restarts": (3, _restarts),
    "endless": (1, _endless),
    "limited": (1, _limited),
    "sweep": (1, _sweep),
}


# -- what happens ----------------------------------------------------------------------------------


def _wishes(r: random.Random, job: Job, at_s: float, seconds: float) -> list[Move]:
    """What the user of a job wants of it after its submission."""
    moves = [Move(at_s, "submit", (job.name,))]
    if job.kind == "sweep":
        return moves
    wish = r.random()
    if job.code is None or wish < 0.1:
        moves.append(Move(at_s + r.uniform(0.0, seconds / 2), "cancel", (job.name,)))
    if 0.05 < wish < 0.35:
        for _ in range(r.choice([1, 1, 2])):
            at_s += r.uniform(0.0, 4.0)
            moves.append(Move(at_s, "suspend", (job.name,)))
            at_s += r.uniform(0.0, 4.0)
            moves.append(Move(at_s, "resume", (job.name,)))
    return moves


def _party(r: random.Random, nodes: int) -> str:
    """One of the parties; of many shims and workers, that at some part of the list of them."""
    kind = r.choices(
        ["controller", "agent", "zygote", "shim", "worker", "process", "sweep"],
        [4, 4, 3, 4, 3, 1, 1],
    )[0]
    if kind in ("agent", "zygote"):
        return f"{kind}:{r.randrange(nodes)}"
    return f"{kind}:{r.random():.3f}" if kind in ("shim", "worker", "process") else kind


def _fault(r: random.Random, at_s: float, nodes: int) -> Move:
    kind = r.choices(
        ["kill", "several", "node", "all", "pause", "arm", "interrupt", "down"],
        [10, 4, 0.7, 0.4, 3, 6, 1, 0.5],
    )[0]
    back_s = r.choice([0.0, r.uniform(0.0, 2.0)])
    if kind == "kill":
        return Move(at_s, "kill", (_party(r, nodes),), back_s)
    if kind == "several":
        parties = sorted({_party(r, nodes) for _ in range(r.choice([2, 3]))})
        return Move(at_s, "kill", tuple(parties), back_s)
    if kind == "node":
        return Move(at_s, "kill", (f"node:{r.randrange(nodes)}",), back_s)
    if kind == "all":
        return Move(at_s, "kill", ("all",), back_s)
    if kind == "pause":
        parties = ["controller", f"agent:{r.randrange(nodes)}", f"zygote:{r.randrange(nodes)}"]
        party = r.choice([*parties, f"shim:{r.random():.3f}"])
        return Move(at_s, "pause", (party,), r.uniform(0.1, 3.0))
    if kind == "arm":
        party = r.choice(["controller", "agent"])
        point = r.choice(POINTS[party])
        who = f"agent:{r.randrange(nodes)}" if party == "agent" else party
        others = [_party(r, nodes)] if r.random() < 0.4 else []
        goes_on_s = r.uniform(0.1, 1.0) if r.random() < 0.2 else 0.0
        return Move(at_s, "arm", (who, point, *others), goes_on_s)
    return Move(at_s, kind, (), back_s)


def draw(seed: int, seconds: float, policy: str | None = None, mix: tuple[str, ...] = ()) -> Plan:
    """The run of a seed: ``seconds`` long until the last fault, then all jobs come to their ends.

    ``mix`` names the kinds of jobs that may be drawn, by default all.
    """
    r = random.Random(seed)
    drawn = r.choice(list(POLICIES))
    policy = policy or drawn
    nodes, gpus = r.choice([1, 1, 2, 2, 3]), r.choice([1, 2, 2, 3])
    host_memory = r.choice(["1GiB", "1GiB", "0", "200KiB"])
    kinds = {name: weight for name, (weight, _) in KINDS.items() if not mix or name in mix}
    jobs: list[Job] = []
    moves: list[Move] = []
    at_s, gap_s = 0.0, 3.0 / min(4, nodes * gpus)
    while at_s < seconds:
        kind = r.choices(list(kinds), list(kinds.values()))[0]
        job = KINDS[kind][1](r, f"{kind}-{len(jobs)}", gpus)._replace(kind=kind)
        job.fields["priority"] = r.choice([20, 50, 50, 80])
        jobs.append(job)
        moves += _wishes(r, job, at_s, seconds)
        at_s += r.expovariate(1 / gap_s)
    at_s = 1.0
    while at_s < seconds:
        moves.append(_fault(r, at_s, nodes))
        at_s += r.expovariate(1 / 0.9)
    moves.sort(key=lambda move: move.at_s)
    kept = tuple(move for move in moves if move.at_s <= seconds)
    return Plan(seed, seconds, policy, nodes, gpus, host_memory, tuple(jobs), kept)
