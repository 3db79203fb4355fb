"""Records by position: read at their offsets, whatever the order, and checked by TensorFlow's own reader.

TensorFlow reads TFRecords from a file's beginning. So the records that are wanted together are copied, as they are,
into a file in memory, and that is read by TensorFlow at its full speed, checksums included. Copying costs a tenth of a
microsecond a kilobyte; a reader of single records, which opens the file for each, took 60 us a record (two cores).
"""

from __future__ import annotations

import collections
import contextlib
import functools
import itertools
import os
import queue
import resource
import tempfile
import threading
import weakref
from collections.abc import Iterator, Sequence

import numpy as np
import tensorflow as tf

from keras_turbo.data.records.framing import what_is_wrong
from keras_turbo.data.records.index import RecordIndex
from keras_turbo.data.records.local_copies import DAMAGE_MARK
from keras_turbo.storage import paths as storage
from keras_turbo.storage import remote
from keras_turbo.storage.schemes import is_remote

# Of the files that this process may still open, this share is kept open; all others are opened for each read.
_SHARE_OF_OPEN_FILES = 0.25

# Linux and macOS list a process' own open files there.
_OWN_OPEN_FILES = "/dev/fd"

# Of what one call writes, the system sets a limit: IOV_MAX of POSIX.
_MOST_PIECES = os.sysconf("SC_IOV_MAX")

# What TensorFlow reads at once of the file in memory.
_BUFFER_BYTES = 1 << 18


