"""Kernels of the Kimi K2 family. They depend on jax alone; each has a plain JAX path that runs on any backend.

The suffix of an array's name lists its dimensions, outermost first; 1 is a dimension of size 1, and a digit is a
dimension of that size. Most letters mean the same in every package:

| letter | dimension | letter | dimension |
| --- | --- | --- | --- |
| B | batch | E | experts |
| S | sequence | F | width of one expert |
| T | tokens | K | active experts of a token |
| D | width of the model | P | ranks (devices) of a mesh axis |
| H | attention heads | R | rows sorted by expert, or received from other ranks |
| V | visits, the steps of a sequential grid dimension | C | slots for rows: of an expert, or of a pair of ranks |

Further letters of single packages:

- ``mla_attention``: Q queries and K keys of one tile, N blocks of the sequence.
- ``mla_decode``: N sequences, Q queries, L layers, P pages, M pages of one sequence, W numbers of a latent vector, of
  which the first R are the value.
- ``grouped_matmul``: G groups, each of which multiplies ``[M, K]`` by ``[K, N]``.
- ``routed_experts``: N copies of tokens (one for each choice), I tiles of rows, J tiles of tokens, W columns of packed
  rows, B rows of an overflow block.
- ``newton_schulz``: B matrices ``[N, M]``, N at most M.
- ``expert_exchange``: N rows of a sent buffer, at most J of them for one token.
"""
