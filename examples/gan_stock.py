"""A DCGAN with a train step and two optimizers of its own, on handwritten digits."""

import _data
import keras
import numpy as np
import tensorflow as tf
from keras import layers

options = _data.options(__doc__)
keras.utils.set_random_seed(options.seed)

digits = _data.digits(options.quick)
latent_dim = 32

train = tf.data.Dataset.from_tensor_slices(digits).shuffle(1024).batch(64).prefetch(tf.data.AUTOTUNE)

discriminator = keras.Sequential(
    [
        keras.Input((8, 8, 1)),
        layers.Conv2D(32, 3, strides=2, padding="same"),
        layers.LeakyReLU(negative_slope=0.2),
        layers.Conv2D(64, 3, strides=2, padding="same"),
        layers.LeakyReLU(negative_slope=0.2),
        layers.Flatten(),
        layers.Dropout(0.2),
        layers.Dense(1, activation="sigmoid"),
    ]
)
generator = keras.Sequential(
    [
        keras.Input((latent_dim,)),
        layers.Dense(2 * 2 * 64),
        layers.Reshape((2, 2, 64)),
        layers.Conv2DTranspose(64, 4, strides=2, padding="same"),
        layers.LeakyReLU(negative_slope=0.2),
        layers.Conv2DTranspose(32, 4, strides=2, padding="same"),
        layers.LeakyReLU(negative_slope=0.2),
        layers.Conv2D(1, 3, padding="same", activation="sigmoid"),
    ]
)


class GAN(keras.Model):
    def __init__(self, discriminator, generator, latent_dim):
        super().__init__()
        self.discriminator = discriminator
        self.generator = generator
        self.latent_dim = latent_dim
        self.seed_generator = keras.random.SeedGenerator(options.seed)

    def compile(self, d_optimizer, g_optimizer, loss_fn):
        super().compile()
        self.d_optimizer = d_optimizer
        self.g_optimizer = g_optimizer
        self.loss_fn = loss_fn
        self.d_loss_metric = keras.metrics.Mean(name="d_loss")
        self.g_loss_metric = keras.metrics.Mean(name="g_loss")

    @property
    def metrics(self):
        return [self.d_loss_metric, self.g_loss_metric]

    def train_step(self, real_images):
        # Decode noise to fake images, and put them together with real ones.
        batch_size = keras.ops.shape(real_images)[0]
        noise = keras.random.normal((batch_size, self.latent_dim), seed=self.seed_generator)
        images = keras.ops.concatenate([self.generator(noise), real_images], axis=0)
        labels = keras.ops.concatenate([keras.ops.ones((batch_size, 1)), keras.ops.zeros((batch_size, 1))], axis=0)
        # Noise in the labels: an important trick.
        labels += 0.05 * keras.random.uniform(keras.ops.shape(labels), seed=self.seed_generator)

        # Train the discriminator.
        with tf.GradientTape() as tape:
            d_loss = self.loss_fn(labels, self.discriminator(images, training=True))
        gradients = tape.gradient(d_loss, self.discriminator.trainable_weights)
        self.d_optimizer.apply(gradients, self.discriminator.trainable_weights)

        # Train the generator with labels that say "all of these are real".
        noise = keras.random.normal((batch_size, self.latent_dim), seed=self.seed_generator)
        misleading_labels = keras.ops.zeros((batch_size, 1))
        with tf.GradientTape() as tape:
            g_loss = self.loss_fn(misleading_labels, self.discriminator(self.generator(noise, training=True)))
        gradients = tape.gradient(g_loss, self.generator.trainable_weights)
        self.g_optimizer.apply(gradients, self.generator.trainable_weights)

        self.d_loss_metric.update_state(d_loss)
        self.g_loss_metric.update_state(g_loss)
        return {metric.name: metric.result() for metric in self.metrics}


class GANMonitor(keras.callbacks.Callback):
    """Draws digits after each epoch, side by side."""

    def on_epoch_end(self, epoch, logs=None):
        noise = keras.random.normal((10, latent_dim), seed=options.seed)
        images = keras.ops.convert_to_numpy(self.model.generator(noise))
        keras.utils.array_to_img(np.hstack(images)).save(f"digits_{epoch:03d}.png")


gan = GAN(discriminator, generator, latent_dim)
gan.compile(
    d_optimizer=keras.optimizers.Adam(3e-4),
    g_optimizer=keras.optimizers.Adam(3e-4),
    loss_fn=keras.losses.BinaryCrossentropy(),
)
gan.fit(
    train,
    epochs=options.epochs,
    callbacks=[
        GANMonitor(),
    ],
)


def frechet_distance(images, others):
    """How far apart two sets of images are, by the means and covariances of their pixels."""
    images, others = images.reshape(len(images), -1), others.reshape(len(others), -1)
    cov, other_cov = np.cov(images.T), np.cov(others.T)
    cross = np.sqrt(np.maximum(np.linalg.eigvals(cov @ other_cov).real, 0)).sum()
    return ((images.mean(0) - others.mean(0)) ** 2).sum() + np.trace(cov) + np.trace(other_cov) - 2 * cross


noise = keras.random.normal((len(digits), latent_dim), seed=options.seed)
print(f"frechet_distance: {frechet_distance(digits, gan.generator.predict(noise, verbose=0)):.4f}")
