"""Bills for people and programs: tables, records, frames, warnings. Reads a bill, knows no formula."""
