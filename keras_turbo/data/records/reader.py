"""Records by position: byte ranges of files by their index, read in whatever order, and checked by their checksums."""

from __future__ import annotations

import heapq
import os
import pathlib
import resource
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from keras_turbo import files as storage
from keras_turbo.data.engine.failures import reason_of
from keras_turbo.data.engine.store import fits_in_memory
from keras_turbo.data.records.index import FOOTER_BYTES, HEADER_BYTES, are_whole, index_of, what_is_wrong
from keras_turbo.files import is_remote

# Of the files that this process may open, this share is kept open; all others are opened for each read.
_SHARE_OF_OPEN_FILES = 0.25
_FEWEST_KEPT_OPEN = 16

# Reading such a record by itself takes less time than copying it out of what is read together.
_LONG_RECORD_BYTES = 1 << 12

# Less than this is read without asking whether there is memory for it.
_LARGE_BYTES = 1 << 28


class RecordReader:
    """Records of several files by position; what is left of a damaged file has a position, too.

    Args:
        paths: of the files, in the order of their records: for a compressed one its unpacked copy.
        names: what an error calls each file.
        cache_folder: where indices are kept if they can't be beside their files.
        interleave: from how many files records come in turn, as in `tf.data.Dataset.interleave`.
    """

    def __init__(
        self, paths: Sequence[str], names: Sequence[str], cache_folder: pathlib.Path, interleave: int = 1
    ) -> None:
        self._paths = list(paths)
        self._names = list(names)
        self._remote = {number for number, path in enumerate(paths) if is_remote(path)}
        self._open: dict[int, tuple[int, Any]] = {}
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._most_open = max(_FEWEST_KEPT_OPEN, int(limit * _SHARE_OF_OPEN_FILES))

        def index(number: int) -> tuple[np.ndarray, bool]:
            return index_of(paths[number], lambda at, size: self._read_at(number, at, size), cache_folder)

        numbers = range(len(paths))
        indices = storage.each_of(index, numbers) if self._remote else [index(number) for number in numbers]
        offsets = [one for one, _ in indices]
        self._are_damaged = [is_damaged for _, is_damaged in indices]
        #: Number of records in each file.
        self.counts = [len(one) - 1 - is_damaged for one, is_damaged in indices]
        self._open.clear()
        entries = [len(one) - 1 for one in offsets]
        # The number of the first entry of each file, and of all.
        self._first = np.cumsum([0, *entries])
        self._offsets = np.concatenate(offsets)
        self._order = None if interleave == 1 or len(paths) == 1 else interleaved(entries, interleave)
        #: Bytes of a record, with its checksums: on average, and of the largest.
        self.mean_bytes = sum(int(one[-1]) for one in offsets) / max(1, len(self))
        self.most_bytes = max((int(np.diff(one).max()) for one in offsets if len(one) > 1), default=0)

    def __len__(self) -> int:
        return int(self._first[-1])

    def describe(self, position: int) -> str:
        """The file of a position, and where in it the record is."""
        (entry,), (file,) = self._entries_and_files(np.array([position]))
        return f"{self._names[file]}, record {entry - self._first[file]} at byte {self._offsets[entry + file]}"

    def damaged_files(self) -> Iterator[str]:
        """What is wrong with each file that is truncated, or in which a length is damaged."""
        for file in np.flatnonzero(self._are_damaged).tolist():
            begin, end = self._offsets[self._first[file + 1] + file - 1 :][:2].tolist()
            reason = what_is_wrong(self._read_at(file, begin, end - begin))
            yield f"{self._names[file]}, record {self.counts[file]} at byte {begin}: {reason}"

    def read(self, positions: np.ndarray) -> tuple[list[bytes], dict[int, Exception]]:
        """The data of records, and by index the errors of those that can't be read or do not match their checksum."""
        entries, files = self._entries_and_files(positions)
        begins, ends = self._offsets[entries + files], self._offsets[entries + files + 1]
        is_first = np.append(True, (files[1:] != files[:-1]) | (begins[1:] != ends[:-1]))
        if not self._remote and self.mean_bytes > _LONG_RECORD_BYTES:
            records = self._parts(files, begins + HEADER_BYTES, ends - FOOTER_BYTES)
            checksums = self._parts(files, ends - FOOTER_BYTES, ends)
        elif is_first.all():
            frames = self._parts(files, begins, ends)
            records = [frame[HEADER_BYTES:-FOOTER_BYTES] for frame in frames]
            checksums = [frame[-FOOTER_BYTES:] for frame in frames]
        else:
            # Those that lie behind one another are read at once.
            run_of, firsts = np.cumsum(is_first) - 1, np.flatnonzero(is_first)
            runs = self._parts(files[firsts], begins[firsts], ends[np.append(firsts[1:], len(ends)) - 1])
            starts = (begins - begins[firsts][run_of] + HEADER_BYTES).tolist()
            stops = (ends - begins[firsts][run_of] - FOOTER_BYTES).tolist()
            blocks = [runs[run] for run in run_of.tolist()]
            records = [block[start:stop] for block, start, stop in zip(blocks, starts, stops, strict=True)]
            checksums = [block[stop : stop + FOOTER_BYTES] for block, stop in zip(blocks, stops, strict=True)]
        failures: dict[int, Exception] = {}
        for index in np.flatnonzero(~are_whole(records, checksums)).tolist():
            begin, end = int(begins[index]), int(ends[index])
            try:
                frame = self._read_at(int(files[index]), begin, end - begin)
                records[index] = frame[HEADER_BYTES:-FOOTER_BYTES]
                if not are_whole([records[index]], [frame[-FOOTER_BYTES:]])[0]:  # as it may have failed for a moment
                    failures[index] = ValueError(what_is_wrong(frame))
            except (OSError, ValueError) as error:
                failures[index] = OSError(f"the file can't be read: {reason_of(error)}")
        return records, failures

    def _parts(self, files: np.ndarray, begins: np.ndarray, ends: np.ndarray) -> list[bytes]:
        """Parts of files: less, or nothing, of those that can't be read."""
        sizes = ends - begins
        parts = list(zip(files.tolist(), begins.tolist(), sizes.tolist(), strict=True))

        def part(of: tuple[int, int, int]) -> bytes:
            try:
                return self._read_at(*of)
            except (OSError, ValueError):
                self._open.pop(of[0], None)  # a server may have forgotten it
                return b""

        if self._remote:
            return storage.each_of(part, parts)
        if len(self._paths) <= self._most_open and sizes.max() < _LARGE_BYTES:
            try:
                opened = {file: self._descriptor(file) for file in np.unique(files).tolist()}
                return [os.pread(opened[file][0], size, begin) for file, begin, size in parts]
            except OSError:
                pass  # which of them it is shows one by one
        return [part(one) for one in parts]

    def _read_at(self, file: int, offset: int, size: int) -> bytes:
        """Bytes of a file: fewer where it has become shorter."""
        if size > _LARGE_BYTES and not fits_in_memory(size):
            raise ValueError(f"a record of {size / 1e9:.1f} GB would take more than half of the free memory.")
        if file in self._remote:
            return storage.read_at(self._paths[file], offset, size)
        descriptor, _is_held = self._descriptor(file)
        data = os.pread(descriptor, size, offset)
        while len(data) < size and (more := os.pread(descriptor, size - len(data), offset + len(data))):
            data += more  # the system gives at most 2 GB at once
        return data

    def _descriptor(self, file: int) -> tuple[int, Any]:
        """A file that is open, and what must be held as long as it shall be, here or by others."""
        opened = self._open.get(file)
        if opened is None:
            context = storage.opened(self._paths[file])
            opened = context.__enter__()[0].fileno(), context
            if len(self._open) >= self._most_open:
                self._open.popitem()
            self._open[file] = opened
        return opened

    def _entries_and_files(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        entries = positions if self._order is None else self._order[positions]
        return entries, np.searchsorted(self._first, entries, "right") - 1


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