class RecordReader:
    """Records of several files by position.

    Args:
        indices: of the files, in the order of their records.
        names: what an error calls each file: for a compressed one not that of its unpacked copy.
        interleave: from how many files, taken in turn, records come one by one in the order of positions, as in
            `tf.data.Dataset.interleave(cycle_length=interleave)`; 1 is one file after the other.
    """

    def __init__(self, indices: Sequence[RecordIndex], names: Sequence[str], interleave: int = 1) -> None:
        self._indices = list(indices)
        self._names = list(names)
        counts = np.array([index.num_entries for index in indices], np.int64)
        # The number of the first entry of each file, and of all.
        self._first = np.concatenate([[0], np.cumsum(counts)])
        self._offsets = np.concatenate([index.offsets for index in indices])
        self._order = None if interleave == 1 or len(indices) == 1 else interleaved(counts.tolist(), interleave)
        self._scratch = _ScratchFiles()
        self._files = _OpenFiles([index.path for index in indices])

    @property
    def num_entries(self) -> int:
        """Number of positions: records, and the damaged rest of a file as one more."""
        return int(self._first[-1])

    @property
    def mean_bytes(self) -> float:
        """Bytes of a record, on average."""
        return sum(index.size for index in self._indices) / max(1, self.num_entries)

    @property
    def whole_counts(self) -> list[int]:
        """Number of records that each file has, without a damaged rest."""
        return [index.num_entries - index.is_damaged for index in self._indices]

    def first_positions(self, num_files: int, num_records: int) -> list[int]:
        """Some positions: the first of some files that have records, as evenly as can be."""
        files = np.flatnonzero(self.whole_counts)
        if not len(files):
            return []
        files = files[np.unique(np.linspace(0, len(files) - 1, num_files).astype(int))]
        share = -(-num_records // len(files))
        entries = np.concatenate(
            [self._first[file] + np.arange(min(share, self.whole_counts[file])) for file in files.tolist()]
        )
        if self._order is not None:
            positions = np.empty_like(self._order)
            positions[self._order] = np.arange(len(self._order))
            entries = positions[entries]
        return entries.tolist()

    def describe(self, position: int) -> str:
        """The file of a position, and where in it the record is."""
        entry, file = self._entry_and_file(np.array([position]))
        begin = self._offsets[entry + file][0]
        return f"{self._names[file[0]]}, record {entry[0] - self._first[file[0]]} at byte {begin}"

    def damaged_files(self) -> Iterator[str]:
        """What is wrong with each file that is truncated, or in which a length is damaged."""
        for number, index in enumerate(self._indices):
            if index.is_damaged:
                name = f"{self._names[number]}, record {index.num_entries - 1} at byte {index.offsets[-2]}"
                frame = self._files.read(number, int(index.offsets[-2]), int(index.offsets[-1] - index.offsets[-2]))
                yield f"{name}: {_reason(frame)}"

    def read(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Reads records.

        Args:
            positions: int64 vector.

        Returns:
            The data of each as an object array of bytes, and for which of them (bool) that could be read and matches
            its checksum; the others are empty.
        """
        if not len(positions):
            return np.empty(0, object), np.empty(0, np.bool_)
        frames = list(self._frames(positions))
        records = self._checked(frames)
        if records is not None:
            return records, np.ones(len(frames), np.bool_)
        # One of them is damaged. Behind it nothing can be told, so each is read by itself.
        records = np.empty(len(frames), object)
        are_whole = np.zeros(len(frames), np.bool_)
        for number, frame in enumerate(frames):
            one = self._checked([frame])
            are_whole[number] = one is not None
            records[number] = b"" if one is None else one[0]
        return records, are_whole

    def read_one(self, position: np.integer) -> tuple[bytes, bytes]:
        """Reads one record: its data and b"", or b"" and what is wrong with it."""
        (frame,) = self._frames(np.array([position], np.int64))
        record = self._checked([frame])
        return (b"", _reason(frame).encode()) if record is None else (record[0], b"")

    def _frames(self, positions: np.ndarray) -> Iterator[bytes]:
        """The bytes of records as they lie in their files; fewer where a file has become shorter."""
        entries, files = self._entry_and_file(positions)
        begins = self._offsets[entries + files]
        sizes = self._offsets[entries + files + 1] - begins
        if self._files.are_near:
            for file, begin, size in zip(files.tolist(), begins.tolist(), sizes.tolist(), strict=True):
                yield self._files.read(file, begin, size)
            return
        # Each read is a request: of records that lie behind one another it is one, and others do not wait for it.
        starts = np.append(True, (files[1:] != files[:-1]) | (begins[1:] != begins[:-1] + sizes[:-1]))
        firsts = np.flatnonzero(starts)
        totals = np.add.reduceat(sizes, firsts).tolist()
        blocks = remote.each_of(
            lambda run: self._files.read(*run),
            list(zip(files[firsts].tolist(), begins[firsts].tolist(), totals, strict=True)),
        )
        run = np.cumsum(starts) - 1
        at = begins - begins[firsts][run]
        for number, begin, size in zip(run.tolist(), at.tolist(), sizes.tolist(), strict=True):
            yield blocks[number][begin : begin + size]

    def _entry_and_file(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        entries = positions if self._order is None else self._order[positions]
        return entries, np.searchsorted(self._first, entries, "right") - 1

    def _checked(self, frames: list[bytes]) -> np.ndarray | None:
        """The data of some records, by TensorFlow's reader; None if one of them is damaged."""
        with self._scratch.holding(frames) as path:
            try:
                records = _read_by_tensorflow()(tf.constant(path), tf.constant(len(frames), tf.int64)).numpy()
            except (tf.errors.DataLossError, tf.errors.OutOfRangeError, tf.errors.InvalidArgumentError):
                return None
        return records if len(records) == len(frames) else None


def interleaved(counts: Sequence[int], cycle_length: int) -> np.ndarray:
    """The entries of some files, numbered one file after the other, in turns: one from each of `cycle_length` files.

    The order is that of `tf.data.Dataset.interleave`: a file that is found to be through at its turn gives nothing, and
    at its next turn the next file begins.
    """
    first = np.concatenate([[0], np.cumsum(counts)]).tolist()
    waiting = collections.deque([begin, end] for begin, end in itertools.pairwise(first))
    # For each place in the cycle the next entry of its file and the end of it; None where there is no file.
    cycle: list[list[int] | None] = [None] * min(cycle_length, len(counts))
    pieces = []
    while waiting or any(cycle):
        in_use = [place for place in cycle if place is not None]
        if in_use and (len(in_use) == len(cycle) or not waiting):
            # So many rounds go by in which each file gives something.
            rounds = min(end - begin for begin, end in in_use)
            starts = np.array([begin for begin, _ in in_use], np.int64)
            pieces.append((np.arange(rounds)[:, None] + starts).ravel())
            for place in in_use:
                place[0] += rounds
        # One round in which files may be through, or begin.
        entries = []
        for number in range(len(cycle)):
            if cycle[number] is None and waiting:
                cycle[number] = waiting.popleft()
            place = cycle[number]
            if place is not None and place[0] < place[1]:
                entries.append(place[0])
                place[0] += 1
            else:
                cycle[number] = None
        pieces.append(np.array(entries, np.int64))
    return np.concatenate(pieces) if pieces else np.zeros(0, np.int64)


def _reason(frame: bytes) -> str:
    if frame.endswith(DAMAGE_MARK):
        return "the compressed data are damaged or end early, so that nothing behind this can be read."
    return what_is_wrong(frame)


def _read_fully(descriptor: int, size: int, offset: int) -> bytes:
    data = os.pread(descriptor, size, offset)
    while len(data) < size:  # the system gives at most 2 GB at once
        more = os.pread(descriptor, size - len(data), offset + len(data))
        if not more:
            break
        data += more
    return data


@functools.cache
def _read_by_tensorflow() -> tf.types.experimental.ConcreteFunction:
    """A function of a path and a number: so many records from the beginning of that file, as a vector of strings."""

    def read(path: tf.Tensor, number: tf.Tensor) -> tf.Tensor:
        records = tf.data.TFRecordDataset(path, buffer_size=_BUFFER_BYTES)
        return records.batch(number).get_single_element()

    with tf.init_scope(), tf.device("CPU:0"):
        return tf.function(
            read, input_signature=[tf.TensorSpec([], tf.string), tf.TensorSpec([], tf.int64)], autograph=False
        ).get_concrete_function()


class _ScratchFiles:
    """Files in memory, each for one thread at a time."""

    def __init__(self) -> None:
        self._free: queue.SimpleQueue[tuple[int, str]] = queue.SimpleQueue()
        weakref.finalize(self, _close_all, self._free)

    @contextlib.contextmanager
    def holding(self, frames: list[bytes]) -> Iterator[str]:
        """A context in which a file, whose path it gives, holds these bytes."""
        try:
            descriptor, path = self._free.get_nowait()
        except queue.Empty:
            descriptor, path = _new_scratch_file()
        try:
            written = _write_fully(descriptor, frames)
            os.ftruncate(descriptor, written)
            yield path
        finally:
            self._free.put((descriptor, path))


def _new_scratch_file() -> tuple[int, str]:
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("keras_turbo_records")
        return descriptor, f"/proc/self/fd/{descriptor}"
    return tempfile.mkstemp(prefix="keras_turbo_records_")


def _write_fully(descriptor: int, frames: list[bytes]) -> int:
    """Writes pieces from the beginning of a file, without joining them if that can be, and gives their length."""
    size = sum(map(len, frames))
    if len(frames) <= _MOST_PIECES and os.pwritev(descriptor, frames, 0) == size:
        return size
    view, written = memoryview(b"".join(frames)), 0
    while written < size:
        written += os.pwrite(descriptor, view[written:], written)
    return size


def _close_all(files: queue.SimpleQueue[tuple[int, str]]) -> None:
    while not files.empty():
        descriptor, path = files.get_nowait()
        os.close(descriptor)
        if not path.startswith("/proc/"):
            os.unlink(path)


class _OpenFiles:
    """Data files, of which some are kept open and the others opened for each read."""

    def __init__(self, paths: list[str]) -> None:
        self._paths = paths
        #: Whether all are on this machine, or mounted as if they were.
        self.are_near = not any(map(is_remote, paths))
        self._lock = threading.Lock()
        self._descriptors: dict[int, int] = {}
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if limit == resource.RLIM_INFINITY:
            self._most_kept_open = len(paths)
        else:
            self._most_kept_open = int((limit - len(os.listdir(_OWN_OPEN_FILES))) * _SHARE_OF_OPEN_FILES)
        weakref.finalize(self, _close_descriptors, self._descriptors)

    def read(self, file: int, offset: int, size: int) -> bytes:
        if is_remote(self._paths[file]):
            return storage.read_at(self._paths[file], offset, size)
        descriptor = self._kept_open(file)
        if descriptor is not None:
            return _read_fully(descriptor, size, offset)
        descriptor = os.open(self._paths[file], os.O_RDONLY)
        try:
            return _read_fully(descriptor, size, offset)
        finally:
            os.close(descriptor)

    def _kept_open(self, file: int) -> int | None:
        descriptor = self._descriptors.get(file)
        if descriptor is None:
            with self._lock:
                # Another thread may have opened it by now.
                descriptor = self._descriptors.get(file)
                if descriptor is None and len(self._descriptors) < self._most_kept_open:
                    descriptor = self._descriptors[file] = os.open(self._paths[file], os.O_RDONLY)
        return descriptor


def _close_descriptors(descriptors: dict[int, int]) -> None:
    while descriptors:
        os.close(descriptors.popitem()[1])
