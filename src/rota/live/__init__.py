"""The live cluster: the controller, one agent per node, and the messages between them."""
