"""Attacks on what must not be lost: kills, damage, hostile files, and Ctrl-C. Prints how many of each were survived.

    python benchmarks/attack.py

Real trainings are killed at random moments (and in system calls, where strace may attach) until they have come to their
end, which must be that of a training nobody killed, to the last bit. Checkpoints and data files are damaged at random;
files that would become very large are read. All in temporary folders, in processes of their own, within 60 s and 2 GB
each. The exit code is 1 if anything was lost.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import types
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import _attack_files as files
import _measure
import keras
import numpy as np
import psutil

import keras_turbo
from keras_turbo.checkpoint import restore, verify

# Enough for each kind of damage to come several times to each kind of file.
TRIALS = {"kill": 100, "damaged checkpoint file": 200, "fuzzed data file": 300, "bomb": 0, "Ctrl-C": 50}
QUICK = {"kill": 3, "damaged checkpoint file": 12, "fuzzed data file": 12, "bomb": 6, "Ctrl-C": 2}

SECONDS = 60.0
MEMORY_BYTES = 2_000_000_000

# What writing a checkpoint does.
SYSTEM_CALLS = ("rename", "fsync", "mkdir", "write", "openat", "unlink")

EPOCHS = 4

# TensorFlow's C++ loses a Ctrl-C that comes while it looks at types (`nest.flatten`); who wants to stop presses again.
MOST_PRESSES = 3

# Each process is forked from one that has imported all of it; none of these has started TensorFlow.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["_attack_files", "keras_turbo.checkpoint.async_checkpoint", "pyarrow.parquet"])


class LostError(Exception):
    """A process that did not do what it must."""


@dataclasses.dataclass(frozen=True)
class Trial:
    """One attack; `problem` is empty where it was survived."""

    kind: str
    problem: str = ""


class Child:
    """A process that is attacked.

    Args:
        work: called there with a function that sends what is told to this process, and the arguments.
        arguments: can be pickled.
    """

    def __init__(self, work: Callable[..., None], *arguments: Any) -> None:
        self._told, tell = PROCESSES.Pipe(duplex=False)
        self.process = PROCESSES.Process(target=_run, args=(work, tell, arguments), daemon=False)
        self.process.start()
        tell.close()

    def next(self, seconds: float = SECONDS) -> Any:
        """What it tells next.

        Raises:
            LostError: it has ended before, or took more time or memory than it may.
        """
        end, told = time.monotonic() + seconds, False
        while not told:
            told = self._told.poll(0.02)
            if time.monotonic() > end:
                raise LostError(f"no answer within {seconds:.0f} s")
            if self.memory_bytes() > MEMORY_BYTES:
                raise LostError(f"took {self.memory_bytes() / 1e9:.1f} GB")
        try:
            return self._told.recv()
        except EOFError:
            self.process.join()
            raise LostError(f"ended with exit code {self.process.exitcode}") from None

    def memory_bytes(self) -> int:
        """What it and its children have."""
        try:
            process = psutil.Process(self.process.pid)
            return sum(one.memory_info().rss for one in (process, *process.children(recursive=True)))
        except psutil.Error:
            return 0

    def end(self) -> None:
        """Kills it, if it is still there."""
        self.process.kill()
        self.process.join()
        self._told.close()


def _run(work: Callable[..., None], tell: Any, arguments: Sequence[Any]) -> None:
    # TensorFlow's and tracebacks of those that are meant to fail say nothing here.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    warnings.simplefilter("ignore")
    work(tell.send, *arguments)


def small_model() -> keras.Model:
    """With dropout and Adam, so that a resumed run that has forgotten anything ends elsewhere."""
    keras.utils.set_random_seed(7)
    layers = [keras.layers.Dense(16, "relu"), keras.layers.Dropout(0.2), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((8,)), *layers])
    model.compile("adam", "mse")
    return model


def fit(tell: Callable[[Any], None], model: keras.Model, folder: Path, *callbacks: Any, epochs: int = EPOCHS) -> None:
    """Trains and saves every other step; tells when the first step begins."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(96, 8)).astype("float32"), rng.normal(size=(96, 1)).astype("float32")
    data = keras_turbo.FastDataset(x, y, batch_size=8, shuffle=True, seed=3)
    checkpoint = keras_turbo.AsyncCheckpoint(folder, save_freq=2, max_to_keep=3)
    begins = keras.callbacks.LambdaCallback(on_train_begin=lambda logs: tell("begins"))
    model.fit(data, epochs=epochs, verbose=0, callbacks=[checkpoint, begins, *callbacks])


def weights_of(model: keras.Model) -> bytes:
    return b"".join(variable.numpy().tobytes() for variable in (*model.variables, *model.optimizer.variables))


