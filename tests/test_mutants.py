"""The planted faults of `make mutants` stay plantable when code moves."""

from tests.mutants import misplaced


def test_every_mutant_has_its_pattern_once_in_its_file():
    assert misplaced() == []
