"""Strings, patterns and pictures."""

from __future__ import annotations

import builtins
import io
import re
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.oracle.cases import one, run

from tierup.errors import InputError, UnsupportedError
from tierup.reference.pattern import compile_pattern


def words(*items: str) -> np.ndarray:
    return np.array(items, object)


def test_concat_and_normalize() -> None:
    assert one("onnx.StringConcat", words("a", "é"), words("!")).tolist() == ["a!", "é!"]
    assert one("onnx.StringConcat", np.empty((0, 2), object), words("!")).shape == (0, 2)
    days = words("Monday", "tuesday", "MONDAY")
    assert one("onnx.StringNormalizer", days, stopwords=["monday"]).tolist() == ["tuesday"]
    assert one(
        "onnx.StringNormalizer", days, case_change_action="UPPER", is_case_sensitive=1, stopwords=["Monday"]
    ).tolist() == ["TUESDAY", "MONDAY"]
    assert one("onnx.StringNormalizer", days[None], stopwords=["monday", "tuesday"]).tolist() == [[""]]
    assert one("onnx.StringNormalizer", days[:0], case_change_action="LOWER").tolist() == [""]


def test_split() -> None:
    pieces, counts = run("onnx.StringSplit", words("a,b", "", "x,,y"), outputs=2, delimiter=",")
    assert pieces.tolist() == [["a", "b", ""], ["", "", ""], ["x", "", "y"]]
    assert counts.tolist() == [2, 1, 3]
    pieces, counts = run("onnx.StringSplit", words("  a  b c"), outputs=2, maxsplit=1)
    assert (pieces.tolist(), counts.tolist()) == ([["a", "b c"]], [2])
    pieces, _ = run("onnx.StringSplit", np.empty((0,), object), outputs=2)
    assert pieces.shape == (0, 0)


POOL = {"pool_int64s": [2, 3, 5, 4, 5, 6, 7, 8, 6, 7], "ngram_counts": [0, 4], "ngram_indexes": [0, 1, 2, 3, 4, 5, 6]}


@pytest.mark.parametrize(("least", "most", "skips", "expected"), [
    (1, 1, 5, [0, 3, 1, 0, 0, 0, 0]), (2, 2, 0, [0, 0, 0, 0, 1, 1, 1]), (2, 2, 5, [0, 0, 0, 0, 1, 3, 1]),
    (1, 2, 5, [0, 3, 1, 0, 1, 3, 1]),
])  # fmt: skip
def test_tf_idf(least: int, most: int, skips: int, expected: list[int]) -> None:
    attrs = POOL | {"min_gram_length": least, "max_gram_length": most, "max_skip_count": skips, "mode": "TF"}
    x = np.array([1, 1, 3, 3, 3, 7, 8, 6, 7, 5, 6, 8], np.int32)
    assert one("onnx.TfIdfVectorizer", x, **attrs).tolist() == expected
    weighted = one("onnx.TfIdfVectorizer", np.stack([x, x]), **(attrs | {"mode": "TFIDF", "weights": [2.0] * 7}))
    assert weighted.tolist() == [[2 * count for count in expected]] * 2
    once = one("onnx.TfIdfVectorizer", x, **(attrs | {"mode": "IDF"}))
    assert once.tolist() == [float(count > 0) for count in expected]


PATTERNS = [
    r"www[\w.-]+\bcom\b", r"(\W|^)[\w.\-]{0,25}@(yahoo|gmail)\.com(\W|$)", r"a*b?c+", r"(ab|a)(c|bcd)(d*)", r"[^a-c]*",
    r"(?i)AbC[x-z]", r"(a{2,3}){2}", r"(?:a|b)*?abb", r"\d+\.\d{2}", r"x?", r"", r".*\n?", r"(?s)a.b", r"\bfoo\B.*",
]  # fmt: skip
TEXTS = [
    "www.google.com", "account@gmail.com", "account@hotmail.com", "ac", "aabccc", "abcd", "xyz", "abCZ", "ABCy",
    "aaaaa", "aaaa", "babababb", "12.34", "x", "", "a\nb", "foobar", "foo", "\n",
]  # fmt: skip


@pytest.mark.parametrize("pattern", PATTERNS)
def test_patterns_match_as_python_does(pattern: str) -> None:
    expected = [re.fullmatch(pattern, text, re.ASCII) is not None for text in TEXTS]
    assert one("onnx.RegexFullMatch", words(*TEXTS), pattern=pattern).tolist() == expected


@settings(max_examples=200, deadline=None)
@given(st.recursive(st.sampled_from(["a", "b", ".", "[ab]", "[^a]"]),
                    lambda inner: st.one_of(st.tuples(inner, inner).map("".join),
                                            st.tuples(inner, inner).map("(?:{0[0]}|{0[1]})".format),
                                            st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,2}"])).map(
                                                "(?:{0[0]}){0[1]}".format)), max_leaves=6),
       st.text("abc", max_size=6))  # fmt: skip
def test_any_pattern_matches_as_python_does(pattern: str, text: str) -> None:
    assert compile_pattern(pattern)(text) == (re.fullmatch(pattern, text) is not None)


def test_syntax_of_re2() -> None:
    assert compile_pattern(r"[[:alpha:]]+\z")("abc")
    assert not compile_pattern(r"\w")("é")  # classes are ASCII
    assert not compile_pattern("a$")("a\n")


@pytest.mark.parametrize("pattern", [r"(a)\1", "(?=a)a", "(?<!b)a", "(", "((a{1000}){1000}){1000}"])
def test_patterns_that_are_refused(pattern: str) -> None:
    with pytest.raises(InputError):
        run("onnx.RegexFullMatch", words("a"), pattern=pattern)


@pytest.mark.parametrize("pattern", ["(a+)+b", "(a|a)*b", "(a|aa)+b", "((a*)*)*b"])
def test_no_pattern_backtracks(pattern: str) -> None:
    started = time.monotonic()
    assert not compile_pattern(pattern)("a" * 2000)
    assert time.monotonic() - started < 5  # Python's own matcher would take longer than the universe has


def encoded(kind: str) -> tuple[np.ndarray, np.ndarray]:
    image = pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(0).integers(0, 256, size=(5, 7, 3)).astype(np.uint8)
    buffer = io.BytesIO()
    image.fromarray(pixels).save(buffer, kind)
    return pixels, np.frombuffer(buffer.getvalue(), np.uint8)


@pytest.mark.parametrize("kind", ["PNG", "BMP", "PPM", "TIFF"])
def test_pictures(kind: str) -> None:
    pixels, data = encoded(kind)
    np.testing.assert_array_equal(one("onnx.ImageDecoder", data), pixels)
    np.testing.assert_array_equal(one("onnx.ImageDecoder", data, pixel_format="BGR"), pixels[..., ::-1])
    assert one("onnx.ImageDecoder", data, pixel_format="Grayscale").shape == (5, 7, 1)


def test_pictures_that_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    assert one("onnx.ImageDecoder", np.zeros(9, np.uint8)).shape == (0, 0, 3)
    _, data = encoded("PNG")
    huge = data.copy()
    huge[16:24] = [0, 1, 0, 0, 0, 1, 0, 0]  # says 65,536 × 65,536
    assert one("onnx.ImageDecoder", huge).size == 0
    found = builtins.__import__

    def without_pillow(name: str, *rest: Any, **more: Any) -> Any:
        if name.startswith("PIL"):
            raise ImportError(name)
        return found(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without_pillow)
    with pytest.raises(UnsupportedError, match=r"tierup\[image\]"):
        run("onnx.ImageDecoder", data)
