"""Where everything stands in an HDF5 file of given arrays, found without writing the arrays through h5py.

h5py holds Python's lock while it writes, so a slow disk would hold up training, and it seeks to and fro, so no checksum
can be computed as the bytes go out and no object store can be written. In HDF5 a contiguous array stands in one piece,
as it stands in memory. So h5py is only asked to lay the file out, in memory, with room for the arrays; a file is
then its metadata and the arrays' own buffers, one after the other. What comes of it is a plain HDF5 file.
"""

from __future__ import annotations

import functools
import io
from collections.abc import Mapping
from dataclasses import dataclass

import h5py
import numpy as np

_PAGE = 4096

# The types that HDF5 has no name for are stored as bytes, with their name beside them, as Keras does for bfloat16.
_NAMED_KIND = "V"
DTYPE_ATTRIBUTE = "dtype"


@dataclass(frozen=True)
class Hdf5Layout:
    """An HDF5 file without its arrays.

    Args:
        pieces: the file from its start to its end: bytes that are there as they are, and names of arrays.
        nbytes: size of the file.
    """

    pieces: tuple[bytes | str, ...]
    nbytes: int

    def filled(self, arrays: Mapping[str, np.ndarray]) -> list[memoryview]:
        """The file's content in order, with the arrays' own memory in it: nothing large is copied.

        Args:
            arrays: name to array, of the shapes and types that the layout was made for.
        """
        return [memoryview(piece) if isinstance(piece, bytes) else _bytes_of(arrays[piece]) for piece in self.pieces]


def hdf5_layout(
    arrays: Mapping[str, np.ndarray], attributes: Mapping[str, Mapping[str, str]] | None = None
) -> Hdf5Layout:
    """Lays out an HDF5 file. The same shapes and types are laid out once.

    Args:
        arrays: path in the file ("layers/dense/vars/0") to array; only shapes and types are looked at.
        attributes: path of a group to its attributes. The group is made if no array is in it.

    Raises:
        ValueError: a path or a type that HDF5 can't have.
    """
    entries = tuple((path, np.shape(array), np.dtype(array.dtype)) for path, array in arrays.items())
    _check(entries)
    groups = tuple((path, tuple(values.items())) for path, values in (attributes or {}).items())
    return _laid_out(entries, groups)


def _check(entries: tuple[tuple[str, tuple[int, ...], np.dtype], ...]) -> None:
    for path, _, dtype in entries:
        if any(part in ("", ".") for part in path.split("/")) or "\0" in path:
            raise ValueError(
                f"An array in an HDF5 file must have a path like 'layers/dense/vars/0'. Received: {path!r}."
            )
        if dtype.hasobject or dtype.kind == "U":
            raise ValueError(
                f"{path} is an array of {dtype}, which can't be saved: arrays must be of numbers or bytes."
            )
    paths = {path for path, _, _ in entries}
    for path in paths:
        above = path.rpartition("/")[0]
        while above:
            if above in paths:
                raise ValueError(f"{above!r} is an array, so {path!r} can't be below it in an HDF5 file.")
            above = above.rpartition("/")[0]


# A run saves the same arrays again and again, in a few files.
@functools.lru_cache(maxsize=64)
def _laid_out(
    entries: tuple[tuple[str, tuple[int, ...], np.dtype], ...],
    groups: tuple[tuple[str, tuple[tuple[str, str], ...]], ...],
) -> Hdf5Layout:
    sparse = _SparseFile()
    places = []
    with h5py.File(sparse, "w") as file:
        for path, values in groups:
            attrs = file.require_group(path).attrs
            for key, value in values:
                attrs[key] = value
        plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        plist.set_layout(h5py.h5d.CONTIGUOUS)
        # Room now, and no zeros written into it.
        plist.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
        plist.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
        plist.set_obj_track_times(False)
        for path, shape, dtype in entries:
            group, _, key = path.rpartition("/")
            parent = file.require_group(group) if group else file
            kind, space = h5py.h5t.py_create(dtype, logical=True), h5py.h5s.create_simple(shape)
            if not shape:
                space = h5py.h5s.create(h5py.h5s.SCALAR)
            made = h5py.h5d.create(parent.id, key.encode(), kind, space, plist)
            if dtype.kind == _NAMED_KIND and dtype.names is None and dtype.name != f"void{8 * dtype.itemsize}":
                h5py.Dataset(made).attrs[DTYPE_ATTRIBUTE] = dtype.name
            nbytes = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
            if nbytes:
                places.append((made.get_offset(), nbytes, path))
    return _joined(sparse, sorted(places))


def _joined(sparse: _SparseFile, places: list[tuple[int, int, str]]) -> Hdf5Layout:
    pieces: list[bytes | str] = []
    position = 0
    for offset, nbytes, path in places:
        if offset < position:
            raise RuntimeError(f"HDF5 {h5py.version.hdf5_version} laid out two arrays at one place.")
        if offset > position:
            pieces.append(sparse.between(position, offset))
        pieces.append(path)
        position = offset + nbytes
    if sparse.size > position:
        pieces.append(sparse.between(position, sparse.size))
    return Hdf5Layout(tuple(pieces), max(position, sparse.size))


def _bytes_of(array: np.ndarray) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


class _SparseFile(io.RawIOBase):
    """A file in memory that only keeps the pages that were written."""

    def __init__(self) -> None:
        super().__init__()
        self.size = 0
        self._position = 0
        self._pages: dict[int, bytearray] = {}

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._position = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self.size}[whence] + offset
        return self._position

    def tell(self) -> int:
        return self._position

    def truncate(self, size: int | None = None) -> int:
        self.size = self._position if size is None else size
        return self.size

    def write(self, data) -> int:  # noqa: ANN001 (any buffer, as of io.RawIOBase)
        view = memoryview(data).cast("B")
        for start, stop, page, within in self._spans(self._position, len(view)):
            self._pages.setdefault(page, bytearray(_PAGE))[within : within + stop - start] = view[start:stop]
        self._position += len(view)
        self.size = max(self.size, self._position)
        return len(view)

    def readinto(self, buffer) -> int:  # noqa: ANN001 (any buffer, as of io.RawIOBase)
        view = memoryview(buffer).cast("B")
        number = max(0, min(len(view), self.size - self._position))
        view[:number] = self.between(self._position, self._position + number)
        self._position += number
        return number

    def between(self, start: int, stop: int) -> bytes:
        """The bytes from one place to another; zeros where nothing was written."""
        result = bytearray(stop - start)
        for first, last, page, within in self._spans(start, stop - start):
            if page in self._pages:
                result[first:last] = self._pages[page][within : within + last - first]
        return bytes(result)

    @staticmethod
    def _spans(position: int, length: int):  # noqa: ANN205 (a generator of four integers)
        done = 0
        while done < length:
            page, within = divmod(position + done, _PAGE)
            number = min(_PAGE - within, length - done)
            yield done, done + number, page, within
            done += number
