"""How `map_fn` and `augment_fn` are called, and that what is random in them is a function of the seed."""

from __future__ import annotations

import functools
import random

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_turbo import FastDataset
from keras_turbo.data.functions import ElementFunction, RandomFunction
from tests.data.epochs import batches_of, bytes_of, rows_of

# TensorFlow's own warning about random ops in functions, of which the rewriting here takes care.
pytestmark = pytest.mark.filterwarnings("ignore:Seed .* from outer graph")

SEED = tf.constant([3, 4], tf.int64)
X, Y, W = tf.constant([1.0, 2.0]), tf.constant(3), tf.constant(0.5)


def numbers_of(element):
    return tf.nest.map_structure(lambda tensor: tensor.numpy().tolist(), element)


class Scaler:
    """A callable object, and one with a method."""

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def __call__(self, x):
        return x * self.factor

    def scale_both(self, x, y):
        return x * self.factor, y * 2


class TestCalls:
    @pytest.mark.parametrize(
        "function",
        [
            lambda x: x * 10,
            lambda image: image * 10,
            lambda x, factor=10.0: x * factor,
            lambda x, *, factor=10.0: x * factor,
            functools.partial(lambda factor, x: x * factor, 10.0),
            functools.partial(lambda x, factor: x * factor, factor=10.0),
            Scaler(10.0),
            Scaler(10.0).__call__,
            keras.layers.Rescaling(10.0),
            tf.function(lambda x: x * 10),
        ],
        ids=[
            "lambda", "any name", "default", "keyword", "partial", "partial keyword", "object", "method", "layer",
            "tf.function",
        ],
    )  # fmt: skip
    def test_x_alone_is_replaced(self, function):
        assert numbers_of(ElementFunction(function, "map_fn")(X)) == [10.0, 20.0]

    @pytest.mark.parametrize(
        "function", [lambda x: x * 10, lambda x, factor=10.0: x * factor, Scaler(10.0), keras.layers.Rescaling(10.0)]
    )
    def test_x_alone_leaves_targets_and_weights(self, function):
        assert numbers_of(ElementFunction(function, "map_fn")((X, Y))) == ([10.0, 20.0], 3)
        assert numbers_of(ElementFunction(function, "map_fn")((X, Y, W))) == ([10.0, 20.0], 3, 0.5)

    @pytest.mark.parametrize(
        "function",
        [
            lambda x, y: (x * 10, y * 2),
            lambda *parts: (parts[0] * 10, parts[1] * 2),
            functools.partial(lambda factor, x, y: (x * factor, y * 2), 10.0),
            Scaler(10.0).scale_both,
            lambda x, y: [x * 10, y * 2],
        ],
        ids=["lambda", "variadic", "partial", "method", "list"],
    )
    def test_all_parts_are_given_and_returned(self, function):
        result = ElementFunction(function, "map_fn")((X, Y))
        assert isinstance(result, tuple)
        assert numbers_of(result) == ([10.0, 20.0], 6)

    def test_three_parts(self):
        function = ElementFunction(lambda x, y, w: (x, y, w * 2), "map_fn")
        assert numbers_of(function((X, Y, W))) == ([1.0, 2.0], 3, 1.0)

    def test_parts_can_be_added_and_dropped(self):
        assert numbers_of(ElementFunction(lambda x: (x, x[0]), "map_fn")(X)) == ([1.0, 2.0], 1.0)
        assert numbers_of(ElementFunction(lambda x, y: x, "map_fn")((X, Y))) == [1.0, 2.0]

    def test_lists_of_tensors_are_structures(self):
        """tf.data would stack them."""
        assert numbers_of(ElementFunction(lambda x: [x, x[0]], "map_fn")((X, Y))) == (([1.0, 2.0], 1.0), 3)
        assert numbers_of(ElementFunction(lambda x, y: ([x, x], y), "map_fn")((X, Y))) == (([1.0, 2.0],) * 2, 3)

    def test_dicts_are_one_x(self):
        function = ElementFunction(lambda parts: {"c": parts["a"] + parts["b"]}, "map_fn")
        assert numbers_of(function(({"a": X, "b": X}, Y))) == ({"c": [2.0, 4.0]}, 3)

    @pytest.mark.parametrize("function", [lambda x, seed: x + seed, lambda x, *, seed: x + seed])
    def test_a_seed_is_given_by_name(self, function):
        x = tf.constant([10, 20], tf.int64)
        assert numbers_of(ElementFunction(function, "augment_fn")(x, SEED)) == [13, 24]
        assert numbers_of(ElementFunction(function, "augment_fn")((x, Y), SEED)) == ([13, 24], 3)

    def test_a_seed_beside_all_parts(self):
        x = tf.constant([10, 20], tf.int64)
        function = ElementFunction(lambda x, y, seed: (x + seed, y), "augment_fn")
        assert numbers_of(function((x, Y), SEED)) == ([13, 24], 3)

    def test_a_seed_with_a_default_is_given_too(self):
        function = ElementFunction(lambda x, seed=None: x + seed, "augment_fn")
        assert numbers_of(function(tf.constant([10, 20], tf.int64), SEED)) == [13, 24]

    def test_without_randomness_a_seed_keeps_its_default(self):
        function = ElementFunction(lambda x, seed=5.0: x + seed, "map_fn")
        assert numbers_of(function(X)) == [6.0, 7.0]

    def test_an_op_s_own_seed_is_no_example_s_seed(self):
        """tf.image.random_* mean a Python number by it."""
        assert not ElementFunction(tf.image.random_flip_left_right, "augment_fn").takes_seed
        assert not ElementFunction(functools.partial(tf.image.random_hue, max_delta=0.1), "augment_fn").takes_seed
        assert ElementFunction(tf.image.stateless_random_flip_left_right, "augment_fn").takes_seed

    def test_layers_act_as_in_training(self):
        ones = tf.ones([1000])
        assert 0 in ElementFunction(keras.layers.Dropout(0.5), "augment_fn")(ones).numpy()
        # One without that argument.
        assert numbers_of(ElementFunction(keras.layers.Flatten(), "augment_fn")(tf.ones([1, 2, 1]))) == [[1.0, 1.0]]

    @pytest.mark.parametrize(
        ("function", "element", "text"),
        [
            (lambda x, y: x, X, r"`map_fn` \(<lambda>\) must take either 1 positional .*<lambda>\(x, y\)"),
            (lambda: 0, X, r"must take either 1 positional .*<lambda>\(\)"),
            (lambda x, y: x, (X, Y, W), r"must take either 3 positional arguments, one for each part"),
            (lambda x, *, strength: x, X, r"<lambda>\(x, \*, strength\)"),
            (lambda x, seed: x, X, r"a parameter named `seed` needs a default, since .* `augment_fn`"),
        ],
        ids=["too many", "none", "two of three", "keyword without default", "seed"],
    )
    def test_another_number_of_arguments_is_refused(self, function, element, text):
        with pytest.raises(TypeError, match=text):
            ElementFunction(function, "map_fn")(element)

    def test_with_a_seed_too(self):
        with pytest.raises(TypeError, match=r"`augment_fn`.* a parameter named `seed` may come on top"):
            ElementFunction(lambda x, y, z: x, "augment_fn")((X, Y), SEED)

    def test_the_error_reaches_whoever_builds_the_dataset(self):
        with pytest.raises(TypeError, match=r"`map_fn` \(<lambda>\) must take either 2 positional"):
            FastDataset(np.zeros(4), np.zeros(4), map_fn=lambda x, y, z: x)

    def test_what_cannot_be_called_is_refused(self):
        with pytest.raises(TypeError, match="`map_fn` must be a function or a Keras layer. Received: 3"):
            ElementFunction(3, "map_fn")

    def test_names_for_messages(self):
        assert ElementFunction(numbers_of, "map_fn").name == "numbers_of"
        assert ElementFunction(Scaler(1.0), "map_fn").name == "Scaler"
        assert ElementFunction(keras.layers.Dropout(0.1), "map_fn").name == "Dropout"


