"""The weather twelve hours ahead, from 120 readings of 7 kinds with an LSTM."""

import _data
import keras
import keras_turbo as kt
import numpy as np
import pandas as pd
from keras import layers

options = _data.options(__doc__)
keras.utils.set_random_seed(options.seed)

table = pd.read_csv(_data.weather(options.data, 6000 if options.quick else 40000))
num_train = int(0.8 * len(table))
values = ((table - table[:num_train].mean()) / table[:num_train].std()).to_numpy(np.float32)
# One reading an hour, of the last five days; the temperature half a day after the last one.
step, length, ahead, batch_size = 6, 120, 72, 256


def windows(first, last):
    targets = values[first + step * (length - 1) + ahead : last, 1]
    return keras.utils.timeseries_dataset_from_array(
        values[first:last], targets, sequence_length=length, sampling_rate=step, batch_size=batch_size
    )


train, val = windows(0, num_train), windows(num_train, len(table))
train, val = (part.map(lambda x, y: (keras.ops.reshape(x, (-1, length, 7)), y)).unbatch() for part in (train, val))
train, val = (kt.FastDataset(part, batch_size=batch_size, cache="memory") for part in (train, val))

inputs = keras.Input((length, values.shape[1]))
outputs = layers.Dense(1)(layers.LSTM(32)(inputs))
model = keras.Model(inputs, outputs)
model.compile(optimizer=keras.optimizers.Adam(1e-3), loss="mse")

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
print(f"val_loss: {history.history['val_loss'][-1]:.5f}")
