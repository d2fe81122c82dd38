"""Deliberately broken variants: the obvious way to do each thing, kept so that each attack is known to work.

Nothing here is imported by the package. Every class says in its docstring what is missing.
"""
