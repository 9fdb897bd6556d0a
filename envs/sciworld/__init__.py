"""SciWorld: carry out science experiments of primary school in a simulated house."""
