"""Training on several devices and several machines with a stock `fit`."""
