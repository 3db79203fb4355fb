"""Photos in class folders through a network of keras.applications, from scratch."""

import _data
import keras
import tensorflow as tf
from keras import layers

options = _data.options(__doc__)
keras.utils.set_random_seed(options.seed)

folder = _data.photos(options.data, 64 if options.quick else 800)
image_size = (96, 96)

train, val = keras.utils.image_dataset_from_directory(
    folder, validation_split=0.2, subset="both", shuffle=True, seed=options.seed, image_size=image_size, batch_size=32
)
train, val = train.prefetch(tf.data.AUTOTUNE), val.prefetch(tf.data.AUTOTUNE)

inputs = keras.Input((*image_size, 3))
x = layers.Rescaling(1 / 127.5, offset=-1)(inputs)
x = keras.applications.MobileNetV2((*image_size, 3), alpha=0.35, include_top=False, weights=None, pooling="avg")(x)
x = layers.Dropout(0.2)(x)
model = keras.Model(inputs, layers.Dense(4, activation="softmax")(x))

model.compile(optimizer=keras.optimizers.Adam(1e-3), loss="sparse_categorical_crossentropy", metrics=["accuracy"])
history = model.fit(
    train,
    validation_data=val,
    epochs=options.epochs,
)
# That of training: moving averages of BatchNormalization follow too slowly for so few steps to serve in validation.
print(f"accuracy: {history.history['accuracy'][-1]:.4f}")