def train(tell: Callable[[Any], None], folder: Path) -> None:
    """A whole training, as fast as a slow disk: a kill finds each part of it."""
    model = small_model()
    fit(tell, model, folder, keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: time.sleep(0.005)))
    tell(weights_of(model))


def kills(number: int, rng: np.random.Generator, folder: Path) -> Iterator[Trial]:
    """Kills trainings; each must come to the end that one has that is not killed."""
    expected = finished(folder / "reference")
    has_strace, done, run = shutil.which("strace") is not None, 0, 0
    while done < number:
        run, newest, count, problem = run + 1, 0, 0, ""
        directory = folder / f"run{run}"
        while not problem:
            child = Child(train, directory)
            try:
                if child.next() == "begins":
                    if has_strace and rng.random() < 0.5:
                        has_strace = kill_in_call(child, str(rng.choice(SYSTEM_CALLS)), int(rng.integers(1, 12)))
                    else:
                        time.sleep(rng.uniform(0, 0.4))
                        child.process.kill()
                    final = child.next()
                    problem = "" if final == expected else "other weights than those of a run never killed"
                    break
            except LostError as error:
                child.process.join(5)
                if child.process.exitcode != -signal.SIGKILL:
                    problem = str(error)
                    break
            finally:
                child.end()
            count += 1
            health = verify(directory) if directory.exists() else []
            steps = [one.state.optimizer_step if one.ok and one.state else -1 for one in health]
            if -1 in steps or max(steps, default=0) < newest:
                problem = f"steps {steps} are there, and {newest} was before; {[one.problems for one in health]}"
            newest = max(steps, default=0)
        yield from [Trial("kill", problem)] * count
        done += count


def finished(folder: Path) -> bytes:
    """The weights at the end of a training that nobody disturbs."""
    child = Child(train, folder)
    try:
        child.next()
        return child.next()
    finally:
        child.end()


def kill_in_call(child: Child, call: str, number: int) -> bool:
    """Has a process killed in one of its next system calls; whether strace may do so."""
    which = [f"--trace={call}", f"--inject={call}:signal=KILL:when={number}"]
    command = ["strace", "-f", "-qq", "-o", os.devnull, *which, "-p", str(child.process.pid)]
    done = subprocess.run(command, stderr=subprocess.PIPE, timeout=SECONDS, check=False)
    return b"not permitted" not in done.stderr


def damaged_checkpoints(number: int, rng: np.random.Generator, folder: Path) -> Iterator[Trial]:
    """Damages a file of the newest checkpoint: an older one must be taken, or the newest as it was written."""
    good = folder / "good"
    finished(good)
    expected = {}
    for path in sorted(good.glob("step-*")):
        step, weights = restored(path)
        expected[step] = weights
    for index in range(number):
        directory = folder / f"damaged{index}"
        shutil.copytree(good, directory)
        newest = max(directory.glob("step-*"))
        path = newest / str(rng.choice(sorted(os.listdir(newest))))
        if rng.random() < 0.1:
            path.unlink()
        else:
            path.write_bytes(files.damaged(path.read_bytes(), rng))
        problem = ""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                step, weights = restored(directory)
            if weights != expected[step]:
                problem = f"{path.name}: other weights than were saved"
        except Exception as error:
            problem = f"{path.name}: {type(error).__name__}: {error}"
        yield Trial("damaged checkpoint file", problem)
        shutil.rmtree(directory)


def restored(folder: Path) -> tuple[int, bytes]:
    """The step and the weights of a checkpoint, or of the newest good one in a directory."""
    model = small_model()
    return restore(model, folder).optimizer_step, weights_of(model)


def read_each(tell: Callable[[Any], None], paths: Sequence[Path]) -> None:
    """Reads files; tells of each what is wrong with how that ended, or nothing."""
    # As on a machine with so much: what is read has to be bounded by what is free.
    psutil.virtual_memory = lambda: types.SimpleNamespace(
        available=MEMORY_BYTES - psutil.Process().memory_info().rss, total=MEMORY_BYTES
    )
    for path in paths:
        problem = ""
        try:
            files.read(path)
        except (ValueError, OSError, RuntimeError) as error:
            if path.name not in str(error):
                problem = f"{type(error).__name__} that does not name the file: {error}"
        except BaseException as error:
            problem = f"{type(error).__name__}: {error}"
        tell(problem)


def read_all(kind: str, named: dict[Path, str], at_once: int) -> Iterator[Trial]:
    """Has files read in other processes, some in each."""
    left = list(named)
    while left:
        child, some = Child(read_each, left[:at_once]), left[:at_once]
        try:
            while some:
                path = some.pop(0)
                left.remove(path)
                problem = child.next()
                yield Trial(kind, problem and f"{named[path]}: {problem}")
        except LostError as error:
            yield Trial(kind, f"{named[path]}: {error}")
        finally:
            child.end()


