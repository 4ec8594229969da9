"""Talk to a running controller from Python: ``from rota.client.client import Client``."""
