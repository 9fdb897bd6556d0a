"""The one structural rule that a machine judges: inside a package no module imports itself by a detour."""

import graphlib

import grimp
import pytest

PACKAGES = (
    "algorithms", "callbacks", "cli", "data", "envs", "evaluation", "games", "learner", "options", "rollout", "server",
    "training", "viewer", "weights",
)  # fmt: skip


@pytest.fixture(scope="module")
def graph():
    # grimp reads the source, so that imports within functions and under TYPE_CHECKING count as all others do.
    return grimp.build_graph("rllm_gym", exclude_type_checking_imports=False, cache_dir=None)


def circle(imports):
    """Return a circle of {module: modules that it imports}, in order, its first module at both ends; or None."""
    try:
        graphlib.TopologicalSorter(imports).prepare()
    except graphlib.CycleError as error:
        return error.args[1]
    return None


def imports_within(graph, package):
    inside = {module for module in graph.modules if module.startswith(f"{package}.")} | {package}
    # A package's __init__ gathers the names of its modules, so that only what modules import of each other counts.
    return {module: inside & graph.find_modules_directly_imported_by(module) - {package} for module in inside}


def test_every_package_is_looked_at(graph):
    assert {module.split(".")[1] for module in graph.modules if module.count(".") > 1} == set(PACKAGES)


@pytest.mark.parametrize("package", PACKAGES)
def test_no_package_has_an_import_circle(graph, package):
    found = circle(imports_within(graph, f"rllm_gym.{package}"))
    assert found is None, "imports, each module the next: " + " -> ".join(reversed(found))


def test_modules_of_the_package_itself_are_in_no_circle(graph):
    inside = {module for module in graph.modules if module.count(".") == 1}
    found = circle({module: inside & graph.find_modules_directly_imported_by(module) for module in inside})
    assert found is None, "imports, each module the next: " + " -> ".join(reversed(found))


def test_a_circle_is_printed_from_end_to_end():
    found = circle({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}})
    assert found[0] == found[-1] and sorted(found[1:]) == ["a", "b", "c"]
    assert circle({"a": {"b", "c"}, "b": {"c"}}) is None
