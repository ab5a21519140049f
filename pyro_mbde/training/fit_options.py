"""Options of a fit that the command shows too: without torch, which the command imports only when it runs."""

#: How several processes share the work of a fit.
SPLITS = ("auto", "rows", "networks")
#: Default number of steps between checkpoints.
CHECKPOINT_STEPS = 100
