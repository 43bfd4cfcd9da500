"""The state of a layer of transformers at one time, compared with its state now in about a microsecond."""

from __future__ import annotations

from typing import Any

from torch.nn.modules import module as all_modules
from transformers.utils import output_capturing

from ...layers._torch_modules import not_compared, reads_attributes, reads_mode


class LayerSnapshot:
    """The state that the result of `layer` depends on: the attributes, parts, classes and weights of its modules.

    Of a weight it holds the address and the count of changes, of which ``.data`` counts none.
    """

    def __init__(self, layer: Any) -> None:
        modules = list(layer.modules())
        kinds = {base for of in modules for base in type(of).__mro__[:-1] if "forward" in vars(base)}
        # Mappings, keys and values. The forward of the layer itself is this library's.
        self._entries = [
            *((of._modules, name, child) for of in modules for name, child in of._modules.items()),
            *(
                (vars(of), name, value)
                for of in modules
                if reads_attributes(of)
                for name, value in vars(of).items()
                if name not in not_compared() and not (of is layer and name == "forward")
            ),
            # A layer that is taken over in training mode computes here after ``layer.eval()``.
            *((vars(of), "training", of.training and not layer.training) for of in modules if reads_mode(of)),
            *((vars(kind), "forward", vars(kind)["forward"]) for kind in kinds),
        ]
        self._modules, self._classes = modules, [type(of) for of in modules]
        self._tables = [vars(of) for of in modules]
        self._sizes = [len(table) for table in self._tables]
        self._weights = [
            (of._parameters, name, weight, weight.data_ptr(), weight._version)
            for of in modules
            for name, weight in of._parameters.items()
            if weight is not None
        ]
        hooks = [(of._forward_hooks, of._forward_pre_hooks) for of in modules[1:]]
        hooks.append((all_modules._global_forward_hooks, all_modules._global_forward_pre_hooks))
        self._hooks = [each for pair in hooks for each in pair]

    def is_current(self) -> bool:
        """Return whether the layer still has this state."""
        if [*map(len, self._tables)] != self._sizes or [*map(type, self._modules)] != self._classes:
            return False
        try:
            for table, name, value in self._entries:
                if table[name] is not value:
                    return False
            for table, name, weight, address, version in self._weights:
                if table[name] is not weight or weight.data_ptr() != address or weight._version != version:
                    return False
        except KeyError:
            return False
        return True

    def requires_grad(self) -> bool:
        """Return whether a weight does."""
        return any(weight[2].requires_grad for weight in self._weights)

    def has_hooks(self) -> bool:
        """Return whether a part has hooks that this library cannot run.

        Hooks that collect outputs of attention find none, as with any implementation but "eager".
        """
        if not any(self._hooks):
            return False
        hooks = [hook for of in self._hooks for hook in of.values()]
        return any(getattr(hook, "__module__", None) != output_capturing.__name__ for hook in hooks)
