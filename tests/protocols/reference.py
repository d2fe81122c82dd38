"""Algorithms 1 to 3 of the paper, written down again in plain numpy and as simply as possible.

No messages, no sides, no shared code with securefed.protocols: parties are entries of lists, H is recomputed
from the definition, derivatives of anything that is not a matrix product are taken by complex steps. What a
round's batch is comes from the caller, since the parties agree on it beforehand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
STEP = 1e-30  # complex steps have no cancellation, so the step may be this small


def complex_gradient(function: Callable[[Any], Any], point: Array) -> Array:
    """The gradient of a real function that is written so that it also takes complex numbers."""
    result = np.zeros(point.size)
    for i in range(point.size):
        moved = point.astype(np.complex128)
        moved[i] += 1j * STEP
        result[i] = np.imag(function(moved)) / STEP
    return result


@dataclass
class Stepper:
    """theta - eta g, or Adam as its authors print it."""

    adam: bool = False
    moments: tuple[Any, Any, int] = field(default=(0.0, 0.0, 0))

    def __call__(self, theta: Array, gradient: Array, eta: float) -> Array:
        if not self.adam:
            return theta - eta * gradient
        m, v, t = self.moments
        t += 1
        m = 0.9 * m + 0.1 * gradient
        v = 0.999 * v + 0.001 * gradient * gradient
        self.moments = (m, v, t)
        return theta - eta * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)


def block_descent(
    start: Sequence[Array],
    gradient: Callable[[int, Sequence[Array], NDArray[np.intp]], Array],
    *,
    rounds: int,
    local_steps: int,
    sequential: bool,
    proximal: float,
    eta: Callable[[int], float],
    batch: Callable[[int], NDArray[np.intp]],
    adam: bool = False,
) -> list[Array]:
    """Algorithms 1 (Q = 1), 2 and 3. `gradient(k, thetas, S)` is the loss's gradient on S by theta_k.

    In the parallel form party k's local steps see the others where they were at the exchange, and itself
    where it is; in the sequential form the others where they are now. (Equation 15: the proximal pull.)
    """
    thetas = [theta.copy() for theta in start]
    steppers = [Stepper(adam) for _ in thetas]
    for t in range(rounds):
        rows = batch(t)
        before = [theta.copy() for theta in thetas]
        after = [theta.copy() for theta in thetas]
        for k in range(len(thetas)):
            view = list(after) if sequential else list(before)
            for _ in range(local_steps):
                pull = proximal * (view[k] - before[k])
                view[k] = steppers[k](view[k], gradient(k, view, rows) + pull, eta(t))
            after[k] = view[k]
        thetas = after
    return thetas


# The generalised linear objective (equation 2).

RESIDUALS: dict[tuple[str, bool], Callable[[Any, Array], Any]] = {
    ("logistic", True): lambda H, y: -y / (1 + np.exp(y * H)),
    ("logistic", False): lambda H, y: -y / 2 + H / 4,
    ("linear", True): lambda H, y: H - y,
    ("linear", False): lambda H, y: H - y,
    ("squared_hinge", True): lambda H, y: np.where(y * H < 1, 2 * (H - y), 0.0),
    ("squared_hinge", False): lambda H, y: 2 * (H - y),
}


def linear_output(theta: Any, rows: Array, bias: bool) -> Any:
    return rows @ theta[: rows.shape[1]] + (theta[-1] if bias else 0.0)


def network_output(theta: Any, rows: Array, hidden: int) -> Any:
    """One hidden layer of tanh, parameters in the order W, b, v, c."""
    d = rows.shape[1]
    weights, bias = theta[: d * hidden].reshape(d, hidden), theta[d * hidden : (d + 1) * hidden]
    return np.tanh(rows @ weights + bias) @ theta[(d + 1) * hidden : -1] + theta[-1]


def generalised_linear_gradient(
    blocks: Sequence[Array],
    labels: Array,
    *,
    loss: str = "logistic",
    exact: bool = False,
    l2: float = 0.0,
    hidden: int | None = None,
    bias: bool = False,
) -> Callable[[int, Sequence[Array], NDArray[np.intp]], Array]:
    """g_k of equation 3, as the chain rule: sum over i of g(H_i, y_i) dH_i^k / dtheta_k, divided by S."""

    def output(k: int, theta: Any, rows: NDArray[np.intp]) -> Any:
        if hidden is not None:
            return network_output(theta, blocks[k][rows], hidden)
        return linear_output(theta, blocks[k][rows], bias and k == len(blocks) - 1)

    def gradient(k: int, thetas: Sequence[Array], rows: NDArray[np.intp]) -> Array:
        total = sum(output(j, thetas[j], rows) for j in range(len(blocks)))
        residual = RESIDUALS[loss, exact](total, labels[rows])
        by_rows = complex_gradient(lambda theta: residual @ output(k, theta, rows), thetas[k])
        return by_rows / len(rows) + l2 * thetas[k]

    return gradient


def centralised(
    features: Array, labels: Array, *, loss: str, exact: bool, l2: float, rounds: int, eta: Any, batch: Any
) -> Array:
    """SGD on the joined columns, by nobody's protocol."""
    theta = np.zeros(features.shape[1])
    for t in range(rounds):
        rows = batch(t)
        residual = RESIDUALS[loss, exact](features[rows] @ theta, labels[rows])
        theta = theta - eta(t) * (features[rows].T @ residual / len(rows) + l2 * theta)
    return theta


