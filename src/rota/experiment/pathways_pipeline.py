"""A pipeline that one program drives, against torch's pipelining and one process (live).

Pathways (Barham et al., MLSys 2022, section 5.3) trains a decoder as pipelines whose throughput
equals that of one SPMD program. Here a small transformer of four blocks trains in 2 and 4 stages,
eight micro-batches in the order 1F1B, as in ``examples/rota_pipeline.py``: one program calls
functions on an island of `rota.flow`. Beside it the same model trains in as many gloo ranks of
``torch.distributed.pipelining`` (``Schedule1F1B``, ``ScheduleGPipe``, and ``Schedule1F1B`` whose
backwards compute their forwards again, as those of `rota.flow` do), in as many ranks of data
parallelism, and in one process. All take turns in each repeat. Ranks have their batches at hand,
while the program sends them to its stages.

Judged are the gradients of all three in fp64, and a training step in fp32, optimiser included, over
one of torch's pipelining.
"""

import os
import tempfile
from pathlib import Path

from rota.experiment.base import Figure, Outcome, over_seeds, ratios
from rota.experiment.runs.programs import Script, asked, started

NAME = "pathways-pipeline"
SEEDS = [1, 2, 3, 4, 5, 6, 7]  # repeats
STAGES = (2, 4)
MICRO = 8  # micro-batches of a step
STEPS = 20  # of each way in a repeat
MOST_OFF = 1e-12  # of the largest gradient, fixed beforehand,
MOST_OVER_TORCH = 1.1  # and of a step of torch's pipelining
FLOW, PLAIN, SPMD = "rota.flow", "one process", "data parallelism"
TORCH, GPIPE, AGAIN = "torch, 1F1B", "torch, GPipe", "torch, 1F1B, forwards computed again"
# Tokens a second of a pipeline of so many stages over those of one SPMD program, for a decoder of
# 3 billion parameters on 128 TPUs. Recollection of the paper's figures.
PUBLISHED = {4: 133.7 / 125.7}

WORK = """
import os, time
import torch
from torch.nn.functional import cross_entropy, gelu, layer_norm, scaled_dot_product_attention

WORDS, CONTEXT, WIDTH, HEADS, BLOCKS, BATCH = 128, 32, 64, 4, 4, 32
MICRO = int(os.environ["MICRO"])
SHAPES = ((WIDTH, 3 * WIDTH), (WIDTH, WIDTH), (WIDTH, 4 * WIDTH), (4 * WIDTH, WIDTH))
SIZES = tuple(rows * columns for rows, columns in SHAPES)
TABLE, HEAD = (WORDS + CONTEXT) * WIDTH, WIDTH * WORDS

def initial_weights(stages):
    sizes = [sum(SIZES) * BLOCKS // stages] * stages
    sizes[0] += TABLE
    sizes[-1] += HEAD
    torch.manual_seed(0)
    return list((0.1 * torch.randn(sum(sizes))).split(sizes))

def draw(number):
    torch.manual_seed(number)
    text = torch.randint(WORDS, (BATCH, CONTEXT + 1))
    return text[:, :-1].contiguous(), text[:, 1:].contiguous()

def blocks(w, x):
    for vector in w.view(-1, sum(SIZES)):
        parts = zip(vector.split(SIZES), SHAPES, strict=True)
        qkv, out, up, down = (part.view(shape) for part, shape in parts)
        heads = (layer_norm(x, (WIDTH,)) @ qkv).unflatten(-1, (3, HEADS, -1))
        mixed = scaled_dot_product_attention(*heads.permute(2, 0, 3, 1, 4), is_causal=True)
        x = x + mixed.transpose(1, 2).flatten(2) @ out
        x = x + gelu(layer_norm(x, (WIDTH,)) @ up) @ down
    return x

def first(w, characters):
    table = w[:TABLE].view(WORDS + CONTEXT, WIDTH)
    return blocks(w[TABLE:], table[characters] + table[WORDS:])

def words(w, x):
    return layer_norm(blocks(w[:-HEAD], x), (WIDTH,)) @ w[-HEAD:].view(WIDTH, WORDS)

def loss_of(found, targets):
    return cross_entropy(found.flatten(0, 1), targets.flatten()) / MICRO

def last(w, x, targets):
    return loss_of(words(w, x), targets)

def first_backward(w, characters, dy):
    w.requires_grad_()
    return torch.autograd.grad(first(w, characters), [w], dy)

def blocks_backward(w, x, dy):
    w.requires_grad_(), x.requires_grad_()
    return torch.autograd.grad(blocks(w, x), [w, x], dy)

def last_backward(w, x, targets):
    w.requires_grad_(), x.requires_grad_()
    loss = last(w, x, targets)
    return *torch.autograd.grad(loss, [w, x]), loss

def add(a, b):
    return a + b

def sgd(w, momentum, dw):
    momentum = 0.9 * momentum + dw
    return w - 0.1 * momentum, momentum

def timed(step, steps, begin, end):
    begin()
    began_s = time.perf_counter()
    for number in range(steps):
        step(*draw(number))
    end()
    return (time.perf_counter() - began_s) / steps
"""

