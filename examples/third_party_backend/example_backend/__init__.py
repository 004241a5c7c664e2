"""A backend of a third party: with a fault, and mended."""
