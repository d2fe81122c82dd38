"""The local model of the paper's MNIST-CNN."""

from __future__ import annotations

from typing import Any

from securefed.declare import check_integer
from securefed.errors import require
from securefed.models.torch import TorchModel


def half_image_cnn(
    seed: int, *, height: int = 28, width: int = 14, channels: int = 64, dense: int = 256, pool: int = 1
) -> TorchModel:
    """The local model of the paper's MNIST-CNN: two 3x3 convolutions of 64 channels, dense 256, a scalar.

    Rows are flat images, row by row, of height x width numbers. The scalar is this half's share of the
    paper's "logistic regression model with 512 parameters": 256 weights on each side and no bias.

    The paper names neither padding nor pooling nor activation nor the start. Here: ReLU after both
    convolutions and the dense layer, padding that keeps the size, and no pooling (pool=1), as in the authors'
    published code; Glorot's uniform weights and biases of zero, TensorFlow's default (with torch's, smaller
    by more than a half a layer, the scalar starts near zero and the first rounds go by before it moves).
    pool=2 takes the maximum over 2x2 squares after the convolutions: a quarter of the dense layer's 6.4
    million weights, for small machines.
    """
    torch: Any = require("torch", extra="torch")
    nn = torch.nn
    check_integer("seed", seed, least=0)
    for name, value in (("height", height), ("width", width), ("channels", channels), ("dense", dense)):
        check_integer(name, value, least=1)
    check_integer("pool", pool, least=1, most=min(height, width))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = nn.Sequential(
            nn.Unflatten(1, (1, height, width)),
            nn.Conv2d(1, channels, kernel_size=3, padding=1),
            nn.ReLU(),
            nn.Conv2d(channels, channels, kernel_size=3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(pool) if pool > 1 else nn.Identity(),
            nn.Flatten(),
            nn.Linear(channels * (height // pool) * (width // pool), dense),
            nn.ReLU(),
            nn.Linear(dense, 1, bias=False),
        )
        for layer in module:
            if hasattr(layer, "weight"):
                nn.init.xavier_uniform_(layer.weight)
                if layer.bias is not None:
                    nn.init.zeros_(layer.bias)
    return TorchModel(module.eval())
