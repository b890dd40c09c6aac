"""What a run leaves for people: the result as data, and in words, files and plots. No physics."""
