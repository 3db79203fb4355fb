"""Processes for what holds Python's lock: users' Python code, and decoders on machines with many cores."""
