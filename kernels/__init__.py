"""The domain: tasks, candidates, records, history, and the store that keeps them."""
