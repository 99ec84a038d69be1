"""What plays an episode: `Environment`, an async function from a task and a policy to an episode."""
