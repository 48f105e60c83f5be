# SPDX-License-Identifier: MIT
"""The peers on PostgreSQL and Redis: each used as its own documentation says, with the same jobs.

catalogue     who they are, how each is started, and how it is set
environments  a folder of its own for each, made on demand: what they need does not agree
submitting    the program that submits a peer's jobs; it runs in the peer's environment
*_app         the no-op job of each peer, and the ways it has to submit one and many
*.txt         what is installed for each, pinned
bullmq/       worker and producer of a peer that runs on Node; graphile/ likewise
node/         what those two share: the no-op job, and turns of submits
"""
