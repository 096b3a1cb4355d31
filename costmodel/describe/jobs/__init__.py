"""Jobs: layouts, the fields of a job, and merging a file with flags."""
