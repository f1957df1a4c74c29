"""Everything that can be set, with its types and bounds."""
