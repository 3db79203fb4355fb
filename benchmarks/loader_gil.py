"""How long Python's lock is held for an image, by which it is decided from how many cores on loaders are processes.

    python benchmarks/loader_gil.py

Each step is measured on photos, and on an image of 8 by 8 pixels, where hardly anything is left but what holds the lock
(Python itself, and copying between it and the libraries). So what that takes is a bound for how long the lock is held.
Then threads and processes load the same photos, as far as this machine has cores.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import _measure
import cv2
import numpy as np
import simplejpeg
from _photos import photo_folder
from PIL import Image

from keras_turbo.data.images import ImageOptions
from keras_turbo.data.settings import available_cores
from keras_turbo.data.sources.files import DecodedFiles, Files
from keras_turbo.data.sources.image_decoder import ImageDecoder
from keras_turbo.data.workers.decoding import CORES_OF_A_PROCESS, InProcesses

IMAGE_SIZE = (224, 224)
ROWS = 32


def source_of(paths: list[str], size: tuple[int, int]) -> DecodedFiles:
    return DecodedFiles(Files(paths, np.arange(len(paths)), None), ImageDecoder(ImageOptions(image_size=size)), {})


def microseconds(call: Callable[[], object], budget: float) -> float:
    """The least of several medians: other programs can only add to it."""
    medians = []
    for _ in range(5):
        times, end = [], time.perf_counter() + budget / 5
        while time.perf_counter() < end:
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)
        medians.append(statistics.median(times))
    return min(medians) * 1e6


def steps_of(paths: list[str], size: tuple[int, int], budget: float) -> dict[str, float]:
    """Microseconds of an image, step by step."""
    source = source_of(paths, size)
    data = source.read(0)
    pixels = simplejpeg.decode_jpeg(data, fastdct=True)
    positions = np.arange(ROWS) % len(paths)
    rows = [[np.empty((*size, 3), np.uint8), np.empty((), np.int64)] for _ in positions]
    steps = {
        "read": microseconds(lambda: source.read(0), budget),
        "decode": microseconds(lambda: simplejpeg.decode_jpeg(data, fastdct=True), budget),
        "resize": microseconds(lambda: cv2.resize(pixels, size, interpolation=cv2.INTER_LINEAR), budget),
    }
    whole = microseconds(lambda: source.load(positions, None, rows), budget) / ROWS
    return {**steps, "the rest": max(whole - sum(steps.values()), 0.0), "all": whole}


def rate(source: DecodedFiles | InProcesses, threads: int, seconds: float) -> float:
    """Images a second of several threads that load."""
    import concurrent.futures

    rows = [
        [[np.empty((*IMAGE_SIZE, 3), np.uint8), np.empty((), np.int64)] for _ in range(ROWS)] for _ in range(threads)
    ]
    order = np.random.default_rng(0).permutation(len(source))

    def load(thread: int) -> int:
        done = 0
        while time.perf_counter() < end:
            positions = np.take(order, np.arange(done, done + ROWS) * threads + thread, mode="wrap")
            source.load(positions, None, rows[thread])
            done += ROWS
        return done

    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        end = time.perf_counter() + 1.0  # processes are started meanwhile, at least begin to
        list(pool.map(load, range(threads)))
        start = time.perf_counter()
        end = start + seconds
        done = sum(pool.map(load, range(threads)))
        return done / (time.perf_counter() - start)


def asking_microseconds(paths: list[str], size: tuple[int, int]) -> float:
    """What this process does for an image that another one loads: of its own time, in microseconds."""
    source = InProcesses(source_of(paths, size), 1, 1)
    rows = [[np.empty((*size, 3), np.uint8), np.empty((), np.int64)] for _ in range(ROWS)]
    positions = np.arange(ROWS) % len(paths)
    for _ in range(5):
        source.load(positions, None, rows)
    start, calls = time.process_time(), 50
    for _ in range(calls):
        source.load(positions, None, rows)
    return (time.process_time() - start) / calls / ROWS * 1e6


def pixels_are_equal(paths: list[str]) -> bool:
    """Whether another process makes the same of a file; raises ResultsDifferError if not."""
    positions = np.arange(min(ROWS, len(paths)))
    made = []
    for source in (source_of(paths, IMAGE_SIZE), InProcesses(source_of(paths, IMAGE_SIZE), 1, 1)):
        rows = [[np.zeros((*IMAGE_SIZE, 3), np.uint8), np.empty((), np.int64)] for _ in positions]
        source.load(positions, None, rows)
        made.append(np.stack([row[0] for row in rows]))
    if not (made[0].any() and np.array_equal(*made)):
        raise _measure.ResultsDifferError("Pixels of threads and processes differ.")
    return True


def main() -> None:
    options = _measure.parser(__doc__ or "", "loader_gil", rounds=1).parse_args()
    _measure.hide_gpus()
    number, budget = (32, 0.1) if options.quick else (256, 2.0)
    with photo_folder(None, number) as folder, tempfile.TemporaryDirectory() as tiny:
        photos = sorted(str(path) for path in folder.glob("*/*.jpg"))
        dots = [str(Path(tiny) / f"{index}.jpg") for index in range(len(photos))]
        for path in dots:
            Image.new("RGB", (8, 8)).save(path)
        of_photo, held = steps_of(photos, IMAGE_SIZE, budget), steps_of(dots, (8, 8), budget)
        of_photo["ask another"], held["ask another"] = (
            asking_microseconds(photos, IMAGE_SIZE),
            asking_microseconds(dots, (8, 8)),
        )
        print(f"{'step':12} {'µs a photo':>12} {'the lock is held at most, µs':>30}")
        for step, time_of in of_photo.items():
            print(f"{step:12} {time_of:12.0f} {held[step]:30.1f}")
        print(f"Threads that hold the lock all the time: {of_photo['all'] / held['all']:.0f}.")
        print(
            f"Half of that: {of_photo['all'] / held['all'] / 2:.0f}. "
            f"Cores that one process serves: {CORES_OF_A_PROCESS}."
        )
        cores, rates = available_cores(), {}
        for threads in sorted({1, 2, 4, cores, 2 * cores}):
            if threads <= 2 * cores:
                rates[f"{threads} threads"] = rate(source_of(photos, IMAGE_SIZE), threads, budget)
        for processes in sorted({1, 2, cores}):
            several = InProcesses(source_of(photos, IMAGE_SIZE), processes, -(-2 * cores // processes))
            rates[f"{processes} processes"] = rate(several, 4 * cores, budget)
        for kind, images in rates.items():
            print(f"{kind}: {images:,.0f} images a second")
        checks = {"pixels of threads and processes equal": pixels_are_equal(photos)}
    more = {"microseconds of a photo": of_photo, "the lock is held at most": held, "images a second": rates}
    _measure.finish(options, {"photos": number, "rounds": 1}, [], [], checks, more)


if __name__ == "__main__":
    main()
