"""The numbers of GPUs on which each layer of a training is worth running; pure functions."""
