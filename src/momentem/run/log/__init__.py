"""The run log: a run on disk, from which it can be read and resumed."""
