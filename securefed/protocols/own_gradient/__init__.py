"""The paper's protocols: encrypted exchange of H, and openings of each party's own aggregated gradient."""