CLIENT = """
import json, sys
import torch, work
from work import MICRO
from rota import flow

class Pipeline:
    def __init__(self, client, stages):
        self.slices = [client.slice(1) for _ in range(stages)]
        middle = stages - 2
        self.forward = self.compiled([work.first, *[work.blocks] * middle])
        backward = [work.first_backward, *[work.blocks_backward] * middle, work.last_backward]
        self.backward = self.compiled(backward)
        self.add, self.sgd = self.compiled([work.add] * stages), self.compiled([work.sgd] * stages)

    def compiled(self, functions):
        return [each.function(f) for each, f in zip(self.slices, functions, strict=False)]

    def put(self, weights):
        return [each.put(w) for each, w in zip(self.slices, weights, strict=True)]

    def put_batch(self, x, y):
        parts = [self.slices[0].put(part) for part in x.chunk(MICRO)]
        return parts + [self.slices[-1].put(part) for part in y.chunk(MICRO)]

    def gradients(self, *buffers):
        end = len(self.slices) - 1
        weights, targets = buffers[: end + 1], buffers[-MICRO:]
        x = [list(buffers[end + 1 : -MICRO]), *([] for _ in range(end))]
        y, dx, dw, loss = {}, {}, {}, None
        for tick in range(MICRO + end):
            for s in range(end):
                if 0 <= tick - s < MICRO:
                    y[s] = self.forward[s](weights[s], x[s][tick - s])
            for s in reversed(range(end + 1)):
                if (m := tick - end) >= 0:
                    given = dx[s + 1] if s < end else targets[m]
                    made, *more = self.backward[s](weights[s], x[s][m], given)
                    dw[s] = self.add[s](dw[s], made) if m else made
                    if s > 0:
                        dx[s] = more[0]
                    if s == end:
                        loss = self.add[s](loss, more[1]) if m else more[1]
                if s > 0 and 0 <= tick - s + 1 < MICRO:
                    x[s].append(y[s - 1].to(self.slices[s]))
        return loss, *(dw[s] for s in range(end + 1))

    def step(self, *buffers):
        n = len(self.slices)
        weights, momenta, batch = buffers[:n], buffers[n : 2 * n], buffers[2 * n :]
        loss, *dw = self.gradients(*weights, *batch)
        new = [self.sgd[s](weights[s], momenta[s], dw[s]) for s in range(n)]
        return loss, *(w for w, _ in new), *(momentum for _, momentum in new)

torch.set_num_threads(1)
with flow.local(int(sys.argv[1])) as client:
    pipeline = Pipeline(client, int(sys.argv[1]))
    gradients, step = client.program(pipeline.gradients), client.program(pipeline.step)
    weights = work.initial_weights(int(sys.argv[1]))
    state = pipeline.put(weights) + pipeline.put([torch.zeros_like(w) for w in weights])

    def train(x, y):
        global state
        _, *state = step(*state, *pipeline.put_batch(x, y))

    for line in sys.stdin:
        what, value = line.split()
        if what == "gradients":
            double = pipeline.put([w.double() for w in weights])
            _, *found = gradients(*double, *pipeline.put_batch(*work.draw(0)))
            torch.save(torch.cat([each.result() for each in found]), value)
            told = None
        else:
            told = work.timed(train, int(value), client.wait, client.wait)
        print(json.dumps(told), flush=True)
"""