MODULE_LAYER = keras.layers.GaussianNoise(1.0)


def through_a_helper(x):
    return noisy(x)


def noisy(x):
    return MODULE_LAYER(x, training=True)


class Augmenter:
    """Layers among the attributes of an object."""

    def __init__(self) -> None:
        self.layers = {"noise": [noise_layer()]}

    def augment(self, x):
        return self.layers["noise"][0](x, training=True)


def noise_layer() -> keras.Layer:
    return keras.layers.GaussianNoise(1.0)


# Ways to write an augmentation of a float image of 8x8 pixels, each made anew: layers have states.
AUGMENTATIONS = {
    "seed": lambda: lambda x, seed: x + tf.random.stateless_normal([8, 8, 3], seed),
    "tf.random.normal": lambda: lambda x: x + tf.random.normal([8, 8, 3]),
    "tf.random.uniform int": lambda: lambda x: x + tf.cast(tf.random.uniform([8, 8, 3], 0, 99, tf.int32), tf.float32),
    "layer": noise_layer,
    "dropout": lambda: keras.layers.Dropout(0.5),
    "RandomRotation": lambda: keras.layers.RandomRotation(0.4),
    "Sequential": lambda: keras.Sequential([keras.layers.RandomTranslation(0.3, 0.3), keras.layers.GaussianNoise(0.1)]),
    "layer in a closure": lambda: (lambda layers: lambda x: layers[0](x, training=True))([noise_layer()]),
    "layer in a partial": lambda: functools.partial(lambda layer, x: layer(x, training=True), noise_layer()),
    "layer in a helper": lambda: through_a_helper,
    "layer of a method's object": lambda: Augmenter().augment,
    "layer and op": lambda: lambda x, layer=noise_layer(): layer(x, training=True) + tf.random.uniform([8, 8, 3]),
    "seed generator": lambda: (
        lambda generator: lambda x: x + keras.random.normal([8, 8, 3], seed=generator)
    )(keras.random.SeedGenerator(1)),
    "Keras' global generator": lambda: lambda x: x + keras.random.normal([8, 8, 3]),
    "tf.image.random_flip_left_right": lambda: tf.image.random_flip_left_right,
    "tf.image.random_flip_up_down": lambda: tf.image.random_flip_up_down,
    "tf.image.random_brightness": lambda: functools.partial(tf.image.random_brightness, max_delta=0.5),
    "tf.image.random_contrast": lambda: lambda x: tf.image.random_contrast(x, 0.2, 0.9),
    "tf.image.random_saturation": lambda: lambda x: tf.image.random_saturation(x, 0.2, 0.9),
    "tf.image.random_hue": lambda: functools.partial(tf.image.random_hue, max_delta=0.4),
    "tf.image.random_crop": lambda: lambda x: tf.image.random_crop(x, [4, 4, 3]),
    "tf.image.random_jpeg_quality": lambda: lambda x: tf.image.random_jpeg_quality(x, 5, 95),
}  # fmt: skip


