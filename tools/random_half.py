#!/usr/bin/env python3
"""Prints a random half of the words on standard input, in their order: random_half.py SEED. The same seed, the same half."""
import random
import sys

words = sys.stdin.read().split()
chosen = set(random.Random(int(sys.argv[1])).sample(words, len(words) // 2))
print(*[word for word in words if word in chosen])
