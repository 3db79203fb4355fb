"""What the devices are and can do; imports neither TensorFlow nor Keras."""