@pytest.fixture
def images() -> np.ndarray:
    return np.random.default_rng(0).uniform(size=(16, 8, 8, 3)).astype("float32")


def build(images: np.ndarray, augment_fn, *, seed: int = 7, workers: int | None = None, shuffle: bool = True):
    return FastDataset(
        images, batch_size=4, augment_fn=augment_fn, seed=seed, workers=workers, shuffle=shuffle, cache="memory"
    )


@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_what_is_drawn_is_a_function_of_the_seed(images, name):
    function = RandomFunction(AUGMENTATIONS[name]())

    @tf.function
    def call(x, seed):
        return function(x, seed)

    seeds = [(1, number) for number in range(12)]
    drawn = [call(images[0], tf.constant(seed, tf.int64)).numpy().tobytes() for seed in [*seeds, *seeds]]
    assert function.leftover_ops == []
    assert drawn[:12] == drawn[12:]
    # A flip has two results, others as many as there are seeds.
    assert len(set(drawn)) == (2 if "flip" in name else 12) or ("crop" in name and len(set(drawn)) > 6)


@pytest.mark.parametrize("name", ["seed", "tf.random.normal", "Sequential", "tf.image.random_flip_left_right"])
def test_bytes_are_a_function_of_seed_and_epoch(images, name):
    """Equal with few and with many parallel calls; other numbers in each epoch."""
    parallel, alone = (build(images, AUGMENTATIONS[name](), workers=workers) for workers in (8, 1))
    first, second = bytes_of(parallel), bytes_of(parallel)
    assert first != second
    assert bytes_of(alone) == first
    assert bytes_of(alone) == second


