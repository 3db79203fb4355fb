"""Records by position: byte ranges of files by their index, in whatever order.

TensorFlow's own reader, which compares checksums, reads records that follow one another in a file. Others that are
wanted together are copied, as they are, into a file in memory for it, a thousand in one system call and without
Python's lock. One record is read by itself, and so are those in which something is wrong, to say what it is.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import heapq
import mmap
import os
import pathlib
import resource
import threading
import weakref
from collections.abc import Iterator, Sequence

import numpy as np

from keras_turbo import files as storage
from keras_turbo.data.engine.failures import reason_of
from keras_turbo.data.engine.store import fits_in_memory
from keras_turbo.data.records.index import FOOTER_BYTES, FRAME_BYTES, HEADER_BYTES, index_of, is_whole, what_is_wrong
from keras_turbo.files import is_remote

# Of the files that this process may open, this share is kept open; all others are opened for each read.
_SHARE_OF_OPEN_FILES = 0.25
_FEWEST_KEPT_OPEN = 16

# Less than this is read without asking whether there is memory for it.
_LARGE_BYTES = 1 << 28

# Parts that a system call takes at most (Linux).
_MOST_PARTS = 1024


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
        #: Whether reading is a request over a network.
        self.is_remote = bool(self._remote)
        self._open: dict[int, _OpenFile] = {}
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._most_open = max(_FEWEST_KEPT_OPEN, int(limit * _SHARE_OF_OPEN_FILES))
        self._scratch = threading.local()

        def index(number: int) -> tuple[np.ndarray, bool]:
            return index_of(paths[number], lambda at, size: self._read_at(number, at, size), cache_folder)

        numbers = range(len(paths))
        indices = storage.each_of(index, numbers) if self.is_remote else [index(number) for number in numbers]
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

    @property
    def can_gather(self) -> bool:
        """Whether records of all files can be put together: not if there are more than can be open."""
        return self.is_remote or len(self._paths) <= self._most_open

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

    def records(self, positions: np.ndarray) -> list[bytes]:
        """The data of records; raises ValueError and OSError, if one of them can't be read or is damaged."""
        records = []
        for file, begin, end in zip(*(vector.tolist() for vector in self._places(positions)), strict=True):
            try:
                data = self._read_at(file, begin + HEADER_BYTES, max(0, end - begin - FRAME_BYTES))
                checksum = self._read_at(file, end - FOOTER_BYTES, FOOTER_BYTES)
            except (OSError, ValueError) as error:
                self._open.pop(file, None)  # a server may have forgotten it
                raise OSError(f"the file can't be read: {reason_of(error)}") from error
            if not is_whole(data, checksum):
                raise ValueError(what_is_wrong(self._read_at(file, begin, end - begin)))
            records.append(data)
        return records

    @contextlib.contextmanager
    def together(self, positions: np.ndarray) -> Iterator[tuple[str, int]]:
        """A context with a file and an offset in it, from where these records follow one another; raises OSError."""
        files, begins, ends = self._places(positions)
        is_first = np.append(True, (files[1:] != files[:-1]) | (begins[1:] != ends[:-1]))
        firsts = np.flatnonzero(is_first)
        if len(firsts) == 1 and not self.is_remote:
            yield self._paths[files[0]], int(begins[0])
            return
        files, begins, ends = files[firsts], begins[firsts], ends[np.append(firsts[1:], len(ends)) - 1]
        if not hasattr(self._scratch, "file"):
            self._scratch.file = _ScratchFile()
        if self.is_remote:
            runs = zip(files.tolist(), begins.tolist(), (ends - begins).tolist(), strict=True)
            self._scratch.file.write(storage.each_of(lambda run: self._read_at(*run), runs))
        else:
            used, which = np.unique(files, return_inverse=True)
            opened = [self._opened(file) for file in used.tolist()]
            addresses = np.array([file.content.ctypes.data for file in opened])
            self._scratch.file.gather(addresses[which] + begins, ends - begins)
        yield self._scratch.file.path, 0

    def _read_at(self, file: int, offset: int, size: int) -> bytes:
        """Bytes of a file: fewer where it has become shorter."""
        if size > _LARGE_BYTES and not fits_in_memory(size):
            raise ValueError(f"a record of {size / 1e9:.1f} GB would take more than half of the free memory.")
        if file in self._remote:
            return storage.read_at(self._paths[file], offset, size)
        opened = self._opened(file)
        data = os.pread(opened.descriptor, size, offset)
        while len(data) < size and (more := os.pread(opened.descriptor, size - len(data), offset + len(data))):
            data += more  # the system gives at most 2 GB at once
        return data

    def _opened(self, file: int) -> _OpenFile:
        opened = self._open.get(file)
        if opened is None:
            opened = _OpenFile(self._paths[file])
            if len(self._open) >= self._most_open:
                self._open.popitem()
            self._open[file] = opened
        return opened

    def _places(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Of records the file of each, and where in it they begin and end."""
        entries, files = self._entries_and_files(positions)
        return files, self._offsets[entries + files], self._offsets[entries + files + 1]

    def _entries_and_files(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        entries = positions if self._order is None else self._order[positions]
        return entries, np.searchsorted(self._first, entries, "right") - 1


class _OpenFile:
    """A file of this machine that is open until nothing, here or in another thread, holds it any more."""

    def __init__(self, path: str) -> None:
        self._context = storage.opened(path)
        self.descriptor = self._context.__enter__()[0].fileno()

    @functools.cached_property
    def content(self) -> np.ndarray:
        """Its bytes. They must not be touched but by system calls: where they can't be read, the process would end."""
        return np.frombuffer(mmap.mmap(self.descriptor, 0, mmap.MAP_PRIVATE, mmap.PROT_READ), np.uint8)


class _ScratchFile:
    """A file in memory, of one thread."""

    def __init__(self) -> None:
        self._descriptor = os.memfd_create("keras_turbo_records")
        self.path = f"/proc/self/fd/{self._descriptor}"
        weakref.finalize(self, os.close, self._descriptor)

    def write(self, parts: Sequence[bytes]) -> None:
        """Takes some parts, one behind the other."""
        os.pwrite(self._descriptor, b"".join(parts), 0)

    def gather(self, addresses: np.ndarray, sizes: np.ndarray) -> None:
        """As `write`, for parts of memory; raises OSError if it can't be read."""
        parts = np.stack([addresses, sizes], axis=1).astype(np.uint64)
        done = 0
        for begin in range(0, len(parts), _MOST_PARTS):
            some = parts[begin : begin + _MOST_PARTS]
            written = _pwritev()(self._descriptor, some.ctypes.data, len(some), done)
            if written != int(some[:, 1].sum()):
                raise OSError(ctypes.get_errno(), "A file can't be read, or has become shorter")
            done += written


@functools.cache
def _pwritev() -> ctypes._CFuncPtr:
    # os.pwritev takes a Python object for each part.
    function = ctypes.CDLL(None, use_errno=True).pwritev
    function.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_longlong]
    function.restype = ctypes.c_ssize_t
    return function


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
