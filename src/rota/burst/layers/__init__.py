"""The layers of a torch model: tracing, measured times, profiles that the planner reads."""
