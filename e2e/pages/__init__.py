"""Pages that a browser shows: `make e2e` opens them in Chromium."""
