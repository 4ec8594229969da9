"""Flow (Pathways): one program drives many devices, and many programs share them."""
