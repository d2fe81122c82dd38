"""Scoring: each party's scorer, the blur and the score ledger."""
