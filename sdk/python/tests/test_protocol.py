"""Tests without a server: HTTP, addresses, options, errors, and what must not be shown."""

from __future__ import annotations

import os
import pathlib
import pickle
import random
import shutil
import tempfile
import unittest
from typing import Any
from unittest import mock

import leasehold
import leasehold.aio
from leasehold import _wire
from leasehold._address import resolve
from leasehold._http import Reader, request
from leasehold._wire import Answer, Call

from . import pure
from .bench import vectors

ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"


class Http(unittest.TestCase):
    def read(self, data: bytes, *, end: bool = False) -> tuple[Answer | None, Reader]:
        reader = Reader()
        answer = reader.feed(data)
        return (reader.end() if end and answer is None else answer), reader

    def test_answer_is_read_in_any_pieces(self) -> None:
        chunked = b"HTTP/1.1 409 x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n4;x=y\r\ndefg\r\n0\r\n\r\n"
        late = b"HTTP/1.1 100 Continue\r\n\r\n" + ANSWER
        for whole, status, body in ((ANSWER, 200, b"{}"), (chunked, 409, b"abcdefg"), (late, 200, b"{}")):
            for _ in range(50):
                reader, answer, rest = Reader(), None, whole
                while rest:
                    self.assertIsNone(answer)
                    cut = random.randint(1, len(rest))
                    answer, rest = reader.feed(rest[:cut]), rest[cut:]
                assert answer is not None
                self.assertEqual((answer.status, answer.body, reader.reusable), (status, body, True))

    def test_connection_that_may_not_be_kept_is_closed(self) -> None:
        closing = ANSWER.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
        for data in (closing, ANSWER.replace(b"1.1", b"1.0"), ANSWER + b"more"):
            answer, reader = self.read(data)
            self.assertIsNotNone(answer)
            self.assertFalse(reader.reusable)

    def test_body_without_length_ends_with_the_connection(self) -> None:
        answer, reader = self.read(b"HTTP/1.1 502 Bad Gateway\r\n\r\n<html>", end=True)
        assert answer is not None
        self.assertEqual((answer.status, answer.body, reader.reusable), (502, b"<html>", False))

    def test_cut_off_answer_is_no_answer(self) -> None:
        for cut in range(len(ANSWER)):
            self.assertIsNone(self.read(ANSWER[:cut], end=True)[0])

    def test_what_is_no_http_is_an_error(self) -> None:
        length = b"HTTP/1.1 200 OK\r\ncontent-length: "
        for bad in (
            b"\x15\x03\x01\r\n\r\n",
            b"SSH-2.0\r\n\r\n",
            length + b"-1\r\n\r\n",
            length + b"99999999999999\r\n\r\n",
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nxyz\r\n",
            b"x" * 100_000,
        ):
            with self.assertRaises(leasehold.Unavailable):
                self.read(bad)

    def test_random_bytes_never_count_as_an_answer(self) -> None:
        for seed in range(3000):
            random_ = random.Random(seed)
            data = bytearray(ANSWER)
            for _ in range(random_.randint(1, 6)):
                data[random_.randrange(len(data))] = random_.randrange(256)
            try:
                answer, _ = self.read(bytes(data), end=True)
            except leasehold.Error:
                continue
            if answer is not None:
                self.assertIsInstance(answer.status, int)
                try:
                    _wire.ok("Acquired", answer)
                except leasehold.Error:
                    continue
                self.fail("granted by noise")

    def test_request_holds_what_the_server_needs(self) -> None:
        address = resolve("http://h:1/base/", token="secret")
        sent = request(Call("POST", "/v1/x", b"{}", 1), address.base, address.head)
        self.assertTrue(sent.startswith(b"POST /base/v1/x HTTP/1.1\r\nHost: h:1\r\n"))
        self.assertIn(b"\r\nAuthorization: Bearer secret\r\n", sent)
        self.assertTrue(sent.endswith(b"Content-Length: 2\r\n\r\n{}"))


