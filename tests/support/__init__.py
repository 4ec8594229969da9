"""The project's own test harness: servers, agents and clusters that a test drives by hand."""
