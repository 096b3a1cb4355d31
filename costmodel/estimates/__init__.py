"""The answer to one question, and the data about it: record, frame, mesh, warnings, timeline."""
