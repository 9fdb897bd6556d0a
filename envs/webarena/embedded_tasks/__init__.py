"""The templates of the embedded tasks, by site."""
