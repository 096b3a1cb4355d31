"""Doors for people and programs elsewhere: a page in the browser, and tools for assistants, under the same limits."""
