"""The packages that a server needs, checked before any of them is imported."""

from importlib.util import find_spec

from ..functions.messages import listed
from ..functions.needed_packages import pip_install

PACKAGES = ("starlette", "uvicorn", "msgspec", "orjson", "prometheus_client", "python_multipart")

if _missing := [package for package in PACKAGES if find_spec(package) is None]:
    _command = pip_install(*_missing, extra="server")
    raise ImportError(f"mha_native.server: needs packages that are missing, {listed(_missing)}: {_command}")
