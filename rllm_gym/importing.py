"""Finds what "module:name" names; what cannot be found is said in one line, with the nearest name. Quick imports."""

from __future__ import annotations

import contextlib
import difflib
import gc
import importlib
import pkgutil
import sys
from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import Any

from rllm_gym.errors import ConfigError, nearest


def import_object(who: str, path: str) -> Any:
    """Return the object that a path names.

    Args:
        who: the option, at the beginning of the message.
        path: "module:name".

    Raises:
        ConfigError: there is no such module or name, or the module fails while it is imported.
    """
    module_name, _, name = path.partition(":")
    rule = f'{who} must name a Python object as "module:name"; got {path!r}'
    if not module_name or not name:
        raise ConfigError(f"{rule} (it needs a module, a colon and a name). Correct it.")
    try:
        with uncollected():
            module = importlib.import_module(module_name)
    except Exception as error:  # a module of the user's own may raise anything
        kind = "" if isinstance(error, ImportError) else f"{type(error).__name__}: "
        hint = _missing_module(path, error.name) if isinstance(error, ModuleNotFoundError) and error.name else ""
        raise ConfigError(f"{rule} ({kind}{' '.join(str(error).split())}).{hint}") from error
    try:
        return getattr(module, name)
    except AttributeError as error:
        hint = f" Did you mean '{module_name}:{nearest(name, names)}'?" if (names := _names(module)) else ""
        raise ConfigError(f"{rule} ({error}).{hint}") from error


def leave_out_scipy() -> None:
    """Keep transformers from importing SciPy and scikit-learn with the models' classes: a second of every start.

    Detection of objects and assisted generation look at them, which nothing here uses. To be called before the classes
    are imported. A workaround for transformers 5.19, which may go once it imports them where they are used.
    """
    utilities: Any = importlib.import_module("transformers.utils")
    utilities.is_scipy_available = utilities.is_sklearn_available = lambda: False


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Let Python's cyclic garbage collector rest while much is made that stays: libraries imported, an engine built.

    Again and again it would go through all that was made before: a sixth of the time that it takes to import vLLM.
    What was made counts as old afterwards, without a look at it.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            if not gc.get_freeze_count():  # what somebody froze stays so
                gc.freeze()
                gc.unfreeze()  # into the oldest generation
            gc.enable()


@contextlib.contextmanager
def without(module: str) -> Iterator[None]:
    """Let what is imported find that a module is missing, unless it has been imported before."""
    sys.modules.setdefault(module, None)  # type: ignore[arg-type]
    try:
        yield
    finally:
        if sys.modules[module] is None:
            del sys.modules[module]


def did_you_mean(name: str, known: Iterable[str], *, suffix: str = "") -> str:
    """Return " Did you mean 'x'?" for the nearest known name, or nothing where none is near."""
    found = difflib.get_close_matches(name, list(known), n=1)
    return f" Did you mean {found[0] + suffix!r}?" if found else ""


def _names(module: ModuleType) -> list[str]:
    """Return the classes and functions that a module may be meant for: its own, or else what it imports."""
    found = {name: value for name, value in vars(module).items() if callable(value) and not name.startswith("_")}
    own = [name for name, value in found.items() if getattr(value, "__module__", None) == module.__name__]
    return own or list(found)


def _missing_module(path: str, missing: str) -> str:
    """Return the path with the nearest module in place of the missing one, as a question, or nothing."""
    package, _, _ = missing.rpartition(".")
    # A package that has been imported; something else may be missing than what the path names.
    folders = getattr(sys.modules.get(package), "__path__", None)
    if not path.startswith((f"{missing}.", f"{missing}:")) or (package and folders is None):
        return ""
    prefix = f"{package}." if package else ""
    known = [f"{prefix}{module.name}" for module in pkgutil.iter_modules(folders)]
    return did_you_mean(missing, known, suffix=path.removeprefix(missing))
