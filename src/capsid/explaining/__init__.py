"""Why a recommendation is what it is: the watched search, and a picture of it."""
