"""Messages and routes of conversations between two processes of this project, defined once for both sides."""
