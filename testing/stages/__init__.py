"""The stages of the gate; table.py lists them. Nothing is imported here, so that an expected side stays alone."""