def fuzzed_files(number: int, rng: np.random.Generator, folder: Path) -> Iterator[Trial]:
    """Damages data files: each is read, or refused by its name."""
    named = {}
    for index in range(number):
        kind = files.KINDS[index % len(files.KINDS)]
        path = folder / str(index) / f"a.{kind}"
        path.parent.mkdir()
        files.good_file(kind, path)
        path.write_bytes(files.damaged(path.read_bytes(), rng))
        named[path] = f"{kind} {index}"
    yield from read_all("fuzzed data file", named, at_once=30)


def bombs(number: int, _: np.random.Generator, folder: Path) -> Iterator[Trial]:
    """Small files that become large, and what is no file: each is read or refused within the bounds."""
    for index, (what, (name, write)) in enumerate(list(files.bombs().items())[: number or None]):
        path = folder / str(index) / name
        path.parent.mkdir()
        write(path)
        yield from read_all("bomb", {path: what}, at_once=1)
        shutil.rmtree(path.parent)


def interrupted(tell: Callable[[Any], None], folder: Path) -> None:
    """A training in a notebook: after Ctrl-C the traceback is kept, and the same model is trained again."""
    model, before = small_model(), set(threading.enumerate())
    model.fit(np.zeros((8, 8)), np.zeros((8, 1)), verbose=0)
    kept, usual = None, type(model.train_function)
    try:
        fit(tell, model, folder, keras_turbo.GpuUtilization(), epochs=100_000)
    except (KeyboardInterrupt, SystemError) as error:  # TensorFlow's C++ makes the other of it where it looks at types
        kept = error
    tell("ended")
    deadline = time.monotonic() + 10
    while (left := set(threading.enumerate()) - before) and time.monotonic() < deadline:
        time.sleep(0.05)
    problem = "" if kept is not None else "training came to its end"
    if left or psutil.Process().children():
        problem = f"left running: {[one.name for one in left]} and {psutil.Process().children()}"
    elif type(model.train_function) is not usual:
        problem = f"the model trains by {type(model.train_function).__name__} still"
    model.fit(np.zeros((8, 8)), np.zeros((8, 1)), verbose=0)
    tell(problem or ("" if all(one.ok for one in verify(folder)) else "a damaged checkpoint"))


def interruptions(number: int, rng: np.random.Generator, folder: Path) -> Iterator[Trial]:
    """Ctrl-C at a random moment: nothing goes on, and the model can be trained again."""
    for index in range(number):
        child = Child(interrupted, folder / str(index))
        try:
            child.next()
            time.sleep(rng.uniform(0, 1.0))
            ended = False
            for _ in range(MOST_PRESSES):
                os.kill(child.process.pid or 0, signal.SIGINT)
                with contextlib.suppress(LostError):
                    ended = bool(child.next(5))
                    break
            problem = child.next(30) if ended else f"Ctrl-C did nothing, {MOST_PRESSES} times"
        except LostError as error:
            problem = str(error)
        finally:
            child.end()
        yield Trial("Ctrl-C", problem)


def main() -> None:
    parser = _measure.parser(__doc__ or "", "attack", rounds=1)
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of the random moments and damages")
    parser.add_argument("--only", choices=[*TRIALS], help="one kind")
    options = parser.parse_args()
    _measure.hide_gpus()
    attacks = dict(zip(TRIALS, (kills, damaged_checkpoints, fuzzed_files, bombs, interruptions), strict=True))
    numbers, trials, seconds = QUICK if options.quick else TRIALS, [], {}
    for index, (kind, attack) in enumerate(attacks.items()):
        if options.only not in (None, kind):
            continue
        begin, rng = time.monotonic(), np.random.default_rng([options.seed, index])
        with tempfile.TemporaryDirectory(prefix="attack-") as folder:
            for trial in attack(numbers[kind], rng, Path(folder)):
                trials.append(trial)
                if trial.problem:
                    print(f"LOST: {trial.kind}: {trial.problem.replace(folder, '...')}", flush=True)
        seconds[kind] = time.monotonic() - begin
    done = collections.Counter(trial.kind for trial in trials)
    survived = collections.Counter(trial.kind for trial in trials if not trial.problem)
    print(f"{'':26} {'trials':>7} {'survived':>9} {'seconds':>8}")
    for kind, took in seconds.items():
        print(f"{kind:26} {done[kind]:7} {survived[kind]:9} {took:8.0f}")
    lost = done.total() - survived.total()
    table = {
        kind: {"trials": done[kind], "survived": survived[kind], "seconds": took} for kind, took in seconds.items()
    }
    settings = {"rounds": 1, "seed": options.seed, "seconds each": SECONDS, "bytes each": MEMORY_BYTES}
    _measure.finish(options, settings, [], [], {"trials": done.total(), "lost": lost}, {"survivors": table})
    if lost:
        sys.exit(1)


if __name__ == "__main__":
    main()
