"""The options of every method: tables, from which come the checks, the defaults, `help` and the pages on YAML.

An option is an annotated attribute of a table here, or of a configuration derived from one: its type with its bounds,
its default, and a `Doc` that says what it does. A table's `faults` yields a line for each conflict between options.
Nothing here loads Ray or torch, so that a mistake in a file is reported at once. A method of your own declares its
options in its configuration in the same way.

    table.py    what a table is, and how its options are read
    rllib.py    RLlib's options: those that mean the same here, and the replacements of the others
    common.py   the options that every method has
    methods.py  the list of the methods, and each one's options
    types.py    numeric types
    values.py   faults of single values, in words
"""
