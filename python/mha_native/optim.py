"""Optimizers over named arrays, and schedules of their learning rate."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from . import _core
from .functions.arrays import Tensor, to_numpy
from .functions.messages import name_of_type, shown
from .functions.scalars import checked_integer, checked_real

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["AdamW", "warmup_cosine"]

Schedule = Callable[[int], float]

_MOST_AXES = 4  # of an array in the core


class AdamW:
    """AdamW: Adam with decoupled weight decay, over named arrays, in one pass over the memory of each.

    A step changes ``w``, with the gradient g after clipping and the number t of steps of this array, to

    ``w (1 - lr wd) - lr m' / (sqrt(v') + eps)``,  ``m' = m / (1 - beta1^t)``,  ``v' = v / (1 - beta2^t)``

    where ``m = beta1 m + (1 - beta1) g`` and ``v = beta2 v + (1 - beta2) g^2``, like ``torch.optim.AdamW`` (Loshchilov
    and Hutter, "Decoupled Weight Decay Regularization", 2019).

    Parameters
    ----------
    weights : mapping of str to array
        Initial weights by name, such as the `state_dict` of a layer: NumPy arrays, or CPU tensors of any library that
        speaks DLPack. They are copied, in float64 if they are float64, else in float32.
    lr : float
        The learning rate.
    betas : (float, float), default (0.9, 0.999)
        How much of the moments m and v a step keeps.
    eps : float, default 1e-8
        Added to the root.
    weight_decay : float, default 0.01
        Times `lr`, the part of a weight that a step takes away.
    max_grad_norm : float, optional
        If the norm of all gradients together exceeds this number, they are multiplied by ``max_grad_norm / norm``.
        Default: no clipping.
    schedule : callable, optional
        ``schedule(t)``, for the step after t steps, multiplies `lr`. Default: 1.

    See Also
    --------
    warmup_cosine : A schedule.

    Notes
    -----
    Moments and weights are float32, or float64 for float64 weights; gradients may have 16 bits. The number of threads
    does not change one bit of a result.

    Examples
    --------
    >>> import numpy as np
    >>> import mha_native as mha
    >>> optimizer = mha.optim.AdamW({"weight": np.ones(3, np.float32)}, lr=0.1)
    >>> optimizer.step({"weight": np.array([1, 0, -2], np.float32)})
    >>> optimizer.weights["weight"].round(4)
    array([0.899, 0.999, 1.099], dtype=float32)
    """

    def __init__(
        self,
        weights: Mapping[str, Tensor],
        *,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        max_grad_norm: float | None = None,
        schedule: Schedule | None = None,
    ) -> None:
        if not isinstance(weights, Mapping):
            raise TypeError(f"AdamW: weights must be a mapping of names to arrays; got {name_of_type(weights)}")
        if not isinstance(betas, tuple | list) or len(betas) != 2:
            raise TypeError(f"AdamW: betas must be a tuple of two numbers; got {shown(betas)}")
        if schedule is not None and not callable(schedule):
            raise TypeError(f"AdamW: schedule must be callable, or None; got {name_of_type(schedule)}")
        self._lr = _at_least_0("lr", lr)
        self._betas = _at_least_0("betas[0]", betas[0]), _at_least_0("betas[1]", betas[1])
        if not max(self._betas) < 1:
            raise ValueError(f"AdamW: betas must be less than 1; got {shown(betas)}")
        self._eps = _at_least_0("eps", eps)
        self._weight_decay = _at_least_0("weight_decay", weight_decay)
        self._max_grad_norm = None if max_grad_norm is None else _at_least_0("max_grad_norm", max_grad_norm)
        self._schedule = schedule
        self._weights = {name: _master("AdamW", f"weights[{name!r}]", array) for name, array in weights.items()}
        self._moments = {name: (np.zeros_like(array), np.zeros_like(array)) for name, array in self._weights.items()}
        self._counts = dict.fromkeys(self._weights, 0)
        self._steps = 0

    @property
    def weights(self) -> Mapping[str, NDArray[Any]]:
        """The weights by name: the arrays that `step` changes in place, for `load_state_dict` of a layer."""
        return MappingProxyType(self._weights)

    @property
    def num_steps(self) -> int:
        """The number of steps so far."""
        return self._steps

    @property
    def lr(self) -> float:
        """The learning rate of the next step."""
        if self._schedule is None:
            return self._lr
        factor = checked_real("AdamW", "schedule(t)", self._schedule(self._steps))
        return self._lr * factor

    def step(self, gradients: Mapping[str, Tensor], *, num_threads: int | None = None) -> float | None:
        """Change the weights that have a gradient, in place, and leave the others alone.

        Parameters
        ----------
        gradients : mapping of str to array
            Gradients by the names of the weights, with their shapes: of the dtype of the weight, or of 16 bits. None
            counts as missing.
        num_threads : int, optional
            Threads for this call; default: `mha_native.num_threads`.

        Returns
        -------
        norm : float or None
            The norm of all gradients together before clipping; None without `max_grad_norm`.

        Raises
        ------
        TypeError, ValueError
            Before any work, if an argument breaks a rule, and with `max_grad_norm` if the norm is not finite.
        """
        given = self._checked(gradients)
        lr, scale, norm = self.lr, 1.0, None
        if self._max_grad_norm is not None:
            norm = math.sqrt(sum(_core.sum_of_squares(g, num_threads) for g in given.values()))
            if not math.isfinite(norm):
                raise ValueError(f"AdamW.step: the norm of gradients must be finite; got {norm}")
            scale = min(1.0, self._max_grad_norm / (norm + 1e-6))
        numbers = lr, self._betas, self._eps, self._weight_decay, scale
        for name, gradient in given.items():
            arrays = (_flat(array) for array in (self._weights[name], *self._moments[name]))
            weight, m, v = arrays
            _core.adamw(weight, gradient, m, v, *numbers, self._counts[name] + 1, num_threads)
            self._counts[name] += 1
        self._steps += 1
        return norm

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return copies of all that a step changes, by name, for ``numpy.savez`` and `load_state_dict`.

        These are ``steps``, and for each name of a weight ``weight.NAME``, ``m.NAME``, ``v.NAME`` and ``steps.NAME``.
        """
        state: dict[str, NDArray[Any]] = {"steps": np.array(self._steps)}
        for name, weight in self._weights.items():
            m, v = self._moments[name]
            state |= {f"weight.{name}": weight.copy(), f"m.{name}": m.copy(), f"v.{name}": v.copy()}
            state[f"steps.{name}"] = np.array(self._counts[name])
        return state

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Continue from a `state_dict` of an optimizer over weights with the same names, shapes and dtypes.

        Parameters
        ----------
        state : mapping of str to array

        Raises
        ------
        TypeError, ValueError
            Before anything changes, if an array is missing, not expected, or has another shape or dtype.
        """
        function = "AdamW.load_state_dict"
        current = self.state_dict()
        if not isinstance(state, Mapping):
            raise TypeError(f"{function}: state must be a mapping of names to arrays; got {name_of_type(state)}")
        if missing := [name for name in current if name not in state]:
            raise ValueError(f"{function}: state must have the names of state_dict(); it lacks {shown(missing[0])}")
        if others := [name for name in state if name not in current]:
            raise ValueError(f"{function}: state must have the names of state_dict(); it has {shown(others[0])}")
        given = {name: to_numpy(function, f"state[{name!r}]", state[name]) for name in current}
        for name, array in current.items():
            x = given[name]
            if not isinstance(x, np.ndarray) or x.shape != array.shape or x.dtype != array.dtype:
                got = f"{x.dtype} {list(x.shape)}" if isinstance(x, np.ndarray) else name_of_type(x)
                raise ValueError(
                    f"{function}: {name} in state must be an array {array.dtype} {list(array.shape)}; got {got}"
                )
        for name, weight in self._weights.items():
            for kind, array in zip(("weight", "m", "v"), (weight, *self._moments[name]), strict=True):
                array[...] = given[f"{kind}.{name}"]
            self._counts[name] = int(given[f"steps.{name}"])
        self._steps = int(given["steps"])

    def _checked(self, gradients: Mapping[str, Tensor]) -> dict[str, NDArray[Any]]:
        function = "AdamW.step"
        if not isinstance(gradients, Mapping):
            raise TypeError(
                f"{function}: gradients must be a mapping of names to arrays; got {name_of_type(gradients)}"
            )
        given = {}
        for name, gradient in gradients.items():
            if name not in self._weights:
                raise ValueError(f"{function}: gradients must have the names of weights; got {shown(name)}")
            if gradient is None:
                continue
            array, weight = _array(function, f"gradients[{name!r}]", gradient), self._weights[name]
            if array.shape != weight.shape:
                expected, got = list(weight.shape), list(array.shape)
                raise ValueError(
                    f"{function}: gradients[{name!r}] must have the shape of the weight, {expected}; got {got}"
                )
            if _wide(array) != weight.dtype:
                rule = f"must be {weight.dtype}" + (", or of 16 bits" if weight.dtype == np.float32 else "")
                raise TypeError(f"{function}: gradients[{name!r}] {rule}; got {_core.dtype_name(array.dtype)}")
            given[name] = _flat(array)
        return given


def warmup_cosine(warmup_steps: int, total_steps: int, *, min_factor: float = 0.0) -> Schedule:
    """Return a schedule that rises in a line to 1, then falls to `min_factor` along half a cosine.

    Parameters
    ----------
    warmup_steps : int
        W: step t, counted from 0, has the factor ``(t + 1) / W`` for t < W.
    total_steps : int
        N: from there on, ``min_factor + (1 - min_factor) (1 + cos(pi (t - W) / (N - W))) / 2``, and `min_factor` for
        t >= N.
    min_factor : float, default 0
        Between 0 and 1.

    Returns
    -------
    schedule : callable
        The factor of the learning rate by the number of steps so far, for `AdamW`.

    Examples
    --------
    >>> import mha_native as mha
    >>> schedule = mha.optim.warmup_cosine(2, 6)
    >>> [round(schedule(t), 3) for t in range(7)]
    [0.5, 1.0, 1.0, 0.854, 0.5, 0.146, 0.0]
    """
    name = "warmup_cosine"
    warmup = checked_integer(name, "warmup_steps", warmup_steps, 0)
    total = checked_integer(name, "total_steps", total_steps, 1)
    least = checked_real(name, "min_factor", min_factor)
    if warmup > total:
        raise ValueError(f"{name}: warmup_steps must be at most total_steps, {total}; got {warmup}")
    if not 0 <= least <= 1:
        raise ValueError(f"{name}: min_factor must be from 0 to 1; got {shown(min_factor)}")

    def factor(step: int) -> float:
        if step < warmup:
            return (step + 1) / warmup
        if step >= total:
            return least
        return least + (1 - least) * (1 + math.cos(math.pi * (step - warmup) / (total - warmup))) / 2

    return factor


def _at_least_0(name: str, number: Any) -> float:
    value = checked_real("AdamW", name, number)
    if not value >= 0:
        raise ValueError(f"AdamW: {name} must be at least 0; got {shown(number)}")
    return value


def _array(function: str, name: str, tensor: Tensor) -> NDArray[Any]:
    array = to_numpy(function, name, tensor)
    if not isinstance(array, np.ndarray) or _wide(array) is None:
        got = _core.dtype_name(array.dtype) if isinstance(array, np.ndarray) else name_of_type(tensor)
        raise TypeError(f"{function}: {name} must be an array of float32, float64, float16 or bfloat16; got {got}")
    return array


def _wide(array: NDArray[Any]) -> Any:
    """Return the dtype in which numbers of an array are added up; None for other arrays than those of the core."""
    if array.dtype in (np.float32, np.float64):
        return array.dtype
    return np.dtype(np.float32) if _core.dtype_name(array.dtype) in ("float16", "bfloat16") else None


def _master(function: str, name: str, tensor: Tensor) -> NDArray[Any]:
    array = _array(function, name, tensor)
    if array.itemsize > 2:
        return np.array(array, order="C")
    return _core.convert(array.reshape(-1), "float32").reshape(array.shape)


def _flat(array: NDArray[Any]) -> NDArray[Any]:
    """Return the same numbers with a number of axes that the core takes."""
    return array if 1 <= array.ndim <= _MOST_AXES else array.reshape(-1)
