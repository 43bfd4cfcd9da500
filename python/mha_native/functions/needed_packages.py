"""Optional packages: the command that installs them, and the error of a plug without its package."""

from collections.abc import Iterator
from contextlib import contextmanager

# True from the first release on the package index: hints then name extras, which have the tested versions. Until then
# anyone could register the name there, so hints name packages.
_IS_ON_INDEX = False


def pip_install(*packages: str, extra: str | None = None) -> str:
    """Return the command that installs `packages`, as every hint shows it.

    extra : str, optional
        The extra of mha_native that has the packages.
    """
    names = [f"mha_native[{extra}]"] if _IS_ON_INDEX and extra is not None else packages
    quoted = (f'"{name}"' if set("[<>=") & set(name) else name for name in names)  # from the shell
    return f"pip install {' '.join(quoted)}"


@contextmanager
def needed_package(module: str, package: str, extra: str | None = None) -> Iterator[None]:
    """Wrap the imports of an optional package: an ImportError says how to install it.

    extra : str, optional
        The extra of mha_native that brings the package.
    """
    try:
        yield
    except ImportError as error:
        command = pip_install(package, extra=extra)
        raise ImportError(f"{module}: needs the package {package}: {command} ({error})") from error
