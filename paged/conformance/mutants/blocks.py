"""Faults of the block manager, of the kinds that users of public engines have reported.

None of them makes the manager raise at once: each gives out blocks, and wrong ones sooner or later.
"""

from functools import partial

from paged.conformance.mutants.mutant import Mutant

_pool = partial(Mutant, module="paged.blocks.pool", kind="references")
_free = partial(Mutant, module="paged.blocks.free_list", kind="order")
_flight = partial(Mutant, module="paged.blocks.in_flight", kind="steps")
_hash = partial(Mutant, module="paged.blocks.hashing", kind="hash")
_keys = partial(Mutant, module="paged.blocks.keys", kind="hash")
_proof = partial(Mutant, module="paged.blocks.preimages", kind="collisions")
_index = partial(Mutant, module="paged.blocks.prefix_index", kind="index")
_admit = partial(Mutant, module="paged.blocks.admission", kind="hits")
_commit = partial(Mutant, module="paged.blocks.committing", kind="commits")
_grow = partial(Mutant, module="paged.blocks.growth", kind="growth")
_share = partial(Mutant, module="paged.blocks.sharing", kind="forks")
_group = partial(Mutant, module="paged.blocks.groups", kind="windows")
_copy = partial(Mutant, module="paged.blocks.copies", kind="forks")
_swap = partial(Mutant, module="paged.blocks.swapping", kind="swapping")
_core = partial(Mutant, module="paged.blocks.core", kind="growth")
_manager = partial(Mutant, module="paged.blocks.manager", kind="growth")

LIKELY: dict[str, tuple[str, ...]] = {
    "references": ("prefix/touch", "blocks/double_free", "prefix/free_hit_is_consumed"),
    "order": ("prefix/order_of_freeing", "prefix/least_recently_used"),
    "steps": ("window/in_flight", "blocks/at_work"),
    "hash": ("prefix/hash_of_all_keys", "prefix/full_blocks_only"),
    "collisions": ("prefix/colliding_hash", "prefix/collision_forgotten", "blocks/at_work"),
    "index": ("prefix/events", "prefix/same_block_at_once", "prefix/reset"),
    "hits": ("prefix/full_blocks_only", "prefix/free_hit_is_consumed", "prefix/partial_tail"),
    "commits": ("prefix/full_blocks_only", "draft/rejected_tokens", "prefix/partial_tail"),
    "growth": ("fork/copy_on_write", "draft/rejected_tokens", "batch/all_or_none"),
    "forks": ("fork/copy_on_write", "fork/copy_of_a_copy", "fork/copies_before_writes"),
    "windows": ("window/blocks_before_it", "window/hit", "window/chunked", "groups/fixed_point"),
    "swapping": ("swap/out_and_in", "blocks/at_work"),
}
"""The cases most likely to catch a kind, tried first; all others follow."""

