"""Which customers leave, from a table with numbers and names, through keras.utils.FeatureSpace."""

import _data
import keras
import pandas as pd
import tensorflow as tf
from keras import layers
from keras.utils import FeatureSpace

options = _data.options(__doc__)
keras.utils.set_random_seed(options.seed)

table = pd.read_csv(_data.customers(options.data, 640 if options.quick else 30000))
val_table = table.sample(frac=0.2, random_state=1337)
train_table = table.drop(val_table.index)


def to_dataset(table):
    features, labels = table.drop(columns="left"), table["left"]
    return tf.data.Dataset.from_tensor_slices((dict(features), labels)).shuffle(len(table)).batch(32)


train, val = to_dataset(train_table), to_dataset(val_table)

features = FeatureSpace(
    features={
        "age": FeatureSpace.float_discretized(num_bins=30),
        "months": FeatureSpace.float_normalized(),
        "visits": FeatureSpace.float_normalized(),
        "spent": FeatureSpace.float_normalized(),
        "returned": FeatureSpace.float_normalized(),
        "calls": FeatureSpace.float_normalized(),
        "distance": FeatureSpace.float_normalized(),
        "member": FeatureSpace.integer_categorical(num_oov_indices=0),
        "newsletter": FeatureSpace.integer_categorical(num_oov_indices=0),
        "region": FeatureSpace.string_categorical(num_oov_indices=0),
        "plan": FeatureSpace.string_categorical(num_oov_indices=0),
        "device": FeatureSpace.string_categorical(num_oov_indices=0),
    },
    crosses=[("plan", "age"), ("newsletter", "device")],
    crossing_dim=32,
    output_mode="concat",
)
features.adapt(train.map(lambda x, y: x))


def encode(x, y):
    return features(x), y


train = train.map(encode, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)
val = val.map(encode, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)

encoded = features.get_encoded_features()
x = layers.Dense(32, activation="relu")(encoded)
x = layers.Dropout(0.5)(x)
model = keras.Model(encoded, layers.Dense(1, activation="sigmoid")(x))

model.compile(optimizer="adam", loss="binary_crossentropy", metrics=["accuracy"])
history = model.fit(
    train,
    validation_data=val,
    epochs=options.epochs,
)
print(f"val_loss: {history.history['val_loss'][-1]:.4f}")
