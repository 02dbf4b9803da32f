"""One small class per kind of operation; every module here that defines one is found by itself."""

from importlib import import_module
from pkgutil import iter_modules

from canon.ops.base import Op, OpKind, kind_of

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")

__all__ = ["Op", "OpKind", "kind_of"]
