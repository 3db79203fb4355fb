"""Data for the examples, made in seconds where it is not there yet, and their command line."""

from __future__ import annotations

import argparse
import concurrent.futures
import functools
import importlib.util
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

# Of the usual photo on the web; the two photos of scikit-learn have 640 by 427.
WIDTH, HEIGHT = 500, 375
# Packages whose docstrings are told apart: all are there where the examples run.
PACKAGES = ("keras", "numpy", "scipy", "sklearn")
# Less is a remark and not a text; a longer docstring becomes several texts.
FEWEST_WORDS, MOST_WORDS = 25, 150
# A reading each ten minutes.
READINGS_A_DAY = 144


def options(description: str | None) -> argparse.Namespace:
    """The command line that all examples have."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--epochs", type=int, default=5, metavar="N", help="how long to train (default: 5)")
    parser.add_argument(
        "--data",
        type=Path,
        default=Path(tempfile.gettempdir()) / "keras_turbo_examples",
        metavar="DIR",
        help="where data is kept once it is made (default: %(default)s)",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of weights and of orders (default: 0)")
    parser.add_argument("--quick", action="store_true", help="as little data as shows that it works")
    return parser.parse_args()


def photos(data: Path, number: int) -> Path:
    """Class folders of JPEGs: parts of the two photos of scikit-learn, from the upper or the lower half of each."""
    return _made_once(data / f"photos_{number}", functools.partial(_make_photos, number=number))


def _make_photos(folder: Path, number: int) -> None:
    from PIL import Image
    from sklearn.datasets import load_sample_images

    originals = dict(zip(("china", "flower"), map(Image.fromarray, load_sample_images().images), strict=True))
    classes = [(name, half) for name in originals for half in ("high", "low")]
    for name, half in classes:
        (folder / f"{name}_{half}").mkdir()

    def make(index: int) -> None:
        rng = np.random.default_rng(index)
        name, half = classes[index % len(classes)]
        size = np.array(originals[name].size)
        part = size * rng.uniform(0.35, 0.6)
        corner = (size - part) * rng.uniform([0, 0.5 * (half == "low")], [1, 0.5 + 0.5 * (half == "low")])
        crop = originals[name].resize((WIDTH, HEIGHT), Image.Resampling.BILINEAR, box=(*corner, *(corner + part)))
        # Noise, as a camera has it: without it, files would be smaller than those of photos.
        pixels = np.asarray(crop, np.int16) + rng.integers(-6, 6, (HEIGHT, WIDTH, 3), np.int16, endpoint=True)
        image = Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))
        image.save(folder / f"{name}_{half}" / f"{index:05d}.jpg", quality=90)

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        # Taking the results raises what a thread raised.
        list(pool.map(make, range(number)))


def docstrings(data: Path, number: int) -> Path:
    """Class folders of text files: pieces of docstrings, `number` of each package."""
    return _made_once(data / f"docstrings_{number}", functools.partial(_make_docstrings, number=number))


def _make_docstrings(folder: Path, number: int) -> None:
    for package in PACKAGES:
        (folder / package).mkdir()
        for index, text in zip(range(number), _pieces(package), strict=False):
            (folder / package / f"{index:05d}.txt").write_text(text, encoding="utf-8")


def _pieces(package: str) -> Iterator[str]:
    (root,) = importlib.util.find_spec(package).submodule_search_locations
    for path in sorted(Path(root).rglob("*.py")):
        source = path.read_text(encoding="utf-8", errors="ignore")
        for docstring in re.findall(r'^\s+[ru]?"""(.+?)"""', source, re.DOTALL | re.MULTILINE):
            words = docstring.split()
            for start in range(0, len(words) - FEWEST_WORDS, MOST_WORDS):
                yield " ".join(words[start : start + MOST_WORDS])


def weather(data: Path, number: int) -> Path:
    """A CSV file of a weather station, with days, seasons, fronts that pass and noise."""
    return _made_once(data / f"weather_{number}", functools.partial(_make_weather, number=number)) / "weather.csv"


def _make_weather(folder: Path, number: int) -> None:
    rng = np.random.default_rng(0)
    days = np.arange(number) / READINGS_A_DAY
    season, day = np.sin(2 * np.pi * days / 365), np.sin(2 * np.pi * days)
    front = _slow_noise(rng, number, 3 * READINGS_A_DAY)
    temperature = 10 - 10 * season - 4 * day * (1 + 0.3 * front) + 3 * front + rng.normal(0, 0.3, number)
    pressure = 990 + 8 * _slow_noise(rng, number, 3 * READINGS_A_DAY) - 4 * front
    humidity = np.clip(75 + 15 * day - 8 * front + rng.normal(0, 2, number), 5, 100)
    columns = {
        "pressure": pressure,
        "temperature": temperature,
        "saturation": 6.1 * np.exp(17.3 * temperature / (temperature + 237.3)),
        "dew_point": temperature - (100 - humidity) / 5,
        "humidity": humidity,
        "density": 100 * pressure / (287 * (temperature + 273.15)),
        "wind": np.abs(2 + 1.5 * _slow_noise(rng, number, READINGS_A_DAY // 4) + rng.normal(0, 0.5, number)),
    }
    table = np.stack(list(columns.values()), axis=1)
    np.savetxt(folder / "weather.csv", table, "%.3f", ",", header=",".join(columns), comments="")


def _slow_noise(rng: np.random.Generator, number: int, memory: int) -> np.ndarray:
    """Noise of mean 0 and deviation 1 that forgets within `memory` steps."""
    kernel = np.hanning(memory)
    return np.convolve(rng.normal(size=number + memory - 1), kernel, "valid") / np.sqrt((kernel**2).sum())


def customers(data: Path, number: int) -> Path:
    """A CSV file of a shop's customers, of whom some have left."""
    return _made_once(data / f"customers_{number}", functools.partial(_make_customers, number=number)) / "customers.csv"


