"""Files by their paths: on this machine, and behind a scheme such as `s3://`.

A path that a user gave becomes text by `resolved`, once, which finds out whether anything installed reads its scheme.
From then on all paths are treated alike. Whatever fails is an `OSError` with the path; what passes is tried again.
"""

from keras_turbo.files.paths import resolved, is_remote, default_cache_dir
from keras_turbo.files.paths import absolute, inside, join, name_of, parent_of, relative_to
from keras_turbo.files.content import Status, status_of, kind_of, exists, is_file, is_folder, require_reachable
from keras_turbo.files.content import names_in, entries, find
from keras_turbo.files.content import read_bytes, read_at, opened
from keras_turbo.files.content import writing, write_whole, put_in_place, writing_folder, sync
from keras_turbo.files.content import make_folder, require_writable, remove_file, remove_folder, remove_abandoned
from keras_turbo.files.attempts import TRANSIENT, TRANSIENT_READING, retried, each_of
from keras_turbo.files.content import each_path
