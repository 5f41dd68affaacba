#!/usr/bin/env python3
"""What surrounds the gRPC services: health, reflection (by a client without stubs), KV events.
usage: grpc_common.py OCTAVO [unittest arguments]"""

import queue
import resource
import socket
import struct
import threading

from harness import PAGE, PATIENCE, ServeTest, eventually, main, need, raw, stubs, tokens

grpc, health, health_grpc, descriptors, factory, reflection, alpha, alpha_grpc = need(
    "grpc", "grpc_health.v1.health_pb2", "grpc_health.v1.health_pb2_grpc", "google.protobuf.descriptor_pb2",
    "google.protobuf.message_factory", "google.protobuf.descriptor_pool", "grpc_reflection.v1alpha.reflection_pb2",
    "grpc_reflection.v1alpha.reflection_pb2_grpc")
pb, rpc = stubs("octavo")

SERVICES = ["octavo.v1.Inference", "vllm.grpc.engine.VllmEngine", "inference.GRPCInferenceService"]
PROTOCOLS = ["grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection",
             "grpc.reflection.v1alpha.ServerReflection"]


class GrpcTest(ServeTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.channel = grpc.insecure_channel(cls.server.target)
        cls.addClassCleanup(cls.channel.close)


class Health(GrpcTest):
    def test_check(self):
        stub = health_grpc.HealthStub(self.channel)
        for name in ["", *SERVICES]:
            self.assertEqual(stub.Check(health.HealthCheckRequest(service=name)).status, 1)
        with self.assertRaises(grpc.RpcError) as caught:
            stub.Check(health.HealthCheckRequest(service="bananas"))
        self.assertEqual(caught.exception.code(), grpc.StatusCode.NOT_FOUND)

    def test_watch(self):
        stub = health_grpc.HealthStub(self.channel)
        for name, status in [("", 1), ("bananas", 3), *((name, 1) for name in SERVICES)]:
            call = stub.Watch(health.HealthCheckRequest(service=name))
            self.assertEqual(next(call).status, status)
            call.cancel()


class Idle(GrpcTest):
    FLAGS = ["--keepalive-timeout", "1"]

    def test_who_has_no_call_is_let_go(self):
        """Connections without a call, or that send nothing at all, are closed and free their
        descriptors; a connection with a call stays, and a client whose connection was closed
        reconnects by itself."""
        stub = health_grpc.HealthStub(self.channel)
        self.assertEqual(stub.Check(health.HealthCheckRequest()).status, 1)
        with grpc.insecure_channel(self.server.target, [("grpc.use_local_subchannel_pool", 1)]) as busy:
            watch = health_grpc.HealthStub(busy).Watch(health.HealthCheckRequest(), timeout=PATIENCE)
            self.assertEqual(next(watch).status, 1)
            for greeting in (b"", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])):
                _, closed = raw(self.server.grpc_port, greeting)
                self.assertTrue(closed, greeting)
            self.assertTrue(watch.is_active())
            self.assertEqual(stub.Check(health.HealthCheckRequest()).status, 1)
            watch.cancel()


class Wire:
    """A client that opens calls and never ends their messages, frame by frame; it sends no more
    than the server's windows let it."""

    HEAD = {":method": "POST", ":scheme": "http", ":path": "/octavo.v1.Inference/Generate", ":authority": "x",
            "te": "trailers", "content-type": "application/grpc"}

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
        self.window, self.initial, self.read, self.ended = 65535, 65535, b"", set()
        self.socket.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + self.frame(4, 0, 0, b""))

    @staticmethod
    def frame(kind, flags, stream, data):
        return struct.pack(">I", len(data))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + data

    def take_frame(self):
        """Waits for a frame of the server. False: it has closed the connection."""
        while len(self.read) < 9 or len(self.read) < 9 + int.from_bytes(self.read[:3], "big"):
            part = self.socket.recv(65536)
            if not part:
                return False
            self.read += part
        n, kind, flags = int.from_bytes(self.read[:3], "big"), self.read[3], self.read[4]
        stream, data = int.from_bytes(self.read[5:9], "big"), self.read[9:9 + n]
        self.read = self.read[9 + n:]
        if kind == 4 and not flags & 1: # SETTINGS
            self.initial = dict(struct.iter_unpack(">HI", data)).get(4, self.initial)
            self.socket.sendall(self.frame(4, 1, 0, b""))
        elif kind == 6 and not flags & 1: # PING
            self.socket.sendall(self.frame(6, 1, 0, data))
        elif kind == 8 and stream == 0: # WINDOW_UPDATE
            self.window += int.from_bytes(data, "big")
        elif kind in (1, 3): # HEADERS, of which the last end the call, and RST_STREAM
            self.ended.add(stream)
        return True

    def begin_message(self, stream, n):
        """Opens a call and sends its message but for the last byte, once there is a window for it.
        False: a call was ended, or the connection closed."""
        while self.window < n + 5 or self.initial < n + 5:
            if not self.take_frame() or self.ended:
                return False
        head = b"".join(b"\0%c%s%c%s" % (len(k), k.encode(), len(v), v.encode()) for k, v in self.HEAD.items())
        data = b"\0" + struct.pack(">I", n) + b"\x0a" + b"x" * (n - 2)
        parts = [data[i:i + 16384] for i in range(0, len(data), 16384)]
        self.socket.sendall(self.frame(1, 4, stream, head) + b"".join(self.frame(0, 0, stream, p) for p in parts))
        self.window -= len(data)
        return True


