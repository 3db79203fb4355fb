"""Files of this machine: looked at, read and written whole or not at all."""

from __future__ import annotations

import errno
import os
import socket
import stat
import threading
import time

import pytest

from keras_turbo import files


@pytest.fixture
def umask():
    before = os.umask(0o027)
    yield
    os.umask(before)


class TestWriting:
    def test_whole(self, tmp_path, umask):
        path = tmp_path / "größe"
        with files.writing(str(path)) as file:
            file.write(b"half")
            file.flush()
            assert not path.exists()
            file.write(b" and whole")
            file.seek(0)
            assert file.read() == b"half and whole"
        assert path.read_bytes() == b"half and whole"
        assert stat.S_IMODE(path.stat().st_mode) == 0o640
        files.write_whole(str(path), b"new")
        files.write_whole(str(path), lambda: [memoryview(b"ne"), b"wer"])
        assert path.read_bytes() == b"newer"
        assert os.listdir(tmp_path) == ["größe"]

    @pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
    def test_not_at_all(self, tmp_path, error):
        path = tmp_path / "file"
        path.write_bytes(b"before")
        with pytest.raises(error), files.writing(str(path)) as file:
            file.write(b"half")
            raise error
        with pytest.raises(error), files.writing_folder(str(tmp_path / "folder")) as folder:
            files.write_whole(files.join(folder, "a"), b"a")
            raise error
        assert path.read_bytes() == b"before"
        assert os.listdir(tmp_path) == ["file"]

    def test_errors_have_the_path(self, tmp_path):
        for path in (tmp_path / "none" / "file", tmp_path):
            with pytest.raises(OSError, match=str(path)):
                files.write_whole(str(path), b"x")

        def full():
            yield b"half"
            raise OSError(errno.ENOSPC, "No space left on device")

        with pytest.raises(OSError, match=r"No space left on device: '.*/full'") as caught:
            files.write_whole(str(tmp_path / "full"), full)
        assert caught.value.errno == errno.ENOSPC
        assert os.listdir(tmp_path) == []

    def test_what_passes_is_tried_again_from_the_start(self, tmp_path, monkeypatch):
        monkeypatch.setattr(files.attempts, "_WAITS_SECONDS", (0, 0))
        calls = []

        def pieces():
            calls.append(1)
            yield b"piece"
            if len(calls) < 3:
                raise OSError(errno.ESTALE, "Stale file handle")

        files.write_whole(str(tmp_path / "file"), pieces)
        assert (tmp_path / "file").read_bytes() == b"piece"
        assert len(calls) == 3
        calls.clear()
        monkeypatch.setattr(files.attempts, "_WAITS_SECONDS", (0,))
        with pytest.raises(OSError, match="Stale"):
            files.write_whole(str(tmp_path / "file"), pieces)

    def test_a_link_is_replaced_and_not_followed(self, tmp_path):
        (tmp_path / "target").write_bytes(b"precious")
        (tmp_path / "link").symlink_to(tmp_path / "target")
        files.write_whole(str(tmp_path / "link"), b"new")
        assert (tmp_path / "target").read_bytes() == b"precious"
        assert not (tmp_path / "link").is_symlink()

    def test_a_folder(self, tmp_path, umask):
        path = tmp_path / "above" / "folder"
        with files.writing_folder(str(path)) as folder:
            files.write_whole(files.join(folder, "a"), b"a")
            assert not path.exists()
        assert files.read_bytes(files.join(str(path), "a")) == b"a"
        assert stat.S_IMODE(path.stat().st_mode) == 0o750
        with pytest.raises(OSError, match="folder"), files.writing_folder(str(path)):
            pass
        assert os.listdir(path.parent) == ["folder"]

    def test_what_a_killed_process_left_is_removed_later(self, tmp_path):
        folder = tmp_path / "[x]"
        for age, name in ((7200, "old"), (60, "young")):
            (folder / f".writing-{name}" / "below").mkdir(parents=True)
            (folder / f".writing-{name}-file").touch()
            for path in folder.glob(f".writing-{name}*"):
                os.utime(path, (time.time() - age,) * 2)
        (folder / "mine").touch()
        os.utime(folder / "mine", (0, 0))
        files.remove_abandoned(str(folder))
        assert files.names_in(str(folder)) == [".writing-young", ".writing-young-file", "mine"]
        files.remove_abandoned(str(tmp_path / "none"))

    def test_many_writers_at_once_leave_one_of_their_files(self, tmp_path):
        contents = [bytes([number]) * 100_000 for number in range(8)]
        threads = [
            threading.Thread(target=files.write_whole, args=(str(tmp_path / "file"), content)) for content in contents
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (tmp_path / "file").read_bytes() in contents
        assert os.listdir(tmp_path) == ["file"]


class TestLooking:
    def test_kinds(self, tmp_path):
        os.mkfifo(tmp_path / "pipe.jpg")
        (tmp_path / "file").write_bytes(b"0123")
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(tmp_path / "socket"))
        (tmp_path / "loop").symlink_to("loop")
        (tmp_path / "endless").symlink_to("/dev/zero")
        kinds = {name: files.kind_of(str(tmp_path / name)) for name in ("file", "pipe.jpg", "socket", "endless", "no")}
        assert kinds == {"file": "file", "pipe.jpg": "pipe", "socket": "socket", "endless": "device", "no": None}
        assert files.kind_of(str(tmp_path)) == "folder"
        assert files.kind_of(str(tmp_path / "file" / "below")) is None
        with pytest.raises(OSError, match="loop"):
            files.exists(str(tmp_path / "loop"))
        assert files.is_file(str(tmp_path / "file"))
        assert not files.is_file(str(tmp_path / "pipe.jpg"))
        assert files.status_of(str(tmp_path / "file")) == (4, (tmp_path / "file").stat().st_mtime_ns)

    @pytest.mark.timeout(20)
    def test_what_has_no_end_is_refused_by_name(self, tmp_path):
        os.mkfifo(tmp_path / "x.jpg")
        (tmp_path / "zeros.jpg").symlink_to("/dev/zero")
        for name, message in (("x.jpg", "It is a pipe, and no file: '.*x.jpg'"), ("zeros.jpg", "It is a device")):
            for read in (files.read_bytes, lambda path: files.read_at(path, 0, 16), lambda path: next_of(path)):
                with pytest.raises(OSError, match=message):
                    read(str(tmp_path / name))
        with pytest.raises(IsADirectoryError, match=str(tmp_path)):
            files.read_bytes(str(tmp_path))

    def test_listing_and_patterns(self, tmp_path):
        for name in ("b.bin", "a.bin", "sub/c.bin", ".hidden"):
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).touch()
        assert files.names_in(str(tmp_path)) == [".hidden", "a.bin", "b.bin", "sub"]
        assert files.entries(str(tmp_path))[2:] == [("b.bin", False), ("sub", True)]
        assert files.find(f"{tmp_path}/**/*") == [str(tmp_path / name) for name in ("a.bin", "b.bin", "sub/c.bin")]
        with pytest.raises(NotADirectoryError, match="a.bin"):
            files.names_in(str(tmp_path / "a.bin"))

    def test_reading(self, tmp_path):
        (tmp_path / "file").write_bytes(b"0123456789")
        path = str(tmp_path / "file")
        assert files.read_bytes(path) == b"0123456789"
        assert [files.read_at(path, 8, 5), files.read_at(path, 20, 5), files.read_at(path, 7, -1)] == [
            b"89",
            b"",
            b"789",
        ]
        with files.opened(path) as (file, status):
            assert (file.seek(5), file.read(), status.size) == (5, b"56789", 10)

    def test_a_read_that_fails_for_a_moment_is_done_again(self, tmp_path, monkeypatch):
        monkeypatch.setattr(files.attempts, "_WAITS_SECONDS", (0, 0))
        (tmp_path / "file").write_bytes(b"x")
        whole, errors = os.open, [errno.ESTALE, errno.EAGAIN]

        def flaky(path, *arguments, **keywords):
            if errors and str(path).endswith("file"):
                raise OSError(errors.pop(), "for a moment", path)
            return whole(path, *arguments, **keywords)

        monkeypatch.setattr(os, "open", flaky)
        assert files.read_bytes(str(tmp_path / "file")) == b"x"
        assert errors == []


