"""One program drives many devices, and many programs share them (Pathways, MLSys 2022)."""