class Memory(GrpcTest):
    """gRPC has taken a message before this program learns of it: the memory of all is bounded."""

    FLAGS = ["--max-body", "65536", "--max-requests", "16", "--keepalive-timeout", "86400"]
    LIMITS = {resource.RLIMIT_NOFILE: 200}
    CALLS = 1000 # of 60 kB each; all of gRPC may have about 6 MB

    def test_messages_that_do_not_end(self):
        stub, request = rpc.InferenceStub(self.channel), pb.TokenizeRequest(prompt="x" * 30000)
        self.assertTrue(stub.Tokenize(request, timeout=PATIENCE).token_ids)
        wire = Wire(self.server.grpc_port)
        with wire.socket:
            held = 0
            while held < self.CALLS and wire.begin_message(2 * held + 1, 60000):
                held += 1
        self.assertGreater(held, 30)
        self.assertLess(held, self.CALLS, "no call was ended, and nothing held the client up")
        eventually("others are served again", self.is_served)

    def is_served(self):
        try:
            return rpc.InferenceStub(self.channel).Tokenize(pb.TokenizeRequest(prompt="x"), timeout=PATIENCE).token_ids
        except grpc.RpcError as e:
            self.assertIn(e.code(), (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE))
            return False


class Reflection(GrpcTest):
    """Each version of the protocol; their messages are the same on the wire."""

    VERSIONS = ("v1", "v1alpha")

    def ask(self, version, *questions):
        call = self.channel.stream_stream(
            f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
            alpha.ServerReflectionRequest.SerializeToString, alpha.ServerReflectionResponse.FromString)
        return list(call(iter([alpha.ServerReflectionRequest(**q) for q in questions]), timeout=PATIENCE))

    def test_services(self):
        for version in self.VERSIONS:
            (r,) = self.ask(version, {"list_services": "*"})
            self.assertEqual(sorted(s.name for s in r.list_services_response.service), sorted(SERVICES + PROTOCOLS))

    def files(self, version, symbol):
        """All files that a symbol needs, asked for by name where they were not sent along."""
        found, wanted = {}, [{"file_containing_symbol": symbol}]
        while wanted:
            (r,) = self.ask(version, wanted.pop())
            self.assertTrue(r.file_descriptor_response.file_descriptor_proto, r)
            for data in r.file_descriptor_response.file_descriptor_proto:
                f = descriptors.FileDescriptorProto.FromString(data)
                found[f.name] = f
            for f in list(found.values()):
                wanted += [{"file_by_filename": name} for name in f.dependency if name not in found]
        return found

    def pool(self, version, symbol):
        pool, files = reflection.DescriptorPool(), self.files(version, symbol)

        def add(name):
            if name in files:
                f = files.pop(name)
                for dependency in f.dependency:
                    add(dependency)
                pool.Add(f) if hasattr(pool, "Add") else pool.AddSerializedFile(f.SerializeToString())

        for name in list(files):
            add(name)
        return pool

    def test_generate_by_reflection_alone(self):
        for version in self.VERSIONS:
            pool = self.pool(version, "octavo.v1.Inference")
            method = pool.FindServiceByName("octavo.v1.Inference").FindMethodByName("Generate")
            request = factory.GetMessageClass(method.input_type)()
            request.prompt = "O Romeo"
            request.sampling.max_tokens = 5
            request.sampling.ignore_eos = True
            call = self.channel.unary_stream("/octavo.v1.Inference/Generate", lambda m: m.SerializeToString(),
                                             factory.GetMessageClass(method.output_type).FromString)
            messages = list(call(request, timeout=PATIENCE))
            self.assertEqual(sum(len(m.token_ids) for m in messages), 5)
            self.assertEqual(messages[-1].usage.completion_tokens, 5)

    def test_every_service_is_described(self):
        for version in self.VERSIONS:
            for name in SERVICES + PROTOCOLS:
                service = self.pool(version, name).FindServiceByName(name)
                self.assertTrue(service.methods)

    def test_symbols(self):
        for version in self.VERSIONS:
            for symbol in ("octavo.v1.GenerateRequest", "octavo.v1.Inference.Generate", "inference.ModelInferRequest",
                           "smg.grpc.common.KvEventBatch", "inference.ModelInferRequest.InferInputTensor",
                           "grpc.health.v1.HealthCheckResponse.ServingStatus"):
                self.assertTrue(self.files(version, symbol), symbol)

    def test_too_long(self):
        for version in self.VERSIONS:
            with self.assertRaises(grpc.RpcError) as caught:
                self.ask(version, {"file_containing_symbol": "x" * 100000})
            self.assertEqual(caught.exception.code(), grpc.StatusCode.INVALID_ARGUMENT)

    def test_what_is_not_there(self):
        questions = [{"file_containing_symbol": "bananas"}, {"file_by_filename": "bananas.proto"},
                     {"file_containing_symbol": "octavo.v1"}, {"file_containing_symbol": ""},
                     {"file_containing_symbol": "octavo.v1.Inference.Bananas"}, {"file_containing_symbol": "." * 200},
                     {"file_containing_extension": {"containing_type": "bananas", "extension_number": 1}},
                     {"all_extension_numbers_of_type": "bananas"}]
        for version in self.VERSIONS:
            answers = self.ask(version, *questions, {"list_services": ""})
            self.assertEqual(len(answers), len(questions) + 1) # one stream goes on after errors
            for question, r in zip(questions, answers):
                self.assertIn(r.error_response.error_code, (3, 5, 12), question)
                self.assertEqual(r.original_request, alpha.ServerReflectionRequest(**question))
            self.assertTrue(answers[-1].list_services_response.service)


