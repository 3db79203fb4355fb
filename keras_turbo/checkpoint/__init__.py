"""Checkpoints: a snapshot in memory, written in the background, made complete on disk in one step."""
