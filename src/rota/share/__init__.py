"""A foreground training keeps the speed of its device, and a background one uses the rest."""
