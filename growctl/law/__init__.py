"""Fits a law that predicts the losses of grown models, for `growctl law`."""
