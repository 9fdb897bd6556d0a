"""SciWorld: carry out elementary-school science experiments in a simulated house."""
