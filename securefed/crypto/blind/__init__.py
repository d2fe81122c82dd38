"""The one product of blind training that needs encryption."""
