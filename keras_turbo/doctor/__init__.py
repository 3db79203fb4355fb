"""`python -m keras_turbo doctor`: does what is installed fit together, and does the machine give what it has?"""