MUTANTS: tuple[Mutant, ...] = (
    _pool(
        "a new block with two references",
        before="self._ref_counts[taken] = 1\n",
        after="self._ref_counts[taken] = 2\n",
    ),
    _pool(
        "a share that does not count",
        before="self._ref_counts[shared] += 1",
        after="self._ref_counts[shared] = np.maximum(self._ref_counts[shared], 1)",
    ),
    _pool(
        "a block freed with one reference left",
        before="idle = chosen[counts == 1]",
        after="idle = chosen[counts <= 2]",
    ),
    _pool(
        "a block of many never freed",
        before="idle = chosen[counts == 1]",
        after="idle = chosen[counts == 1] if chosen.size < 2 else chosen[:-1][counts[:-1] == 1]",
    ),
    _pool(
        "a hit block left on the free list",
        before="self._free.remove(idle[is_free])",
        after="pass",
    ),
    _pool(
        "a hit block that is free not counted",
        before="wanted = count + spare + revived",
        after="wanted = count + spare",
    ),
    _pool(
        "an eviction that the index is not told of",
        before="if evicted.size and self.on_evict is not None:",
        after="if evicted.size > 1 and self.on_evict is not None:",
    ),
    _pool(
        "blocks with a hash reused first",
        before="is_kept = self.labels[blocks] != 0",
        after="is_kept = self.labels[blocks] == 0",
    ),
    _manager(
        "an unknown request freed in silence",
        before="            core.free(self._core, self._core.holding(request_id))",
        after="            if request_id in self._core.holdings:\n"
        "                core.free(self._core, self._core.holding(request_id))",
        likely=("blocks/double_free",),
    ),
    _pool(
        "no waiting for steps in flight",
        kind="steps",
        before="if self._in_flight.num_steps and idle.size:",
        after="if self._in_flight.num_steps > 9 and idle.size:",
    ),
    _flight(
        "a block waits for the step before the last",
        before="self._queue.append((self._begun, self._next_batch, blocks))",
        after="self._queue.append((self._begun - 1, self._next_batch, blocks))",
    ),
    _flight(
        "a block asked for again still comes free with its step",
        before="done.append(blocks[self._batch[blocks] == batch])",
        after="done.append(blocks)",
    ),
    _free(
        "most recently used evicted first",
        before="            self._free.push_back(blocks[is_kept])",
        after="            self._free.push_front(blocks[is_kept])",
        module="paged.blocks.pool",
    ),
    _free(
        "the head of a prefix evicted first",
        before="core.pool.release(holding.held()[::-1])",
        after="core.pool.release(holding.held())",
        module="paged.blocks.core",
    ),
    _free(
        "a stale place taken for a block",
        before="live = (self._place[blocks] == places).nonzero()[0][:missing]",
        after="live = (self._place[blocks] >= 0).nonzero()[0][:missing]",
    ),
    _free(
        "places forgotten when the ring is rewritten",
        before="self._place[blocks] = np.arange(blocks.size)",
        after="self._place[blocks] = np.arange(1, blocks.size + 1)",
    ),
    _hash(
        "a hash without its parent",
        before="            parent = function(parent + content)",
        after="            parent = function(content)",
    ),
    _hash(
        "a hash of the first tokens of a block",
        before="contents = [data[end - width : end] for end in ends]",
        after="contents = [data[end - width : end - 4] for end in ends]",
    ),
    _hash(
        "images left out of the hash",
        before="contents[index] += keys.of_block(first, first + self.unit)",
        after="contents[index] += b''",
    ),
    _hash(
        "a prompt that goes on starts a new chain",
        before="parent = digests[-1] if digests else self.root",
        after="parent = self.root if not digests else digests[0]",
    ),
    _keys(
        "the salt untagged",
        before="parts.append(_tagged(_SALT, self.salt.encode()))",
        after="parts.append(_tagged(_ADAPTER, self.salt.encode()))",
    ),
    _keys(
        "the salt left out",
        before="if self.salt is not None:",
        after="if self.salt is not None and self.adapter is not None:",
    ),
    _keys(
        "the adapter left out",
        before="if self.adapter is not None:",
        after="if self.adapter is not None and self.salt is not None:",
    ),
    _keys(
        "an image by its digest alone",
        before='(image.start - start).to_bytes(8, "big", signed=True) + image.digest',
        after="image.digest",
    ),
    _proof(
        "tokens not compared on a hit",
        before="if entry is None or entry.content != content or entry.parent != parent:",
        after="if entry is None or entry.parent != parent:",
    ),
    _proof(
        "the parent not compared on a hit",
        before="if entry is None or entry.content != content or entry.parent != parent:",
        after="if entry is None or entry.content != content:",
    ),
    _proof(
        "a collision taken for the same contents",
        before="return entry.content == content and entry.parent == parent",
        after="return True",
    ),
    _proof(
        "a preimage that never goes",
        before="            if entry.pins:\n                return\n",
        after="            return\n",
    ),
    _index(
        "the last to come takes over a digest",
        before="if shards[digest[0]].setdefault(digest, block) == block\n",
        after="if shards[digest[0]].setdefault(digest, block)\n",
    ),
    _index(
        "an evicted digest still found",
        before="            del shards[digest[0]][digest]",
        after="            shards[digest[0]].get(digest)",
    ),
    _index(
        "a reset that forgets nothing",
        before="                known.clear()",
        after="                known.copy()",
    ),
    _index(
        "no event of an eviction",
        before="self._log.add(BlocksRemoved(group, tuple(digests)))",
        after="self._log.add(BlocksRemoved(group, ()))",
    ),
    _index(
        "an event of every block, stored or not",
        before="        if not fresh:\n            return\n",
        after="        if not fresh:\n"
        "            self._log.add(BlocksStored(group, tuple(digests), tuple(ids)))\n"
        "            return\n",
    ),
    _index(
        "evicted from the first group",
        before="shards = self._blocks[group]\n        for",
        after="shards = self._blocks[0]\n        for",
    ),
    _admit(
        "a hit of all tokens",
        before="num_units = (len(prompt) - 1) // unit",
        after="num_units = len(prompt) // unit",
    ),
    _admit(
        "a partial hit of all tokens",
        before="min(start + unit, len(prompt) - 1)",
        after="min(start + unit, len(prompt))",
    ),
    _admit(
        "the watermark forgotten",
        before="return core.watermark if core.holdings else 0",
        after="return 0",
        likely=("blocks/watermark",),
    ),
    _admit(
        "what waits for a step counted by can_admit",
        before="max(spare, spare_blocks(core)) <= core.pool.num_free",
        after="max(spare, spare_blocks(core)) + core.pool.num_used < core.pool.num_blocks",
        kind="steps",
    ),
    _admit(
        "a hit that is free not counted by can_admit",
        before="revived = core.pool.num_free_among(shared)",
        after="revived = 0",
    ),
    _admit(
        "a partial hit without its copy",
        before="if source != destination:",
        after="if source == destination:",
    ),
    _commit(
        "drafts committed",
        before="room = int(rows.num_tokens[row] - rows.num_drafts[row]) - before",
        after="room = int(rows.num_tokens[row]) - before",
    ),
    _commit(
        "a half-full block registered",
        before="first, last = start // hasher.unit, end // hasher.unit",
        after="first, last = start // hasher.unit, len(holding.digests)",
    ),
    _commit(
        "a block of a large group registered before it is full",
        before="stop = max(first // ratio, holding.released[number]), last // ratio",
        after="stop = max(first // ratio, holding.released[number]), -(-last // ratio)",
        kind="windows",
    ),
    _commit(
        "the tail of a prompt forgotten",
        before="rest = prompt.token_ids[num_tokens // unit * unit :]",
        after="rest = prompt.token_ids[num_tokens:]",
    ),
    _commit(
        "a batch's tokens one place off",
        before="core.rows.tail[rows, offsets] = tokens",
        after="core.rows.tail[rows, (offsets + 1) % unit] = tokens",
    ),
    _grow(
        "a shared block written to",
        before="copies = core.pool.num_references(last) - gone > 1",
        after="copies = core.pool.num_references(last) - gone > 2",
    ),
    _grow(
        "copied for the last writer too",
        before="gone = leaving.get(last, 0)",
        after="gone = 0",
    ),
    _grow(
        "a copy that keeps its reference to the original",
        before="    core.pool.release([shared])",
        after="    core.pool.num_references(shared)",
    ),
    _grow(
        "no order for a copy",
        before="    core.copies.on_device(shared, copy)",
        after="    core.copies.on_device(copy, copy)",
    ),
    _grow(
        "a batch that overlooks what its last row shares",
        before="if reads_all and not np.count_nonzero(offsets):",
        after="if reads_all and not np.count_nonzero(offsets[:-1]):",
    ),
    _grow(
        "a batch that grows behind drafts",
        before="    if np.count_nonzero(drafts):",
        after="    if np.count_nonzero(drafts) > 1:",
    ),
    _grow(
        "a batch whose new blocks are one slot longer",
        before="limit[rows] = (columns + 1) * core.groups[0].block_size",
        after="limit[rows] = (columns + 1) * core.groups[0].block_size + 1",
    ),
    _grow(
        "a batch that tells of a column too far",
        before="columns.astype(np.int32), fresh)",
        after="(columns + 1).astype(np.int32), fresh)",
    ),
    _grow(
        "rejected drafts keep their blocks",
        before="kept = group.num_blocks(num_tokens)",
        after="kept = max(group.num_blocks(num_tokens), len(table))",
    ),
    _grow(
        "a window that follows the drafts",
        before="_release_unread(core, holding, now, changes)",
        after="_release_unread(core, holding, then - 1, changes)",
        kind="windows",
    ),
    _grow(
        "blocks before the window kept",
        before="        if after > before:",
        after="        if after > before + 1:",
        kind="windows",
    ),
    _group(
        "a window one key short",
        before="return max(0, position - self.size + 1)",
        after="return max(0, position - self.size + 2)",
    ),
    _group(
        "a window freed one block early",
        before="return self.first_read(position) // self.block_size",
        after="return -(-self.first_read(position) // self.block_size)",
    ),
    _group(
        "a window's blocks go late in a batch",
        before="return end + self.size - 1",
        after="return end + self.size",
    ),
    _group(
        "a chunk that starts one token late",
        before="return position // self.size * self.size\n",
        after="return (position + 1) // self.size * self.size\n",
    ),
    _group(
        "a hit after one look at each group",
        before="        if length == before:\n            break",
        after="        break",
    ),
    _group(
        "a hit of one group alone",
        before="    for number, group in enumerate(groups):\n            length",
        after="    for number, group in enumerate(groups[:1]):\n            length",
    ),
    _group(
        "a hit that is no multiple of the block sizes",
        before="step = math.lcm(*(group.block_size for group in groups))",
        after="step = groups[0].block_size",
    ),
    _share(
        "a fork that shares one reference for all children",
        before="core.pool.share(parent.held(), times=len(children))",
        after="core.pool.share(parent.held(), times=1)",
    ),
    _share(
        "a parent that writes on in place",
        before="    rows.limit[row] = limit_of(core, parent, tokens)\n",
        after="",
    ),
    _share(
        "a child with its parent's table",
        before="tables=[table[:] for table in parent.tables]",
        after="tables=list(parent.tables)",
    ),
    _share(
        "reset with blocks in use",
        before="if core.holdings or swapped or core.pool.num_steps:",
        after="if swapped or core.pool.num_steps:",
        kind="index",
    ),
    _copy(
        "a copy of a block that is not filled yet",
        before="first = self._source.get(src, src)",
        after="first = src",
    ),
    _copy(
        "source and destination exchanged",
        before="return Copies(columns[:, 0].copy(), columns[:, 1].copy())",
        after="return Copies(columns[:, 1].copy(), columns[:, 0].copy())",
    ),
    _swap(
        "a block of the host reused before it is read",
        before="    host.leaving.append(held)",
        after="    host.pool.release(held)",
    ),
    _swap(
        "a return without its copies",
        before="        core.copies.swap_in(pairs)",
        after="        core.copies.swap_in(pairs[:-1])",
    ),
    _swap(
        "a return that trusts digests it never compared",
        before="        known = holding.num_entered\n",
        after="        known = known\n",
        kind="collisions",
    ),
    _core(
        "an append that never slows down",
        before="        limit = min(limit, len(table) * group.block_size)",
        after="        limit = min(limit, len(table) * group.block_size + 1)",
    ),
    _core(
        "a shared tail forgotten by the batch",
        before="core.pool.num_references(table[-1]) > 1:",
        after="core.pool.num_references(table[-1]) > 3:",
    ),
    _manager(
        "a batch that counts before it has room",
        before="        changes = NO_CHANGES\n",
        after="        changes = NO_CHANGES\n        numbers.num_tokens[rows] = before + 1\n",
    ),
    _manager(
        "accepted drafts counted as rejected",
        before="kept = int(numbers.num_tokens[holding.row]) - pending + num_drafts",
        after="kept = int(numbers.num_tokens[holding.row]) - max(pending, num_drafts)",
    ),
    _manager(
        "as many blocks as the richest rank has",
        before="return cls(min(counts), block_size, **options)",
        after="return cls(max(counts), block_size, **options)",
        likely=("ranks/fewest_blocks",),
    ),
)
"""All of them."""
