"""Answers of task models in pixels of the image: depth, boxes, segments and keypoints, from NumPy arrays."""
