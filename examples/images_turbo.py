"""Photos in class folders, augmented, through a small conv net."""

import _data
import keras
import keras_turbo as kt
import tensorflow as tf
from keras import layers

options = _data.options(__doc__)
keras.utils.set_random_seed(options.seed)

folder = _data.photos(options.data, 256 if options.quick else 3000)
image_size = (64, 64)

train, val = kt.FastDataset.from_image_folder(
    folder, validation_split=0.2, subset="both", shuffle=True, seed=options.seed, image_size=image_size, batch_size=32
)

augmentation = [layers.RandomFlip("horizontal"), layers.RandomRotation(0.05)]


def augment(images, labels):
    for layer in augmentation:
        images = layer(images)
    return images, labels


train = train.map(augment, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)
val = val.prefetch(tf.data.AUTOTUNE)

model = keras.Sequential(
    [
        keras.Input((*image_size, 3)),
        layers.Rescaling(1 / 255),
        layers.Conv2D(16, 3, activation="relu"),
        layers.MaxPooling2D(),
        layers.Conv2D(32, 3, activation="relu"),
        layers.MaxPooling2D(),
        layers.Conv2D(64, 3, activation="relu"),
        layers.GlobalAveragePooling2D(),
        layers.Dropout(0.5),
        layers.Dense(4),
    ]
)
model.compile(
    optimizer=keras.optimizers.Adam(1e-3),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
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
