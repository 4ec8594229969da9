"""Where nodes come from: one module per engine."""
