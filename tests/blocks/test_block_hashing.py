"""Prompts and their chains: what counts, what does not, and what is refused."""

import hashlib

import numpy as np
import pytest
from block_subjects import admit, state
from hypothesis import given, settings
from hypothesis import strategies as st

from paged.blocks import Image, KVCacheManager
from paged.blocks.hashing import Hasher, Prompt
from paged.blocks.keys import CacheKeys

TOKENS = st.lists(st.integers(0, 3), min_size=1, max_size=14)


def test_by_hand():
    prompt = KVCacheManager(8, 2).prompt([1, 2, 3, 4, 5])
    assert prompt.root == b"paged.blocks: the root of a chain of digests"
    first = hashlib.sha256(prompt.root + np.array([1, 2], np.int32).tobytes()).digest()
    second = hashlib.sha256(first + np.array([3, 4], np.int32).tobytes()).digest()
    assert prompt.digests == (first, second)  # the fifth token fills no block
    assert len(prompt) == 5
    assert prompt.contents == ()


def test_keys_are_written_with_tag_and_length():
    assert CacheKeys(adapter="x").of_root().endswith(b"A\0\0\0\0\0\0\0\x01x")
    assert CacheKeys(salt="x").of_root().endswith(b"S\0\0\0\0\0\0\0\x01x")
    assert CacheKeys("ab", "c").of_root() != CacheKeys("a", "bc").of_root()
    keys = CacheKeys(images=(Image(b"i", 3, 4),))
    assert [bool(keys.of_block(start, start + 2)) for start in range(0, 10, 2)] == [
        False,
        True,
        True,
        True,
        False,
    ]


@settings(max_examples=60)
@given(TOKENS, st.lists(st.lists(st.integers(0, 3), max_size=7), max_size=3))
def test_a_prompt_that_goes_on_is_the_prompt_hashed_at_once(tokens, more):
    manager = KVCacheManager(8, 3, hash=_md5)
    prompt = manager.prompt(tokens, salt="s", images=[Image(b"i", 2, 3)])
    for part in more:
        prompt = prompt.followed_by(part)
        tokens = tokens + part
    whole = manager.prompt(tokens, salt="s", images=[Image(b"i", 2, 3)])
    assert (prompt.digests, prompt.contents) == (whole.digests, whole.contents)
    assert prompt.token_ids.tolist() == tokens


def _md5(data):
    return hashlib.md5(data, usedforsecurity=False).digest()


@settings(max_examples=100)
@given(TOKENS, TOKENS, st.sampled_from([None, "a"]), st.sampled_from([None, "a"]))
def test_equal_digests_mean_equal_beginnings(one, other, salt, adapter):
    manager = KVCacheManager(8, 3)
    left = manager.prompt(one, salt=salt)
    right = manager.prompt(other, adapter=adapter)
    same = salt is None and adapter is None
    for index, (a, b) in enumerate(zip(left.digests, right.digests, strict=False)):
        assert (a == b) == (same and one[: 3 * index + 3] == other[: 3 * index + 3])


@pytest.mark.parametrize(
    ("token_ids", "message"),
    [
        ([], "token_ids: got none, expected at least one token"),
        ([1.5], "token_ids: .*expected a sequence of integers from 0 to 2147483647"),
        ([2**31], "token_ids: .*expected a sequence of integers"),
        ([1, -1], "token_ids: got -1 at index 1, expected at least 0"),
        (7, "token_ids: .*expected a sequence of integers"),
        (np.array([1.0]), "token_ids: got shape .* of float64, expected one axis of integers"),
        (np.array([[1]]), r"token_ids: got shape \(1, 1\) of int64"),
        (np.array([2**31]), "token_ids: got ids from 2147483648 to 2147483648, expected 0 to"),
        (np.array([5, -1, 7], np.int8), "token_ids: got ids from -1 to 7, expected 0 to"),
        (np.array([5, -1, 7], ">i8"), "token_ids: got ids from -1 to 7, expected 0 to"),
        (np.array([5, 2**63], np.uint64), "token_ids: got ids from 5 to 9223372036854775808"),
        (np.array([True]), "token_ids: got shape .* of bool"),
    ],
)
def test_bad_tokens_are_refused(token_ids, message):
    with pytest.raises(ValueError, match=message):
        KVCacheManager(8, 2).prompt(token_ids)


def test_numpy_and_lists_give_the_same_and_the_array_is_the_prompts_own():
    manager = KVCacheManager(8, 2)
    array = np.array([1, 2, 3], np.int64)
    prompt = manager.prompt(array)
    array[:] = 9
    assert prompt.token_ids.tolist() == [1, 2, 3]
    assert prompt.digests == manager.prompt([1, 2, 3]).digests
    assert prompt.digests == manager.prompt(np.array([1, 2, 3], ">i4")).digests
    with pytest.raises(ValueError, match="read-only"):
        prompt.token_ids[0] = 5


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"salt": 1}, "salt: got 1, expected a string or None"),
        ({"adapter": b"x"}, "adapter: got b'x', expected a string or None"),
    ],
)
def test_bad_keys_are_refused(keys, message):
    with pytest.raises(ValueError, match=message):
        KVCacheManager(8, 2).prompt([1], **keys)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("text", 0, 1), "digest: got 'text', expected bytes"),
        ((b"i", -1, 1), "start: got -1, expected an integer of at least 0"),
        ((b"i", 0, 0), "length: got 0, expected an integer of at least 1"),
    ],
)
def test_bad_images_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        Image(*arguments)


