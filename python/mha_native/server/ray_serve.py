"""The application of a server on Ray Serve: replicas on one machine or many, behind its proxies."""

from __future__ import annotations

from dataclasses import is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..functions.messages import shown
from ..functions.needed_packages import needed_package
from ..functions.runtime import active_isa, use_isa
from ..functions.scalars import checked_integer
from .application import Application
from .config import Config

if TYPE_CHECKING:
    from ray import serve

__all__ = ["deployment"]


def deployment(
    config: Config,
    *,
    replicas: int | tuple[int, int] = 1,
    num_cpus: int | None = None,
    target_requests: int = 64,
    max_requests: int = 512,
    **options: Any,
) -> serve.Application:
    """Return an application of Ray Serve whose replicas each serve all models of a configuration.

    Parameters
    ----------
    config : Config
    replicas : int, or pair of int
        The number of replicas, or the fewest and the most of them: Ray then starts and ends replicas so that each has
        `target_requests`, waiting ones included.
    num_cpus : int, optional
        Processors of a replica, and threads of its computation. Default: `config.num_threads`, or else 1.
    target_requests : int, default 64
        Requests of a replica that Ray aims at, if `replicas` is a pair. Fewer give smaller batches.
    max_requests : int, default 512
        Requests that Ray hands to a replica at once; others wait in the proxy.
    **options
        Other options of ``ray.serve.deployment``, such as ``name``. Those of ``ray_actor_options`` and
        ``autoscaling_config`` are added to the ones that follow from the arguments above.

    Returns
    -------
    application : ray.serve.Application
        For ``serve.run``, or the command ``serve run``. A replica takes requests as soon as its models are open. Each
        has the instruction set of this process, so that all give the same bits.

    Raises
    ------
    TypeError, ValueError
        If a number is below 1, or the pair is not in order.
    ImportError
        If the package ``ray[serve]`` is missing.

    Examples
    --------
    >>> from mha_native.server import Config
    >>> from mha_native.server.ray_serve import deployment
    >>> from ray import serve  # doctest: +SKIP
    >>> serve.run(deployment(Config({"minilm": "all-MiniLM-L6-v2"}), replicas=(1, 4)))  # doctest: +SKIP
    """
    name = "deployment"
    with needed_package("mha_native.server.ray_serve", "ray[serve]"):
        from ray import serve
    if num_cpus is None:
        num_cpus = config.num_threads or 1
    for field, number in (("num_cpus", num_cpus), ("target_requests", target_requests), ("max_requests", max_requests)):
        checked_integer(name, field, number, 1)
    scale: dict[str, Any] = {"num_replicas": replicas}
    if isinstance(replicas, tuple):
        if len(replicas) != 2:
            raise ValueError(f"{name}: replicas must be a number, or the fewest and the most; got {shown(replicas)}")
        fewest = checked_integer(name, "replicas[0]", replicas[0], 1)
        most = checked_integer(name, "replicas[1]", replicas[1], fewest)
        limits = {"min_replicas": fewest, "max_replicas": most, "target_ongoing_requests": target_requests}
        scale = {"autoscaling_config": limits | options.pop("autoscaling_config", {})}
    else:
        checked_integer(name, "replicas", replicas, 1)
    models = {key: _of_any_folder(model) for key, model in config.models.items()}
    own, isa = replace(config, models=models, num_threads=num_cpus), active_isa()

    def build() -> Application:
        use_isa(isa)
        return Application(own, loads_first=True)

    actor = {"num_cpus": num_cpus} | options.pop("ray_actor_options", {})
    defaults = {"name": "mha_native", "max_ongoing_requests": max_requests, "ray_actor_options": actor}
    return serve.deployment(**(defaults | scale | options))(serve.ingress(build)()).bind()


def _of_any_folder(model: Any) -> Any:
    """Return a model of a configuration with its whole path: replicas run in folders of their own."""
    if is_dataclass(model) and not isinstance(model, type):  # with settings of its own
        options: dict[str, Any] = {"path": _of_any_folder(getattr(model, "path"))}  # noqa: B009  mypy knows no field
        return replace(model, **options)
    return str(Path(model).resolve()) if Path(model).exists() else model
