"""A small web server with good and bad habits, for the link checker to try. Listens on 127.0.0.1 only."""