class TestPaths:
    @pytest.mark.parametrize("name", ["../x", "a/../../x", "/etc/passwd", "out/x", "a\0b"])
    def test_names_that_lead_out(self, tmp_path, name):
        (tmp_path / "folder").mkdir()
        (tmp_path / "folder" / "out").symlink_to(tmp_path)
        with pytest.raises(PermissionError, match="leads out of the folder"):
            files.inside(str(tmp_path / "folder"), name)

    def test_names_that_stay(self, tmp_path):
        (tmp_path / "real" / "below").mkdir(parents=True)
        (tmp_path / "real" / "link").symlink_to("below")
        (tmp_path / "folder").symlink_to("real")
        for name in ("a", "below/a", "link/a", "a..b"):
            assert files.inside(str(tmp_path / "folder"), name) == str(tmp_path / "folder" / name)
        assert files.inside("ram://x/", "a/b") == "ram://x/a/b"
        with pytest.raises(PermissionError, match="leads out"):
            files.inside("ram://x", "../y")

    def test_a_user_without_a_home(self, monkeypatch):
        monkeypatch.delenv("XDG_CACHE_HOME")
        monkeypatch.setenv("HOME", "/home/somebody")
        assert str(files.default_cache_dir()) == "/home/somebody/.cache/keras_turbo"
        monkeypatch.delenv("HOME")
        monkeypatch.setattr(os.path, "expanduser", lambda path: path)
        with pytest.raises(FileNotFoundError, match="Give `cache_dir`, or set XDG_CACHE_HOME"):
            files.default_cache_dir()


def next_of(path):
    with files.opened(path) as (file, _):
        return file.read(1)


def test_an_error_of_the_code_stays_one(tmp_path):
    def fault():
        raise TypeError("a fault of the code")

    with pytest.raises(TypeError, match="a fault"):
        files.retried(fault, path=str(tmp_path))
    with pytest.raises(TypeError, match="a fault"):
        files.write_whole(str(tmp_path / "x"), fault)
