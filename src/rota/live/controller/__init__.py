"""The controller of a live cluster: reports in, decisions written down, commands out."""
