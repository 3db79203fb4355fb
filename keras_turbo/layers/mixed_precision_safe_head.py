"""The last layer of a model, in float32 under every dtype policy."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import ops


@keras.saving.register_keras_serializable(package="keras_turbo")
class MixedPrecisionSafeHead(keras.layers.Layer):
    """Normalizes, projects and outputs in float32, whatever the global dtype policy is.

    Under `mixed_float16` an ordinary `Dense` head multiplies, adds and outputs in float16: a logit above 65,504 becomes
    infinite, sums over thousands of features or classes lose their small terms, and the loss turns to NaN. This head
    casts its input to float32 before any arithmetic, and keeps its variables, its arithmetic and its output in float32.
    It is the same under every global policy (`mixed_float16`, `mixed_bfloat16`, `float16`, `bfloat16`, `float32` and
    `float64`: there, too, its input is rounded to float32), so that weights move freely between models that differ in
    policy only. The cost is one float32 matrix product at the end of the model; all other layers keep their speed.

    Example:

    ```python
    keras.config.set_dtype_policy("mixed_float16")
    model = keras.Sequential([
        keras.Input((224, 224, 3)),
        keras.layers.Conv2D(32, 3, activation="relu"),
        keras.layers.GlobalAveragePooling2D(),
        keras_turbo.MixedPrecisionSafeHead(10),
    ])
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    model.outputs[0].dtype  # "float32"
    ```

    A saved model loads without `custom_objects` wherever `keras_turbo` has been imported.

    Args:
        units: Number of outputs (classes, or values to predict): a positive integer.
        activation: What is applied to the float32 outputs: a name, a function or None. None, the default, leaves
            logits, which is best with a loss that has `from_logits=True`: it computes softmax and logarithm in one
            step, and loses nothing when a probability rounds to 0 or 1. `"softmax"` and `"sigmoid"` are computed in
            float32.
        normalize: Whether the input is layer-normalized over its last axis first, with a learned scale `gamma` and
            offset `beta`. True by default: the activations of a half-precision network differ widely in scale, and a
            head that sees them at unit scale trains at a usual learning rate. The gradient that flows back is divided
            by the spread of the input; where that is far below 1, as after a small recurrent layer, loss scaling skips
            a few more steps at the start and settles lower.
        epsilon: What is added to the variance, so that a constant input does not divide by zero. Positive, in the
            squared unit of the input, 1e-6 by default.
        use_bias: Whether a bias vector is added to the projection. True by default.
        kernel_initializer: Initializer of the kernel, of shape `(last axis of the input, units)`.
        bias_initializer: Initializer of the bias, of shape `(units,)`.
        kernel_regularizer: Regularizer of the kernel, or None.
        bias_regularizer: Regularizer of the bias, or None.
        activity_regularizer: Regularizer of the output, or None.
        kernel_constraint: Constraint on the kernel, or None.
        bias_constraint: Constraint on the bias, or None.
        name: Name of the layer, or None for an automatic one.
        **kwargs: What every Keras layer takes, such as `trainable`. A `dtype` other than float32 is refused.

    Input shape:
        `(batch, ..., features)`, of any rank from 2 and any dtype. `features` must be known. A mask is passed on
        unchanged.

    Output shape:
        `(batch, ..., units)`, float32.

    Raises:
        ValueError: If an argument is out of its range, if `dtype` is not float32, if the last axis of the input is
            unknown, or if `activation` computes in another dtype or changes the number of outputs.

    Note:
        GPUs from NVIDIA's Ampere on multiply float32 in TensorFloat-32, which has the range of float32 and 10 bits of
        fraction, unless `tf.config.experimental.enable_tensor_float_32_execution(False)` is called.

    Reference:
        - Keeping normalization and softmax in float32: Micikevicius et al., "Mixed Precision Training", 2018,
          https://arxiv.org/abs/1710.03740
        - Layer normalization: Ba, Kiros and Hinton, "Layer Normalization", 2016, https://arxiv.org/abs/1607.06450
    """

    def __init__(
        self,
        units: int,
        activation: str | Callable[..., Any] | None = None,
        *,
        normalize: bool = True,
        epsilon: float = 1e-6,
        use_bias: bool = True,
        kernel_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        kernel_regularizer: Any = None,
        bias_regularizer: Any = None,
        activity_regularizer: Any = None,
        kernel_constraint: Any = None,
        bias_constraint: Any = None,
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        units = _checked_units(units)
        normalize = _checked_bool("normalize", normalize)
        use_bias = _checked_bool("use_bias", use_bias)
        epsilon = _checked_epsilon(epsilon)
        activation = _checked_activation(activation)
        policy = _checked_policy(kwargs.pop("dtype", None))

        super().__init__(name=name, dtype=policy, activity_regularizer=activity_regularizer, **kwargs)
        # `call` does the casting: Keras 3.12 loses the mask of an input that it casts itself.
        self.autocast = False
        self.supports_masking = True
        self.units = units
        self.activation = activation
        self.normalize = normalize
        self.epsilon = epsilon
        self.use_bias = use_bias
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)
        self.bias_regularizer = keras.regularizers.get(bias_regularizer)
        self.kernel_constraint = keras.constraints.get(kernel_constraint)
        self.bias_constraint = keras.constraints.get(bias_constraint)
        self.input_spec = keras.layers.InputSpec(min_ndim=2)

    @property
    def dtype_policy(self) -> Any:
        """The dtype policy of the layer: float32, and no other can be set."""
        return super().dtype_policy

    @dtype_policy.setter
    def dtype_policy(self, value: Any) -> None:
        keras.layers.Layer.dtype_policy.__set__(self, _checked_policy(value))

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Creates the variables, all of them float32.

        Args:
            input_shape: Shape of the input, whose last axis must be known.

        Raises:
            ValueError: If the last axis is unknown.
        """
        features = input_shape[-1]
        if features is None:
            raise ValueError(
                f"MixedPrecisionSafeHead {self.name!r} needs to know the size of its input's last axis, since its "
                f"variables have that size. Received: input_shape={tuple(input_shape)}. Give the size where the input "
                "is declared, as in `keras.Input((None, 64))`, or project to a known size first."
            )
        if self.normalize:
            self.gamma = self.add_weight(name="gamma", shape=(features,), initializer="ones")
            self.beta = self.add_weight(name="beta", shape=(features,), initializer="zeros")
        self.kernel = self.add_weight(
            name="kernel",
            shape=(features, self.units),
            initializer=self.kernel_initializer,
            regularizer=self.kernel_regularizer,
            constraint=self.kernel_constraint,
        )
        if self.use_bias:
            self.bias = self.add_weight(
                name="bias",
                shape=(self.units,),
                initializer=self.bias_initializer,
                regularizer=self.bias_regularizer,
                constraint=self.bias_constraint,
            )
        self.input_spec = keras.layers.InputSpec(min_ndim=2, axes={-1: features})

    def call(self, inputs: Any) -> Any:
        """Computes the outputs in float32.

        Args:
            inputs: Tensor of shape `(batch, ..., features)`, of any dtype.

        Returns:
            Float32 tensor of shape `(batch, ..., units)`.

        Raises:
            ValueError: If the activation changes the number of outputs.
        """
        outputs = ops.cast(inputs, "float32")
        if self.normalize:
            outputs = self._layer_normalized(outputs)
        outputs = ops.matmul(outputs, self.kernel)
        if self.use_bias:
            outputs = ops.add(outputs, self.bias)
        outputs = self.activation(outputs)
        if outputs.shape[-1] != self.units:
            raise ValueError(
                f"The activation of MixedPrecisionSafeHead {self.name!r} must keep the shape of what it gets. It was "
                f"given {self.units} units and returned shape {tuple(outputs.shape)}. Apply such a function in a layer "
                "of its own."
            )
        return ops.cast(outputs, "float32")

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        """Gives the shape of the output.

        Args:
            input_shape: Shape of the input.

        Returns:
            The same shape with `units` as its last axis.
        """
        return (*input_shape[:-1], self.units)

    def compute_output_spec(self, inputs: Any) -> keras.KerasTensor:
        """Gives the shape and dtype of the output for a symbolic input.

        Args:
            inputs: Symbolic tensor of shape `(batch, ..., features)`.

        Returns:
            Symbolic float32 tensor of shape `(batch, ..., units)`.
        """
        return keras.KerasTensor(self.compute_output_shape(inputs.shape), dtype="float32")

    def get_config(self) -> dict[str, Any]:
        """Gives what a new layer of the same settings is made from.

        Returns:
            The base layer's settings and the arguments of this class.
        """
        return {
            **super().get_config(),
            "units": self.units,
            "activation": keras.activations.serialize(self.activation),
            "normalize": self.normalize,
            "epsilon": self.epsilon,
            "use_bias": self.use_bias,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
            "bias_initializer": keras.initializers.serialize(self.bias_initializer),
            "kernel_regularizer": keras.regularizers.serialize(self.kernel_regularizer),
            "bias_regularizer": keras.regularizers.serialize(self.bias_regularizer),
            "activity_regularizer": keras.regularizers.serialize(self.activity_regularizer),
            "kernel_constraint": keras.constraints.serialize(self.kernel_constraint),
            "bias_constraint": keras.constraints.serialize(self.bias_constraint),
        }

    def _layer_normalized(self, inputs: Any) -> Any:
        # A mean near 1e4 is rounded to about 1e-3. Subtracting the mean of what is left removes that error: inputs of
        # 1e4 +- 1 come out within 3e-7 of the exact result, and within 3e-3 without the second line.
        centered = ops.subtract(inputs, ops.mean(inputs, axis=-1, keepdims=True))
        centered = ops.subtract(centered, ops.mean(centered, axis=-1, keepdims=True))
        variance = ops.mean(ops.square(centered), axis=-1, keepdims=True)
        normalized = ops.multiply(centered, ops.rsqrt(ops.add(variance, self.epsilon)))
        return ops.add(ops.multiply(normalized, self.gamma), self.beta)


