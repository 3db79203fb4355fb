"""Records by position: read at their offsets, whatever the order, and checked by TensorFlow's own reader.

TensorFlow reads TFRecords one after the other. Those that follow one another are so read where they are. Others that
are wanted together are copied, as they are, into a file in memory, and that is read by TensorFlow at its full speed,
checksums included. Copying costs a tenth of a microsecond a kilobyte; a reader of single records, which opens the file
for each, took 60 us a record (two cores).
"""

from __future__ import annotations

import collections
import functools
import itertools
import os
from collections.abc import Iterator, Sequence

import numpy as np
import tensorflow as tf

from keras_turbo import files as storage
from keras_turbo.data.records.framing import what_is_wrong
from keras_turbo.data.records.index import RecordIndex
from keras_turbo.data.records.local_copies import DAMAGE_MARK
from keras_turbo.data.records.open_files import OpenFiles, Places
from keras_turbo.data.records.scratch_files import ScratchFiles
from keras_turbo.data.variant_dataset import VariantDataset

# What TensorFlow reads of a file at once, at most.
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
        self._scratch = ScratchFiles()
        self._files = OpenFiles([index.path for index in indices])

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

    def read(self, positions: np.ndarray) -> tuple[tf.Tensor, np.ndarray]:
        """Reads records.

        Args:
            positions: int64 vector.

        Returns:
            The data of each as a vector of strings, and for which of them (bool) that could be read and matches its
            checksum; the others are empty.
        """
        records = self._checked(positions)
        if records is not None:
            return records, np.ones(len(positions), np.bool_)
        # One of them is damaged, and TensorFlow tells nothing of those behind it. Halves find out which one it is with
        # far fewer reads than there are records, each of which may be a request over a network.
        if len(positions) == 1:
            return tf.constant([""]), np.zeros(1, np.bool_)
        half = len(positions) // 2
        (records, are_whole), (others, are_others_whole) = self.read(positions[:half]), self.read(positions[half:])
        return tf.concat([records, others], 0), np.concatenate([are_whole, are_others_whole])

    @property
    def reads_copies(self) -> bool:
        """Whether what is read are copies in the cache folder, of compressed files or of those behind a scheme."""
        return any(index.path != storage.absolute(name) for index, name in zip(self._indices, self._names, strict=True))

    @functools.cached_property
    def _encoded_paths(self) -> list[bytes]:
        return [os.fsencode(index.path) for index in self._indices]

    def read_in_graph(self, position: tf.Tensor) -> tf.Tensor:
        """Graph code: the data of one record by TensorFlow's operations alone, which open its file for it."""
        entry = position if self._order is None else tf.gather(self._order, position)
        file = tf.searchsorted(self._first, entry[None], side="right", out_type=tf.int64)[0] - 1
        variant = tf.raw_ops.TFRecordDatasetV2(
            filenames=tf.gather(tf.constant(self._encoded_paths), file)[None],
            compression_type="",
            buffer_size=tf.constant(_BUFFER_BYTES, tf.int64),
            byte_offsets=tf.gather(self._offsets, entry + file)[None],
        )
        first = tf.raw_ops.TakeDataset(
            input_dataset=variant, count=tf.constant(1, tf.int64), output_types=[tf.string], output_shapes=[[]]
        )
        (record,) = tf.raw_ops.DatasetToSingleElement(dataset=first, output_types=[tf.string], output_shapes=[[]])
        return record

    def read_one(self, position: np.integer) -> tuple[bytes, bytes]:
        """Reads one record: its data and b"", or b"" and what is wrong with it."""
        positions = np.array([position], np.int64)
        record = self._checked(positions)
        if record is not None:
            return record.numpy()[0], b""
        places = self._places(positions)
        return b"", _reason(
            self._files.read(int(places.files[0]), int(places.begins[0]), int(places.sizes[0]))
        ).encode()

    def _checked(self, positions: np.ndarray) -> tf.Tensor | None:
        """The data of some records, by TensorFlow's reader; None if one of them is damaged."""
        if not len(positions):
            return tf.zeros([0], tf.string)
        places = self._places(positions)
        if places.are_one_run and self._files.are_near:
            return _read_by_tensorflow(
                self._indices[places.files[0]].path, int(places.begins[0]), int(places.sizes.sum()), len(positions)
            )
        with self._scratch.lent() as scratch:
            if not scratch.fill(self._files, places):
                return None
            return _read_by_tensorflow(scratch.path, 0, int(places.sizes.sum()), len(positions))

    def _places(self, positions: np.ndarray) -> Places:
        entries, files = self._entry_and_file(positions)
        begins = self._offsets[entries + files]
        are_one_run = bool((files == files[0]).all() and (np.diff(entries) == 1).all())
        return Places(files, begins, self._offsets[entries + files + 1] - begins, are_one_run)

    def _entry_and_file(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        entries = positions if self._order is None else self._order[positions]
        return entries, np.searchsorted(self._first, entries, "right") - 1


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


def _read_by_tensorflow(path: str, offset: int, size: int, number: int) -> tf.Tensor | None:
    """So many records that follow one another in a file, as a vector of strings; None if one of them is damaged."""
    buffer = min(size, _BUFFER_BYTES)
    try:
        numbers = (tf.constant(value, tf.int64) for value in (offset, buffer, number))
        # A name on Linux is any bytes, which are no UTF-8 where others chose them.
        records = _reading_function()(*numbers, tf.constant(os.fsencode(path)))
    except (tf.errors.DataLossError, tf.errors.OutOfRangeError, tf.errors.InvalidArgumentError):
        return None
    return records if len(records) == number else None


@functools.cache
def _reading_function() -> tf.types.experimental.ConcreteFunction:
    def read(offset: tf.Tensor, buffer_bytes: tf.Tensor, number: tf.Tensor, path: tf.Tensor) -> tf.Tensor:
        # tf.data.TFRecordDataset has no offsets.
        variant = tf.raw_ops.TFRecordDatasetV2(
            filenames=[path], compression_type="", buffer_size=buffer_bytes, byte_offsets=[offset]
        )
        records = VariantDataset(variant, tf.TensorSpec([], tf.string), [], holds=None)
        return records.take(number).batch(number).get_single_element()

    number = tf.TensorSpec([], tf.int64)
    with tf.init_scope(), tf.device("CPU:0"):
        return tf.function(
            read, input_signature=[number, number, number, tf.TensorSpec([], tf.string)], autograph=False
        ).get_concrete_function()
