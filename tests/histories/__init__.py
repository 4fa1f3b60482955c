"""Random histories: sequences of steps on whole workers, judged by what users may expect.

``make histories N=500 SEED=1`` runs them. A history that fails is shrunk to few steps and printed as a program.
"""