def _checked_units(units: Any) -> int:
    try:
        # A bool is an int to Python, but True units are a mistake.
        number = None if isinstance(units, bool | np.bool_) else operator.index(units)
    except TypeError:
        number = None
    if number is None or number <= 0:
        raise ValueError(
            f"`units` of MixedPrecisionSafeHead must be a positive integer. Received: units={units!r} (of type "
            f"{type(units).__name__}). Pass the number of classes, or of values to predict."
        )
    return number


def _checked_bool(argument: str, value: Any) -> bool:
    if not isinstance(value, bool | np.bool_):
        raise ValueError(
            f"`{argument}` of MixedPrecisionSafeHead must be True or False. Received: {argument}={value!r} (of type "
            f"{type(value).__name__})."
        )
    return bool(value)


def _checked_epsilon(epsilon: Any) -> float:
    # Outside of float32's range of normal numbers it would act as 0 or as infinity.
    smallest, largest = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)
    is_number = isinstance(epsilon, int | float | np.integer | np.floating) and not isinstance(epsilon, bool)
    if not is_number or not smallest <= epsilon <= largest:
        raise ValueError(
            "`epsilon` of MixedPrecisionSafeHead must be a positive number that float32 can hold. Received: "
            f"epsilon={epsilon!r} (of type {type(epsilon).__name__}). Leave it out for 1e-6, or pass a number such as "
            "1e-5."
        )
    return float(epsilon)


def _checked_activation(activation: Any) -> Callable[..., Any]:
    checked = keras.activations.get(activation)
    if isinstance(checked, keras.layers.Layer) and checked.compute_dtype != "float32":
        raise ValueError(
            "`activation` of MixedPrecisionSafeHead must compute in float32. Received: the layer "
            f"activation={activation!r}, which computes in {checked.compute_dtype}. Create that layer with "
            "`dtype='float32'`, or pass a function or a name such as 'softmax'."
        )
    return checked


def _checked_policy(dtype: Any) -> Any:
    policy = keras.dtype_policies.get("float32" if dtype is None else dtype)
    if policy != keras.DTypePolicy("float32"):
        raise ValueError(
            f"`dtype` of MixedPrecisionSafeHead must be float32. Received: dtype={dtype!r}. The layer exists to keep "
            "the end of a model in float32 whatever the global dtype policy is. Leave `dtype` out; for a head of "
            "another precision use `keras.layers.Dense`."
        )
    return policy
