"""HTTP service over a run: recommend, explain, edit the catalogue while serving. Reaches no training code."""