class Events(GrpcTest):
    """Blocks that enter and leave the prefix cache; the pool here has 60 pages for each layer."""

    MODEL = ["--model", "models/demo", "--kv-memory", "2000K"]

    class Reader:
        """Reads a subscription in the background."""

        def __init__(self, channel, start=1):
            self.call = rpc.InferenceStub(channel).SubscribeKvEvents(
                pb.SubscribeKvEventsRequest(start_sequence_number=start))
            self.batches = queue.Queue()
            self.error = None
            threading.Thread(target=self.read, daemon=True).start()

        def read(self):
            try:
                for batch in self.call:
                    self.batches.put(batch)
            except grpc.RpcError as e:
                self.error = e

        def until(self, what, found):
            """All batches up to the first whose event satisfies found(event)."""
            seen = []
            while True:
                try:
                    batch = self.batches.get(timeout=PATIENCE)
                except queue.Empty:
                    raise AssertionError(f"no event: {what}; {self.error}") from None
                seen.append(batch)
                if any(found(e) for e in batch.events):
                    return seen

    def generate(self, ids, **fields):
        sampling = pb.SamplingParams(max_tokens=1, ignore_eos=True)
        return list(rpc.InferenceStub(self.channel).Generate(
            pb.GenerateRequest(token_ids=pb.TokenIds(ids=ids), sampling=sampling, **fields), timeout=PATIENCE))[-1]

    @staticmethod
    def stored(batches):
        """(hash, parent, tokens) in order."""
        out = []
        for batch in batches:
            for event in batch.events:
                parent = event.stored.parent_block_hash
                for block in event.stored.blocks:
                    out.append((block.block_hash, parent, list(block.token_ids)))
                    parent = block.block_hash
        return out

    def test_life_of_blocks(self):
        reader = self.Reader(self.channel)
        ids = tokens(5 * PAGE + 3, 1)
        last = ids[4 * PAGE:5 * PAGE]
        self.generate(ids)
        batches = reader.until("stored", lambda e: any(list(b.token_ids) == last for b in e.stored.blocks))
        blocks = [b for b in self.stored(batches) if b[2] in [ids[i:i + PAGE] for i in range(0, 5 * PAGE, PAGE)]]
        self.assertEqual([b[2] for b in blocks], [ids[i:i + PAGE] for i in range(0, 5 * PAGE, PAGE)])
        self.assertEqual([b[1] for b in blocks], [0, *(b[0] for b in blocks[:-1])])
        hashes = {b[0] for b in blocks}
        self.assertEqual(len(hashes), 5)
        numbers = [b.sequence_number for b in batches]
        self.assertEqual(numbers, list(range(numbers[0], numbers[0] + len(numbers))))
        self.assertGreater(batches[0].timestamp, 1.7e9)

        # Another reader may begin at the same number, and sees the same events.
        again = self.Reader(self.channel, numbers[0])
        same = again.until("stored", lambda e: any(list(b.token_ids) == last for b in e.stored.blocks))
        self.assertEqual(same[0].sequence_number, numbers[0])
        self.assertEqual([b.SerializeToString() for b in same], [b.SerializeToString() for b in batches])
        self.assertEqual(self.generate(ids).usage.cached_tokens, 5 * PAGE)

        # Other prompts take the room.
        gone = set()
        for seed in range(2, 5):
            self.generate(tokens(50 * PAGE, seed))
        while not hashes <= gone:
            for batch in reader.until("removed", lambda e: e.WhichOneof("event") == "removed"):
                gone |= {h for e in batch.events for h in e.removed.block_hashes}
        self.assertEqual(self.generate(ids).usage.cached_tokens, 0)

        rpc.InferenceStub(self.channel).FlushCache(pb.FlushCacheRequest())
        reader.until("cleared", lambda e: e.WhichOneof("event") == "cleared")
        for r in (reader, again):
            r.call.cancel()

    def test_from_now_on(self):
        """Without a number, earlier events are not sent."""
        self.generate(tokens(64, 60))
        reader, seed = self.Reader(self.channel, 0), 61
        while reader.batches.empty(): # there is no other way to see that it has begun
            self.assertIsNone(reader.error)
            self.generate(tokens(64, seed))
            seed += 1
        told = [ids for _, _, ids in self.stored([reader.batches.get()])]
        self.assertNotIn(tokens(64, 60)[:PAGE], told)
        reader.call.cancel()

    def test_from_the_future(self):
        """A number that is not reached yet is waited for or refused, but never answered by another
        one."""
        reader = self.Reader(self.channel, 10 ** 9)
        self.generate(tokens(64, 90))
        self.generate(tokens(64, 91))
        self.assertTrue(reader.batches.empty())
        if reader.error:
            self.assertEqual(reader.error.code(), grpc.StatusCode.OUT_OF_RANGE)
        reader.call.cancel()

    def test_retention_sends_no_removal(self):
        """A drop releases a reference; the blocks stay for other requests."""
        rpc.InferenceStub(self.channel).FlushCache(pb.FlushCacheRequest())
        reader, ids, mark = self.Reader(self.channel), tokens(20 * PAGE, 50), tokens(PAGE, 49)
        self.generate(mark + [1])
        reader.until("begun", lambda e: any(list(b.token_ids) == mark for b in e.stored.blocks))
        self.generate(ids)
        report = self.generate(ids, retention_json='{"method":"chunkkv","ratio":0.2}')
        self.assertTrue(report.retention_json)
        self.assertGreaterEqual(self.generate(ids).usage.cached_tokens, 19 * PAGE)
        end = tokens(PAGE, 51)
        self.generate(end + [1])
        batches = reader.until("the end", lambda e: any(list(b.token_ids) == end for b in e.stored.blocks))
        self.assertEqual([e for b in batches for e in b.events if e.WhichOneof("event") != "stored"], [])
        reader.call.cancel()

    def test_many_come_and_go(self):
        """Dropped subscriptions leave nothing behind (a leak would show under ASan)."""
        for _ in range(30):
            self.Reader(self.channel).call.cancel()
        eventually("served", lambda: self.generate(tokens(64, 92)))


if __name__ == "__main__":
    main()
