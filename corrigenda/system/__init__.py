"""Files, processes, progress, the hub: what stands between the project and the machine."""
