"""CPU cores of nodes, apportioned among the jobs of any policy's plan (SAD, SoCC 2018)."""
