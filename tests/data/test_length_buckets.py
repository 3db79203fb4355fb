"""`bucket_by_length`: sequences of unequal lengths in batches of a few shapes."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_turbo import FastDataset
from keras_turbo.data.engine.buckets import LengthBuckets
from keras_turbo.data.engine.failures import ExampleLoadError
from tests.data.epochs import batches_of, bytes_of

RNG = np.random.default_rng(0)
# From 1 to 20 long; 7 is a length that the first bucket holds, 8 one that it does not.
SEQUENCES = [RNG.integers(1, 100, length).tolist() for length in [*RNG.integers(1, 21, 57), 7, 8, 20]]
LABELS = np.arange(60)
BUCKETS = [7, 12, 20]


def fits(length: int) -> int:
    return next(boundary for boundary in BUCKETS if length <= boundary)


def assert_complete(batches, labels=LABELS):
    """Every example once, whole, filled up with zeros to the length of its bucket."""
    seen = []
    for rows, numbers in batches:
        for row, number in zip(rows, numbers, strict=True):
            sequence = SEQUENCES[number]
            assert rows.shape[1] == fits(len(sequence))
            assert row[: len(sequence)].tolist() == sequence
            assert not row[len(sequence) :].any()
        seen += numbers.tolist()
    assert sorted(seen) == sorted(labels)


def forms():
    as_arrays = [np.array(sequence) for sequence in SEQUENCES]
    objects = np.empty(len(SEQUENCES), object)
    objects[:] = as_arrays
    return {"lists": SEQUENCES, "arrays": as_arrays, "objects": objects, "ragged": tf.ragged.constant(SEQUENCES)}


class TestBatches:
    @pytest.mark.parametrize("form", forms())
    @pytest.mark.parametrize("shuffle", [False, True])
    def test_every_sequence_comes_once_filled_up_to_its_bucket(self, form, shuffle):
        data = FastDataset(forms()[form], LABELS, batch_size=8, bucket_by_length=BUCKETS, shuffle=shuffle, seed=1)
        batches = batches_of(data)
        assert_complete(batches)
        assert len(batches) == int(data.cardinality())
        full = sum(len(numbers) == 8 for _, numbers in batches)
        # Of each bucket, one batch at most is not full.
        assert full >= len(batches) - len(BUCKETS)

    def test_epochs_are_functions_of_the_seed(self):
        def data(seed=1, **options):
            return FastDataset(
                SEQUENCES, LABELS, batch_size=8, bucket_by_length=BUCKETS, shuffle=True, seed=seed, **options
            )

        one, other = data(), data()
        first = bytes_of(one)
        assert bytes_of(other) == first
        second = bytes_of(one)
        assert second == bytes_of(other) != first
        assert bytes_of(data(seed=2)) != first
        fixed = data(reshuffle_each_epoch=False)
        assert bytes_of(fixed) == bytes_of(fixed)

    def test_examples_meet_others_in_each_epoch(self):
        data = FastDataset(SEQUENCES, LABELS, batch_size=8, bucket_by_length=BUCKETS, shuffle=True, seed=1)
        first, second = ({frozenset(numbers) for _, numbers in batches_of(data)} for _ in range(2))
        assert not first & {batch for batch in second if len(batch) == 8}

    def test_full_batches_alone(self):
        data = FastDataset(SEQUENCES, LABELS, batch_size=8, bucket_by_length=BUCKETS, drop_remainder=True)
        assert data.element_spec[0].shape.as_list() == [8, None]
        batches = batches_of(data)
        assert {len(numbers) for _, numbers in batches} == {8}
        assert len(batches) == int(data.cardinality())

    def test_resuming_and_shards(self):
        def data():
            return FastDataset(SEQUENCES, LABELS, batch_size=8, bucket_by_length=BUCKETS, shuffle=True, seed=1)

        whole = data()
        batches_of(whole)
        batches = batches_of(whole)
        whole.resume_at(1, 3)
        for ours, theirs in zip(batches_of(whole), batches[3:], strict=True):
            np.testing.assert_array_equal(ours[0], theirs[0])
        assert_complete([batch for index in range(2) for batch in batches_of(data().shard(2, index))])
        equal = [len(batches_of(data().shard(2, index, remainder="drop"))) for index in range(2)]
        assert equal[0] == equal[1]

    def test_labels_are_in_the_order_of_rows(self):
        data = FastDataset(SEQUENCES, LABELS, batch_size=8, bucket_by_length=BUCKETS)
        np.testing.assert_array_equal(data.labels, np.concatenate([numbers for _, numbers in batches_of(data)]))
        with pytest.raises(ValueError, match="no fixed order"):
            FastDataset(SEQUENCES, LABELS, bucket_by_length=BUCKETS, shuffle=True).labels  # noqa: B018

    def test_functions_are_called_for_examples_as_they_are(self):
        def reversed_and_noisy(x, y, seed):
            return x[::-1] + tf.random.stateless_uniform([], seed, 100, 200, tf.int64), y

        options = {"batch_size": 8, "bucket_by_length": BUCKETS, "shuffle": True, "seed": 1}
        data = FastDataset(SEQUENCES, LABELS, map_fn=lambda x: x * 2, augment_fn=reversed_and_noisy, **options)
        first = batches_of(data)
        for rows, numbers in first:
            for row, number in zip(rows, numbers, strict=True):
                sequence = 2 * np.array(SEQUENCES[number])[::-1]
                added = np.unique(row[: len(sequence)] - sequence)
                assert added.size == 1
                assert 100 <= added[0] < 200
                assert not row[len(sequence) :].any()
        data.resume_at(0, 0)
        assert bytes_of(data) == b"".join(leaf.tobytes() for batch in first for leaf in batch)

    def test_several_inputs_and_targets_for_each_step(self):
        x = {"tokens": SEQUENCES, "age": np.arange(60, dtype="float64")}
        tags = [[[float(token)] * 2 for token in sequence] for sequence in SEQUENCES]
        data = FastDataset(x, tags, batch_size=8, bucket_by_length=BUCKETS)
        assert data.element_spec[1].shape.as_list() == [None, None, 2]
        for batch, targets in batches_of(data):
            assert batch["tokens"].shape == targets.shape[:2]
            np.testing.assert_array_equal(batch["tokens"], targets[..., 0])
            assert batch["age"].dtype == targets.dtype == "float32"

    def test_words_and_empty_sequences(self):
        data = FastDataset([["a", "b"], [], ["c"]], batch_size=3, bucket_by_length=[2])
        assert batches_of(data)[0].tolist() == [[b"a", b"b"], [b"", b""], [b"c", b""]]


class TestStreams:
    def dataset(self):
        spec = (tf.TensorSpec([None], tf.int64), tf.TensorSpec([], tf.int64))
        return tf.data.Dataset.from_generator(lambda: zip(SEQUENCES, LABELS, strict=True), output_signature=spec)

    @pytest.mark.parametrize("shuffle", [False, True])
    def test_every_sequence_comes_once(self, shuffle):
        data = self.dataset().apply(tf.data.experimental.assert_cardinality(60))
        data = FastDataset(data, batch_size=8, bucket_by_length=BUCKETS, shuffle=shuffle, seed=1)
        assert_complete(batches_of(data))
        assert int(data.cardinality()) == tf.data.UNKNOWN_CARDINALITY

    def test_resuming_reads_and_gives_the_rest(self):
        data = FastDataset(self.dataset(), batch_size=8, bucket_by_length=BUCKETS)
        whole = batches_of(data)
        with pytest.warns(UserWarning, match="which elements of a tf.data.Dataset are in a batch is known once"):
            data.resume_at(0, 3)
        rest = batches_of(data)
        assert len(rest) == len(whole) - 3
        np.testing.assert_array_equal(rest[0][0], whole[3][0])

    def test_too_long(self):
        with pytest.raises(tf.errors.InvalidArgumentError, match="an element is longer than 12"):
            batches_of(FastDataset(self.dataset(), batch_size=8, bucket_by_length=[7, 12]))
        cut = FastDataset(self.dataset(), batch_size=8, bucket_by_length=[7, 12], too_long="truncate")
        assert {rows.shape[1] for rows, _ in batches_of(cut)} == {7, 12}

    def test_of_records(self, tmp_path):
        with tf.io.TFRecordWriter(str(tmp_path / "a.tfrecord")) as writer:
            for sequence in SEQUENCES:
                feature = tf.train.Feature(int64_list=tf.train.Int64List(value=sequence))
                example = tf.train.Example(features=tf.train.Features(feature={"tokens": feature}))
                writer.write(example.SerializeToString())
        features = {"tokens": tf.io.VarLenFeature(tf.int64)}
        records = FastDataset.from_tfrecord(tmp_path, features, x="tokens", batch_size=None, shuffle=True, seed=1)
        data = FastDataset(records, batch_size=8, bucket_by_length=BUCKETS)
        rows = [row[row > 0].tolist() for batch in batches_of(data) for row in batch]
        assert sorted(rows) == sorted(SEQUENCES)


class TestRefused:
    @pytest.mark.parametrize(
        ("x", "options", "message"),
        [
            (SEQUENCES, {"bucket_by_length": [7, 12]}, r"has length \d+, more than 12.*\(\d+ are too long\)"),
            (SEQUENCES, {"bucket_by_length": []}, "ascending lengths from 1"),
            (SEQUENCES, {"bucket_by_length": [12, 7]}, "ascending lengths from 1"),
            (SEQUENCES, {"bucket_by_length": [0, 20]}, "ascending lengths from 1"),
            (SEQUENCES, {"bucket_by_length": BUCKETS, "batch_size": None}, "Give a batch_size"),
            (SEQUENCES, {"bucket_by_length": BUCKETS, "cache": "memory"}, "keeps examples of one shape"),
            (SEQUENCES, {"bucket_by_length": BUCKETS, "on_error": "skip"}, "composed beforehand"),
            (SEQUENCES, {"bucket_by_length": BUCKETS, "batch_size": 99, "drop_remainder": True}, "leaves no batch"),
            (SEQUENCES[:-1], {"bucket_by_length": BUCKETS}, "same number of examples"),
            (np.ones((60, 3)), {"bucket_by_length": BUCKETS}, "all rows have equal ones"),
            (SEQUENCES, {"bucket_by_length": BUCKETS, "too_long": "cut"}, "'raise' or 'truncate'"),
            (np.ones((60, 3)), {"too_long": "truncate"}, "Give that"),
            (lambda: iter(SEQUENCES), {"bucket_by_length": BUCKETS, "workers": 0}, "needs sequences in memory|beside"),
        ],
    )
    def test_values(self, x, options, message):
        with pytest.raises(ValueError, match=message):
            FastDataset(x, LABELS, **options)

    @pytest.mark.parametrize("boundaries", ["20", 20, [7.0, 20.0], [True]])
    def test_boundaries_of_other_types(self, boundaries):
        with pytest.raises(TypeError, match="must be a list of integers. Received: "):
            FastDataset(SEQUENCES, LABELS, bucket_by_length=boundaries)

    @pytest.mark.parametrize(
        "x", [[[1], [[2]]], [1, [2]], [[1], ["a", None]], tf.ragged.constant([[[1], [2, 3]], [[4]]])]
    )
    def test_what_is_no_list_of_sequences(self, x):
        with pytest.raises(TypeError, match="sequences"):
            FastDataset(x, bucket_by_length=BUCKETS)

    def test_a_stream_without_sequences(self):
        with pytest.raises(ValueError, match="whose first axis is of unknown length"):
            FastDataset(tf.data.Dataset.range(9), bucket_by_length=BUCKETS)

    def test_a_function_that_lengthens(self):
        data = FastDataset(SEQUENCES, bucket_by_length=BUCKETS, map_fn=lambda x: tf.concat([x] * 30, 0))
        with pytest.raises(ExampleLoadError, match="may not lengthen"):
            batches_of(data)


def test_what_is_too_long_is_cut_if_asked():
    data = FastDataset(SEQUENCES, LABELS, batch_size=8, bucket_by_length=[7, 12], too_long="truncate")
    for rows, numbers in batches_of(data):
        for row, number in zip(rows, numbers, strict=True):
            kept = SEQUENCES[number][:12]
            assert row[: len(kept)].tolist() == kept


def test_the_first_bucket_that_holds_an_example_is_its_own():
    buckets = LengthBuckets(np.array([0, 1, 4, 5, 8, 9]), (4, 8), 2, False, None)
    composed = buckets.composed(0)
    assert [(length, rows.tolist()) for length, rows in map(composed, range(buckets.num_batches))] == [
        (4, [0, 1]),
        (4, [2]),
        (8, [3, 4]),
        (8, [5]),
    ]


def test_xla_compiles_once_for_each_bucket():
    data = FastDataset(
        SEQUENCES, LABELS % 2, batch_size=4, bucket_by_length=BUCKETS, shuffle=True, seed=1, drop_remainder=True
    )
    model = keras.Sequential(
        [keras.layers.Embedding(100, 4), keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(2)]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.build([None, None])

    @tf.function(jit_compile=True)
    def step(x, y):
        return loss(y, model(x))

    for _ in range(3):
        for x, y in data:
            step(x, y)
    assert step.experimental_get_tracing_count() == len(BUCKETS)

    model.compile("sgd", loss, jit_compile=True)
    assert np.isfinite(model.fit(data, epochs=2, verbose=0).history["loss"]).all()


PROGRAMS_OF_FIT = """
import glob, os, sys