RANK = """
import json, sys
import torch, torch.distributed as dist
import work
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.utils.checkpoint import checkpoint
from work import MICRO

rank, size = int(sys.argv[1]), int(sys.argv[2])
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{sys.argv[3]}", rank=rank, world_size=size)

class Stage(nn.Module):
    def __init__(self, w, again=False):
        super().__init__()
        self.w, self.again = nn.Parameter(w), again and rank < size - 1
        self.compute = work.first if rank == 0 else work.words if rank == size - 1 else work.blocks

    def forward(self, x):
        if self.again:
            return checkpoint(self.compute, self.w, x, use_reentrant=False)
        return self.compute(self.w, x)

class Pipelined:
    def __init__(self, schedule, dtype=torch.float, again=False):
        self.stage = Stage(work.initial_weights(size)[rank].to(dtype), again)
        stage = PipelineStage(self.stage, rank, size, torch.device("cpu"))
        self.schedule = schedule(stage, MICRO, loss_fn=work.loss_of, scale_grads=False)
        self.optimizer = torch.optim.SGD(self.stage.parameters(), lr=0.1, momentum=0.9)

    def backward(self, x, y):
        given = {"target": y, "losses": []} if rank == size - 1 else {}
        self.schedule.step(*[x] if rank == 0 else [], return_outputs=False, **given)

    def step(self, x, y):
        self.backward(x, y)
        self.optimizer.step()
        self.optimizer.zero_grad()

class Parallel:
    def __init__(self):
        self.w = nn.Parameter(torch.cat(work.initial_weights(size)))
        self.optimizer = torch.optim.SGD([self.w], lr=0.1, momentum=0.9)

    def step(self, x, y):
        parts = zip(x.chunk(MICRO)[rank::size], y.chunk(MICRO)[rank::size], strict=True)
        head = work.TABLE + 2 * sum(work.SIZES)
        for inputs, targets in parts:
            work.last(self.w[head:], work.first(self.w[:head], inputs), targets).backward()
        dist.all_reduce(self.w.grad)
        self.optimizer.step()
        self.optimizer.zero_grad()

ways = {
    "torch, 1F1B": Pipelined(Schedule1F1B),
    "torch, GPipe": Pipelined(ScheduleGPipe),
    "torch, 1F1B, forwards computed again": Pipelined(Schedule1F1B, again=True),
    "data parallelism": Parallel(),
}
for line in sys.stdin:
    what, value, *way = line.split(maxsplit=2)
    if what == "gradients":
        double = Pipelined(Schedule1F1B, torch.double)
        double.backward(*work.draw(0))
        torch.save(double.stage.w.grad, f"{value}{rank}")
        told = None
    else:
        told = work.timed(ways[way[0].strip()].step, int(value), dist.barrier, dist.barrier)
    print(json.dumps(told), flush=True)
"""

