"""Kuhn and Leduc poker, whose optimal play is known: rules and values are OpenSpiel's."""
