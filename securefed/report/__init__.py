"""The account of a run: result.json and timing.json of a party (summary), and an HTML page (page)."""
