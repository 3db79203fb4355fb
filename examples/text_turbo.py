"""Docstrings, told apart by their package with TextVectorization and a small transformer."""

import _data
import keras
import keras_turbo as kt
from keras import layers

options = _data.options(__doc__)
keras.utils.set_random_seed(options.seed)

folder = _data.docstrings(options.data, 120 if options.quick else 1200)
vocabulary_size, length, width = 20000, 200, 32

train, val = keras.utils.text_dataset_from_directory(
    folder, validation_split=0.2, subset="both", seed=options.seed, batch_size=32
)
vectorize = layers.TextVectorization(max_tokens=vocabulary_size, output_sequence_length=length)
vectorize.adapt(train.map(lambda text, label: text))


def tokens(text, label):
    return vectorize(text), label


train = train.map(tokens, num_parallel_calls=4)
val = val.map(tokens, num_parallel_calls=4)
train = kt.FastDataset(train.unbatch(), shuffle=True, cache="memory")
val = kt.FastDataset(val.unbatch(), cache="memory")


class TransformerBlock(layers.Layer):
    def __init__(self, width, num_heads, feed_forward_width, rate=0.1):
        super().__init__()
        self.attention = layers.MultiHeadAttention(num_heads, width)
        self.feed_forward = keras.Sequential([layers.Dense(feed_forward_width, activation="relu"), layers.Dense(width)])
        self.norm_1, self.norm_2 = layers.LayerNormalization(epsilon=1e-6), layers.LayerNormalization(epsilon=1e-6)
        self.dropout_1, self.dropout_2 = layers.Dropout(rate), layers.Dropout(rate)

    def call(self, inputs):
        x = self.norm_1(inputs + self.dropout_1(self.attention(inputs, inputs)))
        return self.norm_2(x + self.dropout_2(self.feed_forward(x)))


class TokenAndPositionEmbedding(layers.Layer):
    def __init__(self, length, vocabulary_size, width):
        super().__init__()
        self.tokens = layers.Embedding(vocabulary_size, width)
        self.positions = layers.Embedding(length, width)

    def call(self, x):
        return self.tokens(x) + self.positions(keras.ops.arange(keras.ops.shape(x)[-1]))


inputs = keras.Input((length,), dtype="int64")
x = TokenAndPositionEmbedding(length, vocabulary_size, width)(inputs)
x = TransformerBlock(width, num_heads=2, feed_forward_width=32)(x)
x = layers.GlobalAveragePooling1D()(x)
x = layers.Dropout(0.1)(x)
x = layers.Dense(20, activation="relu")(x)
x = layers.Dropout(0.1)(x)
model = keras.Model(inputs, layers.Dense(4, activation="softmax")(x))

model.compile(optimizer="adam", loss="sparse_categorical_crossentropy", metrics=["accuracy"])
history = model.fit(
    train,
    validation_data=val,
    epochs=options.epochs,
    callbacks=[
        kt.AsyncCheckpoint("checkpoints", monitor="val_loss"),
        kt.GpuUtilization(log_dir="logs"),
        kt.TuneExecution(),
    ],
)
print(f"val_accuracy: {history.history['val_accuracy'][-1]:.4f}")
