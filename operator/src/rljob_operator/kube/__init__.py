"""A thin asynchronous client of the API server: raw JSON, preconditions on every write, a fence, a deadline."""
