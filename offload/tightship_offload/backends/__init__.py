"""Devices that a window runs on: CPU and CUDA."""
