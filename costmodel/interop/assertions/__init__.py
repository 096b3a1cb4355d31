"""What frameworks assert about a job before they run it: a table each, with the file and line of their own."""
