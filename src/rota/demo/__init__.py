"""The demo: real trainings take turns on this machine, against running one after another."""
