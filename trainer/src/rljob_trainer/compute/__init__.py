"""Shared by ranks and engines: linear layers, dtypes, memory and its errors."""
