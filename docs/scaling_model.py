"""How fast synchronous training is on 8 to 4,096 GPUs, from four figures that one machine and one cable give.

    python docs/scaling_model.py --step-ms 120 --gradient-mb 102 --network-gbit 100

It needs Python and nothing else. `docs/scaling.md` says what it computes, and where that comes from.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import sys
from collections.abc import Sequence

GPU_COUNTS = (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
# Of what is sent in half precision; and what a step of training may lose before the tables call it lost.
HALF = 0.5
GOOD_EFFICIENCY = 0.9


@dataclasses.dataclass(frozen=True)
class Link:
    """What connects two ends.

    Args:
        latency_seconds: from sending a small message to having it, software included.
        bytes_per_second: of a long message, in one direction.
    """

    latency_seconds: float
    bytes_per_second: float

    def __post_init__(self) -> None:
        if not (self.latency_seconds >= 0 and math.isfinite(self.latency_seconds)):
            raise ValueError(f"A latency must be at least 0. Received: {self.latency_seconds}.")
        if not (self.bytes_per_second > 0 and math.isfinite(self.bytes_per_second)):
            raise ValueError(f"A bandwidth must be above 0. Received: {self.bytes_per_second}.")


@dataclasses.dataclass(frozen=True)
class Cluster:
    """Machines of equally many GPUs.

    Args:
        gpus_per_machine: GPUs that `local` connects; one network card serves them all.
        local: between the GPUs of a machine.
        network: between machines.
    """

    gpus_per_machine: int
    local: Link
    network: Link

    def __post_init__(self) -> None:
        if self.gpus_per_machine < 1:
            raise ValueError(f"A machine must have at least 1 GPU. Received: {self.gpus_per_machine}.")


@dataclasses.dataclass(frozen=True)
class Step:
    """One step of training on one GPU.

    Args:
        compute_seconds: measured without communication, with the batch of one replica.
        gradient_bytes: four for each trainable parameter in float32.
        overlap: share of the computation during which gradients can already be sent. 0: they are sent when all are
            there, as TensorFlow does with one pack. With packs about half: the backward pass is two thirds of a step,
            and its first gradients are ready late.
        memory_bytes_per_second: of the GPU's memory, through which compression reads and writes gradients.
    """

    compute_seconds: float
    gradient_bytes: float
    overlap: float = 0.0
    memory_bytes_per_second: float = 1.5e12

    def __post_init__(self) -> None:
        if not self.compute_seconds > 0:
            raise ValueError(f"A step must take more than 0 seconds. Received: {self.compute_seconds}.")
        if not self.gradient_bytes >= 0:
            raise ValueError(f"Gradients must have at least 0 bytes. Received: {self.gradient_bytes}.")
        if not 0 <= self.overlap <= 1:
            raise ValueError(f"The overlap is a share from 0 to 1. Received: {self.overlap}.")


def ring_seconds(ends: int, num_bytes: float, link: Link) -> float:
    """All-reduce by a ring: 2 (n - 1) messages in a row, of a n-th of the bytes each."""
    if ends == 1:
        return 0.0
    return 2 * (ends - 1) * (link.latency_seconds + num_bytes / ends / link.bytes_per_second)


def tree_seconds(ends: int, num_bytes: float, link: Link) -> float:
    """All-reduce by two binary trees, each for half of the bytes, in pieces that follow one another.

    Up and down are log2(n) latencies each, and every byte passes a link once in either direction.
    """
    if ends == 1:
        return 0.0
    return 2 * math.ceil(math.log2(ends)) * link.latency_seconds + 2 * num_bytes / link.bytes_per_second


def all_reduce_seconds(gpus: int, num_bytes: float, cluster: Cluster, algorithm: str) -> float:
    """All-reduce over GPUs: inside each machine, then between machines.

    Each GPU of a machine sums its share of the bytes, the shares go over the network, and come back to all.

    Args:
        gpus: as many as one machine has, or fewer, or several machines full.
        num_bytes: of all gradients.
        cluster: what connects them.
        algorithm: "ring", "tree", or "best" of the two; between machines. Inside it is always a ring.
    """
    if gpus < 1:
        raise ValueError(f"There must be at least 1 GPU. Received: {gpus}.")
    inside = min(gpus, cluster.gpus_per_machine)
    if gpus % inside:
        raise ValueError(f"{gpus} GPUs don't fill machines of {cluster.gpus_per_machine}.")
    machines = gpus // inside
    ring = ring_seconds(machines, num_bytes, cluster.network)
    tree = tree_seconds(machines, num_bytes, cluster.network)
    between = {"ring": ring, "tree": tree, "best": min(ring, tree)}
    if algorithm not in between:
        raise ValueError(f"The algorithm must be one of {', '.join(between)}. Received: {algorithm!r}.")
    return ring_seconds(inside, num_bytes, cluster.local) + between[algorithm]


def communication_seconds(gpus: int, step: Step, cluster: Cluster, algorithm: str, *, compressed: bool) -> float:
    """What reducing the gradients takes, in half precision or as they are."""
    if not compressed or gpus == 1:
        return all_reduce_seconds(gpus, step.gradient_bytes, cluster, algorithm)
    # float16 exchanges one number a tensor before, which is a latency; casting reads and writes memory on both sides.
    scales = all_reduce_seconds(gpus, 0.0, cluster, algorithm)
    cast = 2 * (1 + HALF) * step.gradient_bytes / step.memory_bytes_per_second
    return scales + cast + all_reduce_seconds(gpus, HALF * step.gradient_bytes, cluster, algorithm)


def step_seconds(
    gpus: int,
    step: Step,
    cluster: Cluster,
    algorithm: str = "best",
    *,
    compressed: bool = False,
    accumulation: int = 1,
) -> float:
    """Time of a step, averaged where gradients are accumulated over several and then reduced once."""
    if accumulation < 1:
        raise ValueError(f"Gradients are accumulated over at least 1 step. Received: {accumulation}.")
    sending = communication_seconds(gpus, step, cluster, algorithm, compressed=compressed)
    seen = max(0.0, sending - step.overlap * step.compute_seconds)
    return step.compute_seconds + seen / accumulation


def efficiency(gpus: int, step: Step, cluster: Cluster, algorithm: str = "best", **how: int | bool) -> float:
    """Share of the time that is computation: examples a second a GPU, of what one GPU alone reaches."""
    return step.compute_seconds / step_seconds(gpus, step, cluster, algorithm, **how)


def least_accumulation(gpus: int, step: Step, cluster: Cluster, *, compressed: bool = False) -> int:
    """Steps to accumulate over for the efficiency that is called good."""
    sending = communication_seconds(gpus, step, cluster, "best", compressed=compressed)
    seen = max(0.0, sending - step.overlap * step.compute_seconds)
    most = step.compute_seconds * (1 / GOOD_EFFICIENCY - 1)
    # A rounding error is no reason for another step.
    return max(1, math.ceil(seen / most - 1e-9))


def table(step: Step, cluster: Cluster, counts: Sequence[int]) -> list[str]:
    """The lines of a Markdown table: milliseconds of sending, and efficiencies in per cent."""
    heading = (
        "GPUs",
        "ring ms",
        "tree ms",
        "efficiency",
        "float16",
        "accumulate 4",
        "both",
        f"accumulate for {GOOD_EFFICIENCY:.0%}",
    )
    lines = ["| " + " | ".join(heading) + " |", "|" + "---:|" * len(heading)]
    for gpus in counts:
        sending = [all_reduce_seconds(gpus, step.gradient_bytes, cluster, name) * 1e3 for name in ("ring", "tree")]
        shares = [
            efficiency(gpus, step, cluster, compressed=compressed, accumulation=accumulation)
            for accumulation, compressed in ((1, False), (1, True), (4, False), (4, True))
        ]
        cells = [
            f"{gpus:,}",
            *(f"{milliseconds:,.1f}" for milliseconds in sending),
            *(f"{share:.0%}" for share in shares),
            str(least_accumulation(gpus, step, cluster)),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def advice(step: Step, cluster: Cluster, counts: Sequence[int]) -> list[str]:
    """Sentences: what pays, and from how many GPUs on."""
    lines = []
    good = [gpus for gpus in counts if efficiency(gpus, step, cluster) >= GOOD_EFFICIENCY]
    if len(good) == len(counts):
        return [f"Up to {counts[-1]:,} GPUs, at least {GOOD_EFFICIENCY:.0%} of the time is computation as it is."]
    first_bad = next(gpus for gpus in counts if gpus not in good)
    lines.append(f"From {first_bad:,} GPUs on, less than {GOOD_EFFICIENCY:.0%} of the time is computation.")
    gains = {
        gpus: step_seconds(gpus, step, cluster) / step_seconds(gpus, step, cluster, compressed=True) for gpus in counts
    }
    best = max(gains, key=lambda gpus: gains[gpus])
    if gains[best] >= 1.05:
        first = next(gpus for gpus in counts if gains[gpus] >= 1.05)
        lines.append(
            f"gradient_compression pays from {first:,} GPUs on (a step is at least 5 % faster), up to "
            f"{gains[best]:.2f} times at {best:,}."
        )
    else:
        lines.append("gradient_compression gains less than 5 % anywhere: it is latency that is waited for, or nothing.")
    most = least_accumulation(counts[-1], step, cluster)
    half = least_accumulation(counts[-1], step, cluster, compressed=True)
    lines.append(
        f"At {counts[-1]:,} GPUs, gradients accumulated over {most} steps ({half} with float16) bring back "
        f"{GOOD_EFFICIENCY:.0%}; the global batch grows as much."
    )
    return lines


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints a table for the figures of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    number = {"type": float, "metavar": "X"}
    parser.add_argument("--step-ms", default=120.0, help="a step on one GPU, measured (default: 120)", **number)
    parser.add_argument(
        "--gradient-mb", default=102.0, help="4 bytes a parameter (default: 102, a ResNet-50)", **number
    )
    parser.add_argument("--network-gbit", default=25.0, help="between machines, Gbit a second (default: 25)", **number)
    parser.add_argument("--network-latency-us", default=25.0, help="of a small message (default: 25, TCP)", **number)
    parser.add_argument("--local-gbyte", default=200.0, help="between GPUs, GB a second (default: 200)", **number)
    parser.add_argument("--local-latency-us", default=5.0, help="between GPUs (default: 5)", **number)
    parser.add_argument("--overlap", default=0.0, help="share of a step that hides sending (default: 0)", **number)
    parser.add_argument("--gpus-per-machine", type=int, default=8, metavar="N", help="default: 8")
    parser.add_argument("--gpus", type=int, nargs="+", default=GPU_COUNTS, metavar="N", help="default: 8 to 4,096")
    options = parser.parse_args(arguments)
    try:
        cluster = Cluster(
            options.gpus_per_machine,
            Link(options.local_latency_us / 1e6, options.local_gbyte * 1e9),
            Link(options.network_latency_us / 1e6, options.network_gbit * 1e9 / 8),
        )
        step = Step(options.step_ms / 1e3, options.gradient_mb * 1e6, options.overlap)
        counts = sorted(set(options.gpus))
        lines = [*table(step, cluster, counts), "", *advice(step, cluster, counts)]
    except ValueError as error:
        parser.error(str(error))
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
