"""Questions about drawn pictures: counts, boxes, points, clicks, words, and the same with tools."""
