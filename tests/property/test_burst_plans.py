"""Every figure of a burst plan, calculated once more from the plan and the profile alone."""

import json
import tempfile
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from rota.burst.planner.costs import Costs, Network
from rota.burst.planner.frontier import Frontier
from rota.burst.planner.plan import Group
from rota.cli.burst import burst
from support.layers import graph

GRAPHS = ("ab", "ab bc cd", "ab bc cd de", "ab ac bd cd", "ab ac bd cd de")
SLOW_LINKS = Network(1e8, 1e-4)  # reductions are long, and are worth hiding


def near(value):
    return pytest.approx(value, rel=1e-9)


class ByHand:
    """A step by plain sums over the layers of a graph, on GPUs from the first."""

    def __init__(self, model, batch, network, groups):
        self.model, self.batch, self.network, self.groups = model, batch, network, groups

    def compute_s(self, at):
        samples = self.batch // self.groups[at].size
        [time] = [t for t in self.model.layers[at].times if t.batch == samples]
        return time.forward_s, time.backward_s

    def reduce_s(self, at):
        size = self.groups[at].size
        held = self.model.layers[at].parameters * self.model.bytes_per_value
        return 2 * (size - 1) / size * held / self.network.bandwidth_bytes_s

    def pass_s(self, source, taker):
        """Seconds of a transfer in one direction."""
        few, many = sorted((self.groups[source].size, self.groups[taker].size))
        if few == many:
            return 0.0
        values = self.model.layers[source].output_values * self.model.bytes_per_value
        # GPUs of the smaller group keep what they can; each other one needs its whole part.
        lacks = values * self.batch * max(1 / few - 1 / many, 1 / many)
        return lacks / self.network.bandwidth_bytes_s + self.network.latency_s

    def plain(self):
        """Seconds and GPU-seconds of a step in which nothing runs beside anything."""
        step_s = gpu_time_s = 0.0
        for at, group in enumerate(self.groups):
            alone_s = sum(self.compute_s(at)) + self.reduce_s(at)
            step_s, gpu_time_s = step_s + alone_s, gpu_time_s + alone_s * group.size
        for source, taker in self.model.edges:
            moved_s = 2 * self.pass_s(source, taker)
            step_s, gpu_time_s = step_s + moved_s, gpu_time_s + moved_s * self.groups[taker].size
        return step_s, gpu_time_s

    def overlapped(self):
        """The same of layers in a row whose reductions run beside the backward pass.

        Reductions go one after another on each GPU, and wait for transfers.
        """
        now, busy, moves, ready = 0.0, [], [], []

        def works(seconds, *groups):
            nonlocal now
            busy.append((now, now + seconds, max(group.size for group in groups)))
            now += seconds
            return busy[-1]

        last = len(self.groups) - 1
        for at, group in enumerate(self.groups):
            works(self.compute_s(at)[0], group)
            if at < last:
                moves.append(works(self.pass_s(at, at + 1), group, self.groups[at + 1]))
        for at in range(last, -1, -1):
            ready.append((works(self.compute_s(at)[1], self.groups[at])[1], at))
            if at:
                moves.append(works(self.pass_s(at - 1, at), self.groups[at - 1], self.groups[at]))
        free = [0.0] * max(group.size for group in self.groups)
        for end_s, at in ready:
            size, left = self.groups[at].size, self.reduce_s(at)
            if not left:
                continue
            start_s = time = max(end_s, *free[:size])
            # A transfer on any GPU of the group holds the reduction up: both begin with GPU 0.
            for begin, end, _ in sorted(moves):
                if end <= time or begin - time >= left:
                    continue
                left -= max(0.0, begin - time)
                time = max(time, end)
            time += left
            free[:size] = [time] * size
            busy.append((start_s, time, size))
        step_s = max(end for _, end, _ in busy)
        gpu_time_s = 0.0
        for gpu in range(len(free)):
            at = 0.0
            for begin, end, size in sorted(busy):
                if gpu < size and end > at:
                    gpu_time_s += end - max(begin, at)
                    at = end
        return step_s, gpu_time_s

    def fullest_bytes(self):
        """Bytes on the GPU that holds most."""
        model = self.model
        held = [
            layer.parameters * model.bytes_per_parameter
            + layer.activation_values * model.bytes_per_value * self.batch / group.size
            for layer, group in zip(model.layers, self.groups, strict=True)
        ]
        return max(
            sum(h for h, g in zip(held, self.groups, strict=True) if g.first <= gpu < g.end)
            for gpu in range(max(group.end for group in self.groups))
        )


@settings(max_examples=20, deadline=None)
@given(st.sampled_from(GRAPHS), st.integers(0, 10_000), st.sampled_from([2, 3, 4]))
def test_every_plan_costs_what_its_layers_and_transfers_cost(edges, seed, gpus):
    model = graph(edges, seed)
    costs = Costs(model, 12, gpus, SLOW_LINKS)
    plain, overlapped = Frontier(costs, overlap=False), Frontier(costs)
    for point in (*plain.points, *overlapped.points, *overlapped.baselines):
        own = ByHand(model, 12, SLOW_LINKS, point.plan.groups)
        assert point.plan.memory_bytes == near(own.fullest_bytes())
        alone = plain.timed(point.plan)
        if any(group.first for group in point.plan.groups):
            continue  # branches side by side: timelines have tests of their own
        assert (alone.step_s, alone.gpu_time_s) == near(own.plain())
        assert (point.plan.step_s, point.plan.gpu_time_s) == near(own.plain())
        if point not in plain.points and len(model.edges) == len(model.layers) - 1:
            assert (point.step_s, point.gpu_time_s) == near(own.overlapped())


@settings(max_examples=10, deadline=None)
@given(st.sampled_from(GRAPHS[:3]), st.integers(0, 10_000))
def test_the_command_tells_what_the_plan_costs(edges, seed):
    model = graph(edges, seed)
    with tempfile.TemporaryDirectory() as folder:
        profile = Path(folder) / "invented.json"
        profile.write_text(json.dumps(model.as_json()))
        links = ["--bandwidth", "0.1", "--latency", "100"]
        args = ["plan", str(profile), "--gpus", "6", *links, "--json"]
        told = json.loads(CliRunner().invoke(burst, args, catch_exceptions=False).output)
    costs = Costs(model, 12, 6, SLOW_LINKS)
    one_s = sum(sum(costs.compute_s(at, 1)) for at in range(len(model.layers)))
    assert told["one_gpu_time_s"] == near(one_s)
    known = [(told["plans"]["chosen"], [layer["gpus"] for layer in told["layers"]])]
    known += [(base, [base["gpus"]] * len(model.layers)) for base in told["data_parallel"]]
    for figures, sizes in known:
        groups = [Group(0, size) for size in sizes]
        own = ByHand(model, 12, SLOW_LINKS, groups)
        assert (figures["step_s"], figures["gpu_time_s"]) == near(own.plain())
        both = (figures["overlapped_step_s"], figures["overlapped_gpu_time_s"])
        assert both == near(own.overlapped())
        assert figures["memory_bytes"] == near(own.fullest_bytes())
        assert figures["gpus"] == max(sizes)
    ends = [span["end_s"] for span in told["timeline"]]
    assert max(ends) == near(told["plans"]["chosen"]["overlapped_step_s"])
    idle_s = sum(end - start for gaps in told["gaps"] for start, end in gaps)
    busy_s = 6 * max(ends) - idle_s
    assert busy_s == near(told["plans"]["chosen"]["overlapped_gpu_time_s"])
