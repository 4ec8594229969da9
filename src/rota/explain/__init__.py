"""Why jobs wait and who shares what, in words: one wording for the CLI, the API and pages."""
