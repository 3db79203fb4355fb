"""The models of train_step.py in PyTorch, from the weights that Keras gave them, and a bare training loop."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator

import numpy as np
import torch
from _train_step_models import CLASSES, Problem, Run, run_of
from torch import nn

Weights = Iterator[np.ndarray]

# Keras' defaults where PyTorch's differ.
_NORM_EPSILON = 1e-3
_BATCH_NORM_MOMENTUM = 0.01
_ADAM_EPSILON = 1e-7


def _tensor(array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(array))


def _set(parameter: torch.Tensor, array: np.ndarray) -> None:
    with torch.no_grad():
        parameter.copy_(_tensor(array).reshape(parameter.shape))


def _linear(weights: Weights, inputs: int, outputs: int) -> nn.Linear:
    layer = nn.Linear(inputs, outputs)
    _set(layer.weight, next(weights).reshape(inputs, outputs).T)
    _set(layer.bias, next(weights))
    return layer


def _layer_norm(weights: Weights, units: int) -> nn.LayerNorm:
    layer = nn.LayerNorm(units, eps=_NORM_EPSILON)
    _set(layer.weight, next(weights))
    _set(layer.bias, next(weights))
    return layer


def small_mlp(weights: Weights) -> nn.Module:
    sizes = (32, 64, 64)
    hidden = [part for a, b in itertools.pairwise(sizes) for part in (_linear(weights, a, b), nn.ReLU())]
    return nn.Sequential(*hidden, _linear(weights, 64, CLASSES))


def middle_mlp(weights: Weights) -> nn.Module:
    hidden = [part for _ in range(4) for part in (_linear(weights, 1024, 1024), nn.GELU())]
    return nn.Sequential(*hidden, _linear(weights, 1024, CLASSES))


class ConvNet(nn.Module):
    """Takes channels last, as Keras does."""

    def __init__(self, weights: Weights) -> None:
        super().__init__()
        blocks = []
        for inputs, outputs in ((3, 32), (32, 64), (64, 128)):
            conv = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
            _set(conv.weight, next(weights).transpose(3, 2, 0, 1))
            norm = nn.BatchNorm2d(outputs, eps=_NORM_EPSILON, momentum=_BATCH_NORM_MOMENTUM)
            for values in (norm.weight, norm.bias, norm.running_mean, norm.running_var):
                _set(values, next(weights))
            blocks += [conv, norm, nn.ReLU(), nn.MaxPool2d(2)]
        self.blocks = nn.Sequential(*blocks).to(memory_format=torch.channels_last)
        self.head = _linear(weights, 128, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(x.permute(0, 3, 1, 2)).mean((2, 3)))


class TransformerLayer(nn.Module):
    """Attention and two dense layers, each with a residual and a normalization after it."""

    def __init__(self, weights: Weights) -> None:
        super().__init__()
        self.query, self.key, self.value = (_linear(weights, 64, 64) for _ in range(3))
        self.out = _linear(weights, 64, 64)
        self.norm = _layer_norm(weights, 64)
        self.wide = _linear(weights, 64, 128)
        self.narrow = _linear(weights, 128, 64)
        self.last_norm = _layer_norm(weights, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = [layer(x).unflatten(-1, (4, 16)).transpose(1, 2) for layer in (self.query, self.key, self.value)]
        attended = nn.functional.scaled_dot_product_attention(*heads, scale=1 / math.sqrt(16))
        x = self.norm(x + self.out(attended.transpose(1, 2).flatten(2)))
        return self.last_norm(x + self.narrow(nn.functional.gelu(self.wide(x))))


class Transformer(nn.Module):
    """Embedding, two layers, mean over the tokens, and a head."""

    def __init__(self, weights: Weights) -> None:
        super().__init__()
        self.embedding = nn.Embedding(1000, 64)
        _set(self.embedding.weight, next(weights))
        self.layers = nn.Sequential(TransformerLayer(weights), TransformerLayer(weights))
        self.head = _linear(weights, 64, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(self.embedding(x)).mean(1))


class Lstm(nn.Module):
    """An LSTM of which the last output counts."""

    def __init__(self, weights: Weights) -> None:
        super().__init__()
        self.lstm = nn.LSTM(16, 64, batch_first=True)
        _set(self.lstm.weight_ih_l0, next(weights).T)
        _set(self.lstm.weight_hh_l0, next(weights).T)
        _set(self.lstm.bias_ih_l0, next(weights))
        # PyTorch has a second bias, which would learn the same once more.
        nn.init.zeros_(self.lstm.bias_hh_l0)
        self.lstm.bias_hh_l0.requires_grad_(False)
        self.head = _linear(weights, 64, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(x)[0][:, -1])


_MODELS: dict[str, Callable[[Weights], nn.Module]] = {
    "small_mlp": small_mlp,
    "middle_mlp": middle_mlp,
    "conv_net": ConvNet,
    "transformer": Transformer,
    "lstm": Lstm,
}


def loop_racer(
    name: str, problem: Problem, epochs: int, x: np.ndarray, y: np.ndarray, weights: list[np.ndarray]
) -> Callable[[], Run]:
    """A function that trains a new model in a bare loop, with the loss and the accuracy of each epoch, and times it."""
    inputs, labels = _tensor(x), _tensor(y).long()
    loss_of = nn.CrossEntropyLoss()

    def run() -> Run:
        model = _MODELS[name](iter(weights))
        optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=1e-3, eps=_ADAM_EPSILON)
        losses, seconds = [], []
        for _ in range(epochs):
            start = time.perf_counter()
            total, right = torch.zeros(()), torch.zeros((), dtype=torch.long)
            for first in range(0, len(inputs), problem.batch_size):
                batch = inputs[first : first + problem.batch_size]
                targets = labels[first : first + problem.batch_size]
                optimizer.zero_grad()
                outputs = model(batch)
                loss = loss_of(outputs, targets)
                loss.backward()
                optimizer.step()
                with torch.no_grad():
                    total += loss
                    right += (outputs.argmax(1) == targets).sum()
            losses.append(float(total) / problem.steps)
            seconds.append(time.perf_counter() - start)
        return run_of(losses, seconds, problem.steps)

    return run
