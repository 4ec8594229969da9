"""One program drives the devices of many workers, and many programs share the devices."""
