"""The CPU cores of jobs on the nodes where a policy has placed them."""
