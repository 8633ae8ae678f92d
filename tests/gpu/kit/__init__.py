"""The kit that checks and measures fgpu on a real GPU. Python's standard library only, 3.8 and newer."""