# XLA reads it once: it writes each program that it compiles, before it does.
os.environ["XLA_FLAGS"] = f"--xla_dump_to={sys.argv[1]} --xla_dump_hlo_as_text"

import keras
import numpy as np
from keras_turbo import FastDataset

rng = np.random.default_rng(0)
tokens = [rng.integers(1, 50, length) for length in rng.integers(1, 13, 200)]
data = FastDataset(
    tokens, np.arange(200) % 2, batch_size=8, bucket_by_length=[4, 8, 12], shuffle=True, seed=0, drop_remainder=True
)
traces = []

class Model(keras.Model):
    def __init__(self):
        super().__init__()
        self.embedding, self.dense = keras.layers.Embedding(50, 4), keras.layers.Dense(2)

    def call(self, x):
        traces.append(x.shape)
        return self.dense(keras.ops.mean(self.embedding(x), 1))

model = Model()
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile("adam", loss, jit_compile=True)

def programs():
    return len(glob.glob(f"{sys.argv[1]}/*one_step*before_optimizations.txt"))

for _ in range(2):
    model.fit(data, epochs=2, verbose=0)
    print(programs(), len(traces), len({x.shape for x, _ in data}))
"""


def test_fit_under_xla_compiles_a_program_for_each_length_and_no_more(run_python, tmp_path):
    first, second = (tuple(map(int, line.split())) for line in run_python(PROGRAMS_OF_FIT, tmp_path).splitlines())
    programs, traces, lengths = first
    assert programs == lengths == 3
    # The function of the step is traced for any length; Keras builds the model by some more traces.
    assert traces <= 3
    assert second == first
