"""The polynomial ring of both lattice schemes, blind products and CKKS."""
