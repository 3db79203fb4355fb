"""Records by position: byte ranges of files by their index, read in whatever order, and checked by their checksums."""

from __future__ import annotations

import heapq
import os
import pathlib
import resource
from collections.abc import Iterator, Sequence

import numpy as np

from keras_turbo.data.engine.failures import reason_of
from keras_turbo.data.engine.store import fits_in_memory
from keras_turbo.data.records.index import FOOTER_BYTES, HEADER_BYTES, RecordIndex, are_whole, index_of, what_is_wrong
from keras_turbo.data.sources.files import open_regular
from keras_turbo.storage import paths as storage
from keras_turbo.storage import remote
from keras_turbo.storage.schemes import is_remote

# Of the files that this process may open, this share is kept open; all others are opened for each read.
_SHARE_OF_OPEN_FILES = 0.25
_FEWEST_KEPT_OPEN = 16

# Less than this is read without asking whether there is memory for it.
_LARGE_BYTES = 1 << 28


class RecordReader:
    """Records of several files by position.

    Args:
        paths: of the files, in the order of their records: for a compressed one its unpacked copy.
        names: what an error calls each file.
        cache_folder: where indices are kept if they can't be beside their files.
        interleave: from how many files, taken in turn, records come one by one in the order of positions, as in
            `tf.data.Dataset.interleave(cycle_length=interleave)`; 1 is one file after the other.

    Raises:
        OSError: a file can't be read.
    """

    def __init__(
        self, paths: Sequence[str], names: Sequence[str], cache_folder: pathlib.Path, interleave: int = 1
    ) -> None:
        self._names = list(names)
        self._files = _Files(paths)

        def index(number: int) -> RecordIndex:
            return index_of(paths[number], lambda at, size: self._files.read(number, at, size), cache_folder)

        numbers = range(len(paths))
        self.indices = remote.each_of(index, numbers) if self._files.are_remote else [index(k) for k in numbers]
        counts = [one.num_entries for one in self.indices]
        # The number of the first entry of each file, and of all.
        self._first = np.cumsum([0, *counts])
        self._offsets = np.concatenate([one.offsets for one in self.indices])
        self._order = None if interleave == 1 or len(paths) == 1 else interleaved(counts, interleave)

    def __len__(self) -> int:
        """Number of positions: records, and the damaged rest of a file as one more."""
        return int(self._first[-1])

    @property
    def mean_bytes(self) -> float:
        """Bytes of a record, on average."""
        return sum(int(one.offsets[-1]) for one in self.indices) / max(1, len(self))

    @property
    def most_bytes(self) -> int:
        """Bytes of the largest record."""
        return max((int(np.diff(one.offsets).max()) for one in self.indices if one.num_entries), default=0)

    def first_positions(self, num_files: int, num_records: int) -> list[int]:
        """Some positions: the first of some files that have records, as evenly as can be."""
        files = np.flatnonzero([one.num_records for one in self.indices])
        if not len(files):
            return []
        files = files[np.unique(np.linspace(0, len(files) - 1, num_files).astype(int))]
        share = -(-num_records // len(files))
        entries = np.concatenate(
            [self._first[file] + np.arange(min(share, self.indices[file].num_records)) for file in files.tolist()]
        )
        return entries.tolist() if self._order is None else np.argsort(self._order)[entries].tolist()

    def describe(self, position: int) -> str:
        """The file of a position, and where in it the record is."""
        (entry,), (file,) = self._entries_and_files(np.array([position]))
        return f"{self._names[file]}, record {entry - self._first[file]} at byte {self._offsets[entry + file]}"

    def damaged_files(self) -> Iterator[str]:
        """What is wrong with each file that is truncated, or in which a length is damaged."""
        for number, index in enumerate(self.indices):
            if index.is_damaged:
                begin, end = index.offsets[-2:].tolist()
                reason = what_is_wrong(self._files.read(number, begin, end - begin))
                yield f"{self._names[number]}, record {index.num_records} at byte {begin}: {reason}"

    def read(self, positions: np.ndarray) -> tuple[list[bytes], dict[int, Exception]]:
        """Reads records.

        Args:
            positions: int64 vector, of one at least.

        Returns:
            The data of each; and by index the errors of those that can't be read or do not match their checksum, whose
            data mean nothing.
        """
        entries, files = self._entries_and_files(positions)
        begins, ends = self._offsets[entries + files], self._offsets[entries + files + 1]
        # Those that lie behind one another are read at once.
        is_first = np.append(True, (files[1:] != files[:-1]) | (begins[1:] != ends[:-1]))
        firsts = np.flatnonzero(is_first)
        sizes = np.add.reduceat(ends - begins, firsts)
        runs = list(zip(files[firsts].tolist(), begins[firsts].tolist(), sizes.tolist(), strict=True))
        found = remote.each_of(self._run, runs) if self._files.are_remote else [self._run(run) for run in runs]
        run_of = (np.cumsum(is_first) - 1).tolist()
        starts = begins - np.repeat(begins[firsts], np.diff(np.append(firsts, len(positions))))
        stops = starts + (ends - begins) - FOOTER_BYTES
        blocks = [b"" if isinstance(came, Exception) else came for came in found]
        records, checksums = [], []
        for run, start, stop in zip(run_of, (starts + HEADER_BYTES).tolist(), stops.tolist(), strict=True):
            block = blocks[run]
            records.append(block[start:stop])
            checksums.append(block[stop : stop + FOOTER_BYTES])
        if sum(map(len, blocks)) < int(sizes.sum()):
            checksums = [checksum.ljust(FOOTER_BYTES, b"\0") for checksum in checksums]
        failures: dict[int, Exception] = {}
        for index in np.flatnonzero(~are_whole(records, checksums)).tolist():
            came = found[run_of[index]]
            if not isinstance(came, Exception):
                came = ValueError(what_is_wrong(came[int(starts[index]) : int(stops[index]) + FOOTER_BYTES]))
            failures[index] = came
        return records, failures

    def _run(self, run: tuple[int, int, int]) -> bytes | Exception:
        """Records that lie behind one another, or why they can't be read."""
        try:
            return self._files.read(*run)
        except (OSError, ValueError) as error:
            return OSError(f"the file can't be read: {reason_of(error)}")

    def _entries_and_files(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        entries = positions if self._order is None else self._order[positions]
        return entries, np.searchsorted(self._first, entries, "right") - 1


class _Files:
    """Files that are read by many threads, some of which are kept open."""

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = list(paths)
        self._remote = {number for number, path in enumerate(paths) if is_remote(path)}
        #: Whether reading one is a request over a network.
        self.are_remote = bool(self._remote)
        self._open: dict[int, _OpenFile] = {}
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._most_open = max(_FEWEST_KEPT_OPEN, int(limit * _SHARE_OF_OPEN_FILES))

    def read(self, number: int, offset: int, size: int) -> bytes:
        """Bytes of a file: fewer where it has become shorter.

        Raises:
            OSError: it can't be read.
            ValueError: it is no regular file; or there is no memory for so much.
        """
        if size > _LARGE_BYTES and not fits_in_memory(size):
            raise ValueError(f"a record of {size / 1e9:.1f} GB would take more than half of the free memory.")
        if number in self._remote:
            return storage.read_at(self._paths[number], offset, size)
        file = self._open.get(number)
        if file is None:
            file = _OpenFile(self._paths[number])
            if len(self._open) >= self._most_open:
                self._open.popitem()
            self._open[number] = file
        data = os.pread(file.descriptor, size, offset)
        while len(data) < size and (more := os.pread(file.descriptor, size - len(data), offset + len(data))):
            data += more  # the system gives at most 2 GB at once
        return data


class _OpenFile:
    """A file that is closed when no thread has it any more."""

    def __init__(self, path: str) -> None:
        self.descriptor = open_regular(path)

    def __del__(self) -> None:
        if hasattr(self, "descriptor"):
            os.close(self.descriptor)


def interleaved(counts: Sequence[int], cycle_length: int) -> np.ndarray:
    """The entries of some files, numbered one file after the other, in turns: one from each of `cycle_length` files.

    The order is that of `tf.data.Dataset.interleave`: a file that is found to be through at its turn gives nothing, and
    at its next turn the next file begins.
    """
    # For each place in the cycle the round in which it takes its next file.
    free = [(0, place) for place in range(min(cycle_length, len(counts)))]
    turns = []
    for count in counts:
        begin, place = heapq.heappop(free)
        turns.append(np.arange(begin, begin + count) * cycle_length + place)
        heapq.heappush(free, (begin + count + 1, place))
    return np.argsort(np.concatenate(turns), kind="stable")