# The transfer objective.

ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "sigmoid": lambda z: 1 / (1 + np.exp(-z)),
    "tanh": np.tanh,
    "relu": lambda z: np.where(np.real(z) > 0, z, 0.0),
}


@dataclass(frozen=True)
class TransferProblem:
    """The loss as a function of both parties' weights, straight from its definition."""

    a: Array
    b: Array
    rows_a: NDArray[np.intp]
    rows_b: NDArray[np.intp]
    labels: Array
    width: int
    activation: str
    gamma: float
    l2: float

    def hidden(self, rows: Array, theta: Any) -> Any:
        weights = theta.reshape(rows.shape[1] + 1, self.width)
        return ACTIVATIONS[self.activation](rows @ weights[:-1] + weights[-1])

    def phi(self, theta_a: Any) -> Any:
        known = ~np.isnan(self.labels)
        u = self.hidden(self.a[known], theta_a)
        return sum(self.labels[known][i] * u[i] for i in range(len(u))) / len(u)

    def loss(self, theta_b: Any, theta_a: Any, batch: NDArray[np.intp]) -> Any:
        """1/n sum [ w (log 2 - y phi / 2 + phi^2 / 8) + gamma |u^A - u^B|^2 ] + l2/2 (|W_A|^2 + |W_B|^2)."""
        u_a = self.hidden(self.a[self.rows_a[batch]], theta_a)
        u_b = self.hidden(self.b[self.rows_b[batch]], theta_b)
        Phi, total = self.phi(theta_a), 0.0
        for i, y in enumerate(self.labels[self.rows_a[batch]]):
            if not np.isnan(y):
                score = (Phi * u_b[i]).sum()
                total = total + np.log(2) - y * score / 2 + score**2 / 8
            total = total + self.gamma * ((u_a[i] - u_b[i]) ** 2).sum()
        weights = (theta_a**2).sum() + (theta_b**2).sum()
        return total / len(batch) + self.l2 / 2 * weights

    def gradient(self, k: int, thetas: Sequence[Array], batch: NDArray[np.intp]) -> Array:
        """By party k's weights: 0 is B, 1 is A."""
        if k == 0:
            return complex_gradient(lambda theta: self.loss(theta, thetas[1], batch), thetas[0])
        return complex_gradient(lambda theta: self.loss(thetas[0], theta, batch), thetas[1])

    def scores(self, theta_b: Array, theta_a: Array, rows: Array) -> Array:
        result: Array = self.hidden(rows, theta_b) @ self.phi(theta_a)
        return result