class Addresses(unittest.TestCase):
    def setUp(self) -> None:
        patch = mock.patch.dict(os.environ)
        patch.start()
        self.addCleanup(patch.stop)
        for name in list(os.environ):
            if name.startswith("LEASEHOLD_"):
                del os.environ[name]
        self.dir = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.dir)
        self.file = self.dir / "token"
        self.file.write_text("from-file\n")

    def test_url_is_read(self) -> None:
        for url, host, port, base in (
            ("http://h", "h", 80, ""),
            ("https://h/base/", "h", 443, "/base"),
            ("http://[::1]:7420", "::1", 7420, ""),
            (" http://h:7420/ ", "h", 7420, ""),
        ):
            address = resolve(url)
            self.assertEqual((address.host, address.port, address.base), (host, port, base))
        self.assertIn("Host: [::1]:7420\r\n", resolve("http://[::1]:7420").head)

    def test_bad_url_is_refused_without_its_secret(self) -> None:
        for url in (
            "",
            "h:7420",
            "redis://h",
            "http://",
            "http://u:hush@h",
            "http://h?hush=1",
            "http://h:99999",
            "http://h/hu sh",
            "http://h/hush\r\nx",
            "http://h?cert=hush",
            "http://[h]",
        ):
            with self.subTest(url):
                with self.assertRaises(leasehold.InvalidArgument) as caught:
                    resolve(url)
                self.assertNotIn("hush", str(caught.exception))

    def test_url_and_token_come_from_the_environment(self) -> None:
        with self.assertRaisesRegex(leasehold.InvalidArgument, "LEASEHOLD_URL"):
            leasehold.connect()
        os.environ["LEASEHOLD_URL"] = "http://h:7420"
        self.assertNotIn("Bearer", resolve(None).head)
        os.environ["LEASEHOLD_TOKEN_FILE"] = str(self.file)
        self.assertIn("Bearer from-file\r\n", resolve(None).head)
        os.environ["LEASEHOLD_TOKEN"] = "from-variable"
        self.assertIn("Bearer from-variable\r\n", resolve(None).head)
        self.assertIn("Bearer from-file\r\n", resolve(f"http://h?token_file={self.file}").head)
        self.assertIn("Bearer given\r\n", resolve(None, token="given").head)
        self.assertIn("Bearer from-file\r\n", resolve(None, token_file=self.file).head)

    def test_bad_token_is_refused_without_being_shown(self) -> None:
        for token in ("", "hush hush", "hush\r\nX: y", "hüsh"):
            with self.assertRaises(leasehold.InvalidArgument) as caught:
                resolve("http://h", token=token)
            self.assertNotIn("hush", str(caught.exception))
            self.file.write_text(token)
            with self.assertRaises(leasehold.InvalidArgument):
                resolve("http://h", token_file=self.file)
        with self.assertRaisesRegex(leasehold.InvalidArgument, "token_file"):
            resolve("http://h", token_file=self.dir / "missing")
        with self.assertRaisesRegex(leasehold.InvalidArgument, "not both"):
            resolve("http://h", token="a", token_file=self.file)

    def test_certificates_are_checked_at_once(self) -> None:
        bad: list[dict[str, Any]] = [{"ca": self.file}, {"cert": self.file, "key": self.file}, {"cert": self.file}]
        for options in bad:
            with self.assertRaises(leasehold.InvalidArgument):
                resolve("https://h", **options)
        with self.assertRaisesRegex(leasehold.InvalidArgument, "https"):
            resolve("http://h", ca=self.file)


