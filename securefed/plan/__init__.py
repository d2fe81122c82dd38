"""Bytes, minutes and memory of a run before it starts: rehearsals of its programs, and a forecast."""