@pytest.mark.parametrize(
    ("hash", "message"),
    [
        ("md5", "hash: got 'md5', expected 'sha256', 'xxhash' or a function"),
        (lambda data: "text", "hash: got a function that gives 'text', expected 1 to 32 bytes"),
        (lambda data: b"", "hash: got a function that gives b''"),
        (lambda data: b"x" * 33, "expected 1 to 32 bytes"),
    ],
)
def test_bad_hashes_are_refused(hash, message):
    with pytest.raises(ValueError, match=message):
        KVCacheManager(8, 2, hash=hash)


class _Shrinking:
    """Digests that lose a byte when told to."""

    size = 8

    def __call__(self, data):
        return hashlib.sha256(data).digest()[: self.size]


@pytest.mark.parametrize("late", [7, 9])
def test_a_digest_of_another_length_is_refused_and_changes_nothing(late):
    shrinking = _Shrinking()
    manager = KVCacheManager(20, 2, hash=shrinking)
    for name in "ab":
        admit(manager, name, range(3), salt=name)
    rows = [manager.row(name) for name in "ab"]
    manager.append_slots("a", 3)
    before = state(manager)
    shrinking.size = late
    for call in (
        lambda: manager.prompt([1, 2]),
        lambda: manager.commit("a", [3]),
        lambda: manager.commit_batch(rows[:1], [3]),
        lambda: manager.append_batch(rows[1:], [3]),
    ):
        with pytest.raises(ValueError, match=r"hash: got a .* that gives b.*, expected 8 bytes"):
            call()
        assert state(manager) == before
    shrinking.size = 8
    manager.commit("a", [3, 4])
    manager.append_batch(rows[1:], [3])
    manager.check_integrity()
    assert manager.admit("c", manager.prompt(range(5), salt="a")).num_cached_tokens == 4


def test_a_prompt_of_another_manager_is_refused():
    manager = KVCacheManager(8, 2)
    for other in (KVCacheManager(8, 4), KVCacheManager(8, 2, prefix_caching=False)):
        with pytest.raises(ValueError, match="prompt: got one hashed otherwise"):
            manager.admit("a", other.prompt([1, 2, 3]))
    with pytest.raises(ValueError, match="prompt: got list, expected what `prompt` made"):
        manager.admit("a", [1, 2, 3])
    assert manager.admit("a", KVCacheManager(9, 2).prompt([1, 2, 3])).row == 0


def test_without_caching_nothing_is_hashed_or_found():
    manager = KVCacheManager(8, 2, prefix_caching=False)
    for name in "ab":
        assert manager.admit(name, manager.prompt(range(5))).num_cached_tokens == 0
        manager.commit_prompt(name, 5)
        manager.append_batch([manager.row(name)], [5])
        manager.check_integrity()
    assert manager.prompt(range(5)).digests == ()


def test_xxhash_is_verified_like_any_hash_that_is_not_trusted():
    pytest.importorskip("xxhash")
    manager = KVCacheManager(20, 4, hash="xxhash")
    for name, cached in (("a", 0), ("b", 8)):
        assert manager.admit(name, manager.prompt(range(9))).num_cached_tokens == cached
        manager.commit_prompt(name, 9)
    assert len(manager._core.index.preimages) == 2
    manager.check_integrity()


def test_xxhash_is_imported_only_for_those_who_ask(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "xxhash", None)
    KVCacheManager(8, 2)
    with pytest.raises(ImportError):
        KVCacheManager(8, 2, hash="xxhash")


def test_two_tenants_never_share_a_block_whatever_the_hash():
    for hash in ("sha256", lambda data: b"same", lambda data: (data or b"0")[-1:]):
        manager = KVCacheManager(40, 2, hash=hash)
        held = {}
        for tenant in ("one", "two", "one", "two"):
            name = (tenant, len(held))
            manager.admit(name, manager.prompt(range(7), salt=tenant))
            manager.commit_prompt(name, 7)
            held[name] = set(manager.block_ids(name))
            manager.check_integrity()
        for (one, _), mine in held.items():
            for (other, _), theirs in held.items():
                assert one == other or not mine & theirs


def test_a_hasher_says_what_it_is():
    hasher = Hasher.of("sha256", 4)
    assert (hasher.is_trusted, hasher.digest_size, hasher.name) == (True, 32, "sha256")
    assert Prompt.make(hasher, [1], CacheKeys()).digests == ()
