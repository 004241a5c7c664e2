"""A backend of a third party: with two faults, and mended."""