PLAIN_SCRIPT = """
import json, sys
import torch, work
from work import MICRO

torch.set_num_threads(1)

class Whole:
    def __init__(self, dtype=torch.float):
        self.w = torch.cat(work.initial_weights(2)).to(dtype).requires_grad_()
        self.optimizer = torch.optim.SGD([self.w], lr=0.1, momentum=0.9)

    def backward(self, x, y):
        head = work.TABLE + 2 * sum(work.SIZES)
        for inputs, targets in zip(x.chunk(MICRO), y.chunk(MICRO), strict=True):
            work.last(self.w[head:], work.first(self.w[:head], inputs), targets).backward()

    def step(self, x, y):
        self.backward(x, y)
        self.optimizer.step()
        self.optimizer.zero_grad()

whole = Whole()
for line in sys.stdin:
    what, value = line.split()
    if what == "gradients":
        double = Whole(torch.double)
        double.backward(*work.draw(0))
        own, stages = double.w.grad, int(value)
        ranks = torch.cat([torch.load(f"torch{rank}") for rank in range(stages)])
        told = [((each - own).abs().max() / own.abs().max()).item()
                for each in (torch.load("flow"), ranks)]
    else:
        told = work.timed(whole.step, int(value), int, int)
    print(json.dumps(told), flush=True)
"""


def run() -> Outcome:
    """Run the repeats. Raises SimulationError if a program fails."""
    figures: list[Figure] = []
    for stages in STAGES:
        with tempfile.TemporaryDirectory(prefix="rota-pathways-") as name:
            off, times_s = measured(Path(name), stages)
        figures += figures_of(stages, off, times_s)
    settings = {
        "stages": list(STAGES),
        "micro-batches": MICRO,
        "steps of a repeat": STEPS,
        "baseline": TORCH,
        "cores": os.cpu_count(),
    }
    return Outcome(NAME, SEEDS, settings, figures)


def measured(folder: Path, stages: int) -> tuple[dict[str, float], dict[str, list[float]]]:
    """How far gradients are off those of one process, and seconds of a step, repeat by repeat."""
    (folder / "work.py").write_text(WORK)
    scripts = [Script(CLIENT, (stages,)), Script(PLAIN_SCRIPT)]
    scripts += [Script(RANK, (rank, stages, folder / "meet")) for rank in range(stages)]
    with started(folder, scripts, {"MICRO": str(MICRO)}) as (client, plain, *ranks):
        asked(NAME, [client], "gradients flow")
        asked(NAME, ranks, "gradients torch")
        off = dict(zip((FLOW, TORCH), asked(NAME, [plain], f"gradients {stages}"), strict=True))
        turns = [(FLOW, [client], ""), (PLAIN, [plain], "")]
        turns += [(way, ranks, f" {way}") for way in (TORCH, GPIPE, AGAIN, SPMD)]
        for _, processes, way in turns:
            asked(NAME, processes, f"steps 3{way}")
        times_s: dict[str, list[float]] = {way: [] for way, _, _ in turns}
        for repeat in SEEDS:
            for name, processes, way in turns if repeat % 2 else reversed(turns):
                times_s[name].append(asked(NAME, processes, f"steps {STEPS}{way}"))
    return off, times_s


def figures_of(stages: int, off: dict[str, float], times_s: dict[str, list[float]]) -> list[Figure]:
    """The figures of so many stages, from what :func:`measured` returns."""
    many = f"{stages} stages"
    figures = [
        Figure(
            f"{many}, {way}: gradients off those of one process",
            "of the largest",
            None,
            None,
            each,
            0,
            MOST_OFF,
        )
        for way, each in off.items()
    ]
    of_torch = [1e3 * each for each in times_s[TORCH]]
    for way, each in times_s.items():
        beside = None if way == TORCH else of_torch
        in_ms = [1e3 * step_s for step_s in each]
        figures.append(over_seeds(f"{many}, {way}: a step", "ms", in_ms, baseline=beside))
    for way in (TORCH, GPIPE):
        over = ratios(times_s[FLOW], times_s[way])
        bounds = (0, MOST_OVER_TORCH)
        figures.append(
            over_seeds(f"{many}, a step over that of {way}", "times", over, bounds=bounds)
        )
    over = ratios(times_s[FLOW], times_s[AGAIN])
    figures.append(over_seeds(f"{many}, a step over that of {AGAIN}", "times", over))
    rate = ratios(times_s[SPMD], times_s[FLOW])
    name = f"{many}: tokens a second over those of {SPMD}"
    figures.append(over_seeds(name, "times", rate, published=PUBLISHED.get(stages)))
    return figures
