"""The error of a plug whose package is not installed."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def needed_package(module: str, package: str, extra: str | None = None) -> Iterator[None]:
    """Wrap the imports of an optional package: an ImportError says how to install it.

    extra : str, optional
        The extra of mha_native that brings the package; without one, pip installs the package itself.
    """
    try:
        yield
    except ImportError as error:
        install = package if extra is None else f'"mha_native[{extra}]"'
        raise ImportError(f"{module}: needs the package {package}: pip install {install} ({error})") from error
