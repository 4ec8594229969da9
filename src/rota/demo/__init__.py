"""The main job, shown: real trainings take turns on this machine, against running one by one."""
