"""What runs the model: orders in, results out. Above this floor only `engine.batch` is known, which is data."""
