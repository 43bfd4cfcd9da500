"""What the modules of this folder say where the package that they are a plug of is not installed."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def needed_package(module: str, package: str, extra: str) -> Iterator[None]:
    """A ``with`` statement around the imports of an optional package: what fails says which to install."""
    try:
        yield
    except ImportError as error:
        raise ImportError(
            f'{module}: needs the package {package}: pip install "mha_native[{extra}]" ({error})'
        ) from error