def _make_customers(folder: Path, number: int) -> None:
    import pandas as pd

    rng = np.random.default_rng(0)
    visits = rng.poisson(6, number)
    table = pd.DataFrame(
        {
            "age": rng.integers(18, 90, number),
            "months": rng.gamma(2, 14, number).round(1),
            "visits": visits.astype(float),
            "spent": (visits * rng.gamma(3, 12, number)).round(2),
            "returned": rng.binomial(visits, 0.1).astype(float),
            "calls": rng.poisson(0.7, number).astype(float),
            "distance": rng.exponential(8, number).round(1),
            "member": rng.integers(0, 2, number),
            "newsletter": rng.integers(0, 2, number),
            "region": rng.choice(["coast", "east", "hills", "north", "south", "west"], number),
            "plan": rng.choice(["basic", "free", "full"], number, p=[0.3, 0.6, 0.1]),
            "device": rng.choice(["desktop", "laptop", "phone", "tablet"], number),
        }
    )
    score = 0.6 - 0.03 * table.months - 0.2 * table.visits + 0.5 * table.returned + 0.5 * table.calls
    score += 0.03 * table.distance - 0.7 * table.member - 0.3 * table.newsletter * (table.device == "phone")
    score += 0.8 * (table.age < 30) * (table.plan == "free") + 0.6 * table.region.isin(["east", "hills"])
    table["left"] = (rng.uniform(size=number) < 1 / (1 + np.exp(-score))).astype(int)
    table.to_csv(folder / "customers.csv", index=False)


def digits(quick: bool) -> np.ndarray:
    """The digits of scikit-learn, each also moved by a pixel: float32 of shape (number, 8, 8, 1), from 0 to 1."""
    from sklearn.datasets import load_digits

    images = load_digits().images[..., None].astype(np.float32) / 16
    if quick:
        return images[:128]
    return np.concatenate([np.roll(images, (y, x), (1, 2)) for y in (-1, 0, 1) for x in (-1, 0, 1)])


def _made_once(folder: Path, make: Callable[[Path], None]) -> Path:
    """A folder that a function fills where it is not there yet; it gets its name once it is complete."""
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        making = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        try:
            make(making)
            try:
                making.rename(folder)
            except OSError:
                # Another process may have been faster.
                if not folder.exists():
                    raise
        finally:
            shutil.rmtree(making, ignore_errors=True)
    return folder