class Arguments(unittest.TestCase):
    def setUp(self) -> None:
        self.locks = leasehold.connect("http://127.0.0.1:1", token="hush-token")
        self.addCleanup(self.locks.close)

    def test_bad_option_is_named(self) -> None:
        bad: list[tuple[str, dict[str, Any]]] = [
            ("ttl", {"ttl": 0}),
            ("ttl", {"ttl": 0.049}),
            ("ttl", {"ttl": 86_401}),
            ("ttl", {"ttl": float("nan")}),
            ("ttl", {"ttl": "30"}),
            ("ttl", {"ttl": True}),
            ("owner", {"owner": ""}),
            ("owner", {"owner": "ü" * 129}),
            ("owner", {"owner": "\ud800"}),
            ("metadata", {"metadata": "x" * 4097}),
            ("max_hold", {"max_hold": 0.01}),
            ("wait", {"wait": -1}),
        ]
        for option, options in bad:
            for client in (self.locks, leasehold.aio.connect("http://127.0.0.1:1")):
                with self.subTest(option), self.assertRaisesRegex(leasehold.InvalidArgument, f"`{option}`"):
                    client.mutex("x", **options)
        for option in ("wait_per_call", "request_timeout", "release_timeout"):
            with self.assertRaisesRegex(leasehold.InvalidArgument, f"`{option}`"):
                leasehold.connect("http://h", **{option: 0})  # type: ignore[arg-type]
        with self.assertRaisesRegex(leasehold.InvalidArgument, "`wait_per_call`"):
            leasehold.connect("http://h", wait_per_call=51)
        for limit in (0, -1, 1.5, True, 1 << 32):
            with self.assertRaisesRegex(leasehold.InvalidArgument, "`limit`"):
                self.locks.semaphore("x", limit)  # type: ignore[arg-type]
        for name in ("", "x" * 513, "\ud800", 7):
            with self.assertRaisesRegex(leasehold.InvalidArgument, "`name`"):
                self.locks.mutex(name)  # type: ignore[arg-type]
        with self.assertRaisesRegex(leasehold.InvalidArgument, "`page_size`"):
            next(self.locks.list(page_size=0))
        with self.assertRaisesRegex(leasehold.InvalidArgument, "`fence`"):
            self.locks.revoke("x", fence=-1)

    def test_decorator_refuses_the_wrong_kind_of_function(self) -> None:
        async def coroutine() -> None: ...

        with self.assertRaisesRegex(leasehold.InvalidArgument, "aio"):
            self.locks.locked("x")(coroutine)
        with self.assertRaisesRegex(leasehold.InvalidArgument, "async def"):
            leasehold.aio.connect("http://h").locked("x")(print)  # type: ignore[arg-type]

    def test_no_secret_is_shown(self) -> None:
        mutex = self.locks.mutex("x", metadata="hush-metadata")
        shown = [repr(one) for one in (self.locks, mutex, self.locks._core.address, mutex._options)]
        with self.assertRaises(leasehold.Unavailable) as caught:
            mutex.try_lock()
        error = caught.exception
        shown += [str(error), repr(error), repr(vars(error)), repr(error.__cause__)]
        self.assertFalse([one for one in shown if "hush" in one])

    def test_client_and_lock_do_not_leave_their_process(self) -> None:
        for client in (self.locks, leasehold.aio.connect("http://h")):
            with self.assertRaisesRegex(TypeError, "connect"):
                pickle.dumps(client)

    def test_errors_are_what_python_programs_expect(self) -> None:
        self.assertTrue(issubclass(leasehold.Timeout, TimeoutError))
        self.assertTrue(issubclass(leasehold.InvalidArgument, ValueError))
        lost = pickle.loads(pickle.dumps(leasehold.Lost("revoked")))
        self.assertEqual((lost.reason, lost.kind), ("revoked", "lost"))


class Vectors(unittest.TestCase):
    def test_pure_cases_pass(self) -> None:
        loaded: Any = vectors()
        for name, check in pure.cases(loaded["pure"]):
            with self.subTest(name):
                check()

    def test_runner_refuses_a_group_it_does_not_know(self) -> None:
        [(_, check)] = pure.cases({"about": "", "new": {}})
        with self.assertRaisesRegex(AssertionError, "does not know"):
            check()


class Tables(unittest.TestCase):
    def test_field_that_is_not_in_the_table_is_not_sent(self) -> None:
        with self.assertRaises(leasehold.Internal):
            _wire.encode("Release", {"lease_id": "x", "other": 1})
        self.assertEqual(_wire.encode("Release", {"lease_id": "x", "unanswered": None}), b'{"lease_id":"x"}')

    def test_answer_with_a_wrong_field_is_refused(self) -> None:
        good = {"fencing_token": 1, "expires_in_ms": 2, "waited_ms": 3, "new": 4}
        self.assertEqual(_wire.read("Acquired", good)["expires_in_ms"], 2)
        bad: list[dict[str, Any]] = [
            {**good, "fencing_token": "1"},
            {**good, "waited_ms": None},
            {**good, "expires_in_ms": True},
            {},
        ]
        for one in bad:
            with self.assertRaises(leasehold.Internal):
                _wire.read("Acquired", one)
        for body in (b"", b"[]", b"{", b"\xff"):
            with self.assertRaises(leasehold.Internal):
                _wire.decode(Answer(200, body))
            self.assertIsNone(_wire.code(Answer(503, body)))


if __name__ == "__main__":
    unittest.main()