@pytest.mark.parametrize("name", ["seed", "tf.random.normal", "layer"])
def test_each_example_and_epoch_has_its_own_numbers(images, name):
    dataset = build(np.repeat(images[:1], 6, axis=0), AUGMENTATIONS[name](), shuffle=False)
    drawn = np.concatenate([rows_of(dataset), rows_of(dataset)])
    assert len({row.tobytes() for row in drawn}) == 12


@pytest.mark.parametrize("name", ["seed", "tf.random.normal", "layer"])
def test_another_seed_gives_other_bytes(images, name):
    make = AUGMENTATIONS[name]
    one, other = (rows_of(build(images, make(), seed=seed, shuffle=False)) for seed in (7, 8))
    assert not any(np.array_equal(*pair) for pair in zip(one, other, strict=True))


def test_an_example_keeps_its_numbers_wherever_it_comes(images):
    """What is drawn depends on the example, not on its place in the epoch."""
    straight = rows_of(build(images, AUGMENTATIONS["tf.random.normal"](), shuffle=False))
    shuffled = rows_of(build(images, AUGMENTATIONS["tf.random.normal"](), shuffle=True))
    assert not np.array_equal(straight, shuffled)
    assert {row.tobytes() for row in straight} == {row.tobytes() for row in shuffled}


def test_noise_has_the_distribution_that_was_asked_for():
    zeros = np.zeros((64, 8, 8, 3), "float32")
    for make in (AUGMENTATIONS["seed"], AUGMENTATIONS["tf.random.normal"], AUGMENTATIONS["layer"]):
        values = rows_of(build(zeros, make()))
        assert values.mean() == pytest.approx(0.0, abs=0.05)
        assert values.std() == pytest.approx(1.0, rel=0.03)
    flips = rows_of(build(np.arange(64 * 2, dtype="float32").reshape(64, 1, 2, 1), tf.image.random_flip_left_right))
    flipped = np.count_nonzero(flips[:, 0, 0, 0] > flips[:, 0, 1, 0])
    assert 16 <= flipped <= 48


def test_the_layer_s_own_state_is_left_alone(images):
    layer = noise_layer()
    before = layer.seed_generator.state.numpy().tolist()
    rows_of(build(images, layer))
    assert layer.seed_generator.state.numpy().tolist() == before


def test_targets_pass_by_and_can_be_augmented(images):
    labels = np.arange(16)
    alone = FastDataset(images, labels, batch_size=4, augment_fn=tf.image.random_flip_left_right, seed=1)
    np.testing.assert_array_equal(np.concatenate([y for _, y in batches_of(alone)]), labels)
    both = FastDataset(
        images, labels, batch_size=4, augment_fn=lambda x, y: (x, y + tf.random.uniform([], 0, 2, tf.int64))
    )
    added = np.concatenate([y for _, y in batches_of(both)]) - labels
    assert set(added) == {0, 1}


