"""Processes that make examples in Python, and how their results come back through shared memory."""
