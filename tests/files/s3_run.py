"""What `test_remote.py` runs in a process of its own, against a real S3 server.

python s3_run.py tensorflow-io|fsspec
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import sys
import tempfile
import urllib.request

import boto3
import pytest

if sys.argv[1] == "fsspec":
    sys.modules["tensorflow_io"] = None  # as if it were not installed

from keras_turbo import files
from keras_turbo.files.remote import RemoteFile, TensorFlowFiles, system_of

endpoint = os.environ["S3_ENDPOINT"]
name_of_bucket = f"files-{sys.argv[1]}"
bucket = f"s3://{name_of_bucket}"
client = boto3.client("s3", endpoint_url=endpoint)
client.create_bucket(Bucket=name_of_bucket)
client.put_object(Bucket=name_of_bucket, Key="empty/", Body=b"")  # as consoles make folders
client.put_object(Bucket=name_of_bucket, Key="none", Body=b"")

run = files.resolved(f"{bucket}/größe [1]/run 2", "path", writes=True)
assert isinstance(system_of(run)[0], TensorFlowFiles) == (sys.argv[1] == "tensorflow-io")
assert not files.exists(run)
files.make_folder(run)
content = bytes(range(256)) * 20_000
for name in ("a.bin", "b.bin", "sub/c.bin", "sub/deep er/ü.bin", ".hidden/d.bin", "sub/.e.bin", "[x].bin", "x"):
    files.write_whole(files.join(run, name), lambda: (content[:7], memoryview(content)[7:]))
assert files.status_of(f"{run}/a.bin").size == len(content)
assert [files.kind_of(path) for path in (f"{run}/a.bin", run, bucket, f"{bucket}/empty", f"{run}/no")] == [
    "file",
    "folder",
    "folder",
    "folder",
    None,
]
assert files.names_in(run) == [".hidden", "[x].bin", "a.bin", "b.bin", "sub", "x"]
assert files.entries(f"{run}/sub") == [(".e.bin", False), ("c.bin", False), ("deep er", True)]
assert files.entries(f"{bucket}/empty") == []
escaped = run.replace("[", "[[]")
assert files.find(f"{escaped}/*.bin") == [f"{run}/{name}.bin" for name in ("[x]", "a", "b")]
assert files.find(f"{escaped}/**/*.bin") == [
    f"{run}/{name}.bin" for name in ("[x]", "a", "b", "sub/c", "sub/deep er/ü")
]

assert files.read_bytes(f"{run}/a.bin") == content
assert files.read_at(f"{run}/a.bin", 300, 20) == content[300:320]
assert files.read_at(f"{run}/a.bin", len(content) - 3, 20) == content[-3:]
assert files.read_at(f"{run}/a.bin", len(content) + 3, 20) == b""
assert files.read_at(f"{bucket}/none", 0, 20) == files.read_bytes(f"{bucket}/none") == b""
for read_ahead in (0, 1 << 22):
    with files.opened(f"{run}/a.bin", read_ahead_bytes=read_ahead) as (file, status):
        assert (file.seek(-30, os.SEEK_END), file.read(20)) == (len(content) - 30, content[-30:-10])
        assert (file.read(20), file.read(5), file.tell()) == (content[-10:], b"", len(content))
        assert (file.seek(3), file.seek(4, os.SEEK_CUR), file.read()) == (3, 7, content[7:])
with RemoteFile(f"{run}/a.bin", len(content) + 1, 0) as cut, pytest.raises(OSError, match="ended before"):
    cut.read()
with pytest.raises(OSError, match="changed while it was read"), files.opened(f"{run}/b.bin"):
    files.write_whole(f"{run}/b.bin", b"shorter")
assert files.read_bytes(f"{run}/b.bin") == b"shorter"

with pytest.raises(ZeroDivisionError), files.writing(f"{run}/b.bin") as half:
    half.write(b"half of it")
    raise ZeroDivisionError
assert files.read_bytes(f"{run}/b.bin") == b"shorter"
assert [name for name in os.listdir(tempfile.gettempdir()) if name.startswith(".writing-")] == []
local = pathlib.Path(tempfile.gettempdir(), "whole")
local.write_bytes(b"whole")
files.put_in_place(str(local), f"{run}/whole")
assert files.read_bytes(f"{run}/whole") == b"whole"
assert not local.exists()

for _ in range(2):
    files.remove_file(f"{run}/whole")
    files.remove_folder(f"{run}/sub")
assert files.names_in(run) == [".hidden", "[x].bin", "a.bin", "b.bin", "x"]
files.remove_folder(run)
assert not files.exists(run)

for act, error, message in (
    (lambda: files.names_in(f"{bucket}/no"), FileNotFoundError, f"{bucket}/no"),
    (lambda: files.names_in(f"{bucket}/none"), NotADirectoryError, f"{bucket}/none"),
    (lambda: files.read_bytes(f"{bucket}/no"), FileNotFoundError, f"{bucket}/no"),
    (lambda: files.status_of(f"{bucket}/no"), FileNotFoundError, f"{bucket}/no"),
    (lambda: files.require_reachable("s3://nobucket/x"), FileNotFoundError, "no such bucket"),
    (lambda: files.write_whole("s3://nobucket/x", b""), FileNotFoundError, "s3://nobucket/x"),
):
    with pytest.raises(error, match=message):
        act()
with contextlib.suppress(FileNotFoundError):
    files.make_folder("s3://nobucket/x")
assert {one["Name"] for one in client.list_buckets()["Buckets"]} & {name_of_bucket, "nobucket"} == {name_of_bucket}

# From here on the server looks at credentials, and these are wrong.
request = urllib.request.Request(
    f"{endpoint}/moto-api/reset-auth", data=b"0", method="POST", headers={"Content-Type": "text/plain"}
)
urllib.request.urlopen(request).close()
try:
    with pytest.raises(PermissionError, match=f"The store refuses. Are the credentials right.*{bucket}"):
        files.require_reachable(f"{bucket}/x")
    # tensorflow-io takes what it may not look at for what is not there.
    refusal = PermissionError if sys.argv[1] == "fsspec" else FileNotFoundError
    for act in (files.read_bytes, files.names_in, files.status_of):
        with pytest.raises(refusal, match=f"{bucket}/none"):
            act(f"{bucket}/none")
finally:
    request.data = b"inf"
    urllib.request.urlopen(request).close()
sys.stdout.write("done\n")
