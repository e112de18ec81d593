"""Functions of neural networks, as their papers define them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import scipy.special


class NN:
    """Functions of neural networks, as their papers define them, with 64 bits."""

    @staticmethod
    def identity(x: Any) -> Any:
        return x

    tanh = np.tanh

    @staticmethod
    def celu(x: Any, alpha: float = 1.0) -> Any:
        return np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0) / alpha))

    @staticmethod
    def elu(x: Any, alpha: float = 1.0) -> Any:
        return np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0)))

    @staticmethod
    def gelu(x: Any, approximate: bool = True) -> Any:
        if approximate:
            return x * scipy.special.expit(2 * np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))
        return x * scipy.special.ndtr(x)

    @staticmethod
    def hard_sigmoid(x: Any) -> Any:
        return np.clip(x + 3, 0, 6) / 6

    def hard_silu(self, x: Any) -> Any:
        return x * self.hard_sigmoid(x)

    hard_swish = hard_silu

    @staticmethod
    def hard_tanh(x: Any) -> Any:
        return np.clip(x, -1, 1)

    @staticmethod
    def leaky_relu(x: Any, negative_slope: float = 0.01) -> Any:
        return np.where(x >= 0, x, x * negative_slope)

    @staticmethod
    def softplus(x: Any) -> Any:
        return np.logaddexp(x, 0)

    def log_sigmoid(self, x: Any) -> Any:
        return -np.logaddexp(-x, 0)

    def mish(self, x: Any) -> Any:
        return x * np.tanh(np.logaddexp(x, 0))

    @staticmethod
    def relu(x: Any) -> Any:
        return np.maximum(x, 0)

    @staticmethod
    def relu6(x: Any) -> Any:
        return np.clip(x, 0, 6)

    def selu(self, x: Any) -> Any:
        return 1.0507009873554805 * self.elu(x, 1.6732632423543772)

    @staticmethod
    def sigmoid(x: Any) -> Any:
        return scipy.special.expit(x)

    @staticmethod
    def silu(x: Any) -> Any:
        return x * scipy.special.expit(x)

    swish = silu

    @staticmethod
    def soft_sign(x: Any) -> Any:
        return x / (1 + np.abs(x))

    @staticmethod
    def sparse_plus(x: Any) -> Any:
        return np.where(x <= -1, 0, np.where(x >= 1, x, (x + 1) ** 2 / 4))

    @staticmethod
    def sparse_sigmoid(x: Any) -> Any:
        return np.clip((x + 1) / 2, 0, 1)

    @staticmethod
    def squareplus(x: Any, b: float = 4) -> Any:
        root = np.hypot(x, np.sqrt(b))
        return np.where(x < 0, b / 2 / (root - np.minimum(x, 0)), (x + root) / 2)

    @staticmethod
    def log1mexp(x: Any) -> Any:
        return np.where(x < math.log(2), np.log(-np.expm1(-x)), np.log1p(-np.exp(-x)))

    @staticmethod
    def softmax(x: Any, axis: int) -> Any:
        return scipy.special.softmax(x, axis)

    @staticmethod
    def log_softmax(x: Any, axis: int) -> Any:
        return scipy.special.log_softmax(x, axis)

    @staticmethod
    def standardize(x: Any, axis: int) -> Any:
        off = x - x.mean(axis, keepdims=True)
        return off / np.sqrt(x.var(axis, keepdims=True) + 1e-5)

    @staticmethod
    def logsumexp(x: Any, axis: Any, keepdims: bool) -> Any:
        top = x.max(axis, keepdims=True)
        found = np.log(np.exp(x - top).sum(axis, keepdims=True)) + top
        return found if keepdims else np.squeeze(found, axis)

    def logmeanexp(self, x: Any, axis: Any, keepdims: bool) -> Any:
        count = x.size if axis is None else math.prod(np.take(x.shape, axis, 0).reshape(-1))
        return self.logsumexp(x, axis, keepdims) - np.log(count)

    @staticmethod
    def glu(x: Any) -> Any:
        first, second = np.split(x, 2, -1)
        return first * scipy.special.expit(second)

    @staticmethod
    def one_hot(x: Any, count: int, dtype: Any, axis: int) -> Any:
        return np.moveaxis((x[..., None] == np.arange(count)).astype(dtype), -1, axis)

    @staticmethod
    def dot_product_attention(q: Any, k: Any, v: Any, is_causal: bool) -> Any:
        scores = np.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(q.shape[-1])
        if is_causal:
            scores = np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, -np.inf)
        return np.einsum("bhqk,bkhd->bqhd", scipy.special.softmax(scores, -1), v)