@pytest.mark.parametrize(
    ("augment_fn", "op"),
    [
        (tf.random.shuffle, "RandomShuffle"),
        (
            lambda x: tf.cond(tf.reduce_sum(x) > 0, lambda: x + tf.random.normal([8, 8, 3]), lambda: x),
            "RandomStandardNormal",
        ),
    ],
    ids=["no stateless twin", "inside a branch"],
)
def test_what_stays_stateful_is_warned_of(images, augment_fn, op):
    with pytest.warns(UserWarning, match=rf"augment_fn \((\w+|<lambda>)\) keeps a random state of its own in {op}"):
        dataset = build(images, augment_fn)
    assert rows_of(dataset).shape == images.shape


def test_a_generator_that_stays_stateful_is_warned_of(images):
    generator = tf.random.Generator.from_seed(1)
    with pytest.warns(UserWarning, match="random state of its own in RngReadAndSkip"):
        build(images, lambda x: x + generator.normal([8, 8, 3]))


def test_leftovers_are_none_for_what_is_deterministic():
    function = RandomFunction(lambda x: x * 2)

    @tf.function
    def call(x):
        return function(x, SEED)

    assert numbers_of(call(X)) == [2.0, 4.0]
    assert function.leftover_ops == []


@pytest.mark.parametrize("draw", [random.random, np.random.rand], ids=["random", "numpy"])
def test_random_numbers_of_python_are_warned_of(draw):
    with pytest.warns(UserWarning, match="draws from Python's or NumPy's random numbers"):
        FastDataset(np.ones((4, 2), "float32"), augment_fn=lambda x: x * draw())
    with pytest.warns(UserWarning, match="random state of its own in PyFunc"):
        FastDataset(
            np.ones((4, 2), "float32"),
            augment_fn=lambda x: x * tf.numpy_function(lambda: np.float32(draw()), [], tf.float32),
        )


class TestPairsOfImageAndMask:
    """Case N1: never a mismatched pair in silence."""

    images = np.arange(4 * 8 * 8 * 3, dtype="float32").reshape(4, 8, 8, 3)

    @pytest.mark.parametrize(
        "layer",
        [keras.layers.RandomFlip, lambda: keras.Sequential([keras.layers.RandomFlip()])],
        ids=["layer", "model"],
    )
    def test_a_layer_alone_is_refused(self, layer):
        with pytest.raises(ValueError, match="leave y as it is, whose shape .* is that of masks.*segmentation_masks"):
            FastDataset(self.images, self.images[..., :1], augment_fn=layer())

    def test_as_one_dict_both_are_changed_alike(self):
        pairs = {"images": self.images, "segmentation_masks": self.images[..., :1]}
        dataset = FastDataset(pairs, batch_size=4, augment_fn=keras.layers.RandomFlip("horizontal"), seed=3)
        flipped = 0
        for _ in range(4):
            for batch in dataset:
                np.testing.assert_array_equal(batch["images"][..., :1], batch["segmentation_masks"])
                flipped += int((batch["images"].numpy() != self.images).any(axis=(1, 2, 3)).sum())
        assert 0 < flipped < 16

    def test_labels_are_no_masks(self):
        flip = keras.layers.RandomFlip()
        FastDataset(self.images, np.arange(4), augment_fn=flip)
        FastDataset(self.images, self.images[..., :1], augment_fn=keras.layers.GaussianNoise(0.1))
        FastDataset(self.images, self.images[..., :1], augment_fn=lambda x, y: (flip(x), y))


def test_a_map_fn_that_gives_ragged_tensors_is_refused():
    """Case N13."""
    with pytest.raises(ValueError, match=r"map_fn must return dense tensors.*Ragged.*to_tensor\(\)"):
        FastDataset(np.arange(6), map_fn=lambda x: tf.ragged.range([x, 3]))
