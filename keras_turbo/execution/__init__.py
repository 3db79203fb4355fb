"""How training steps are run: several in one program, with or without XLA, chosen by measurement."""
