"""How a step is run: its tracing watched, and everything switched to eager float32 for debugging."""
