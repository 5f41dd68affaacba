#!/usr/bin/env python3
"""Memory runs out while gRPC calls are served: each allocation of the program fails in turn, and
the call is answered whole, or refused by an error that names memory; the server goes on. gRPC's
own allocations do not fail: its gpr_malloc ends the process by design.
usage: grpc_memory.py OCTAVO [unittest arguments]; FAILING_MALLOC_SO names the library made of
tests/fake/failing_malloc.c"""

import base64
import json
import struct

from harness import PATIENCE, eventually, main, need, stubs, tokens, trailers
from memory import TEXT, FailingServer, lasting

grpc, json_format, health, health_grpc, alpha, alpha_grpc = need(
    "grpc", "google.protobuf.json_format", "grpc_health.v1.health_pb2", "grpc_health.v1.health_pb2_grpc",
    "grpc_reflection.v1alpha.reflection_pb2", "grpc_reflection.v1alpha.reflection_pb2_grpc")
octavo, octavo_rpc, vllm, vllm_rpc, kserve, kserve_rpc = stubs("octavo", "vllm_engine", "kserve")
import smg_common_pb2 as smg # pylint: disable=wrong-import-position,import-error

RETENTION = json.dumps({"method": "chunkkv", "ratio": 0.5, "window": 16, "report": "positions"})
GREEDY = {"max_tokens": 4, "ignore_eos": True}
def as_json(message):
    return lasting(json_format.MessageToDict(message))


def joined(a, b):
    """What a client has of one choice after message b: lists and text go on, other members are
    replaced."""
    out = {**a, **b}
    for k in set(a) & set(b):
        if isinstance(b[k], list) or k == "text":
            out[k] = a[k] + b[k]
        elif isinstance(b[k], dict):
            out[k] = joined(a[k], b[k])
    return out


def tensors(response):
    """KServe's response with the values of its tensors by name, in place of their bytes."""
    r = response.pop("inferResponse", {})
    outputs, raw = r.pop("outputs", []), r.pop("rawOutputContents", [])
    for o, data in zip(outputs, map(base64.b64decode, raw)):
        if o["datatype"] == "BYTES":
            r["text" if o["name"] == "text_output" else o["name"]] = data[4:].decode()
        else:
            values = list(struct.unpack(f"<{len(data) // 4}i", data))
            r[o["name"]] = values[0] if o["name"] == "index" else values
    return {**response, **r}


def whole(messages):
    """The messages of a stream, those of each choice as one: how many tokens a message has depends
    on how busy the machine is."""
    out = {}
    for m in messages:
        if "inferResponse" in m:
            m = tensors(m)
        kind = "chunk" if "chunk" in m else "complete" if "complete" in m else ""
        part = m[kind] if kind else m
        key = (kind, part.get("index", 0))
        out[key] = joined(out.get(key, {}), part)
    return sorted(out.items())


def sampling(of, **fields):
    return of(**{**GREEDY, **fields})


def infer(**more):
    r = kserve.ModelInferRequest(**more)
    for name, text in (("text_input", TEXT), ("sampling_parameters", json.dumps({**GREEDY, "n": 2}))):
        r.inputs.add(name=name, datatype="BYTES", shape=[1]).contents.bytes_contents.append(text.encode())
    r.parameters["retention"].string_param = RETENTION
    r.parameters["session"].string_param = "kserve"
    return r


def infer_stream():
    r = infer()
    r.inputs.add(name="stream", datatype="BOOL", shape=[1]).contents.bool_contents.append(True)
    return r


def vllm_request(stream):
    return vllm.GenerateRequest(
        text=TEXT, stream=stream, sampling_params=sampling(
            vllm.SamplingParams, top_p=1, repetition_penalty=1, n=2, logprobs=2, prompt_logprobs=1, stop=["xyzzy"],
            logit_bias={5: 1.0}))


def octavo_request(**more):
    return octavo.GenerateRequest(sampling=sampling(
        octavo.SamplingParams, n=2, logprobs=2, prompt_logprobs=2, stop=["xyzzy", "plugh"], stop_token_ids=[1000],
        logit_bias=[octavo.LogitBias(token_id=5, bias=1)]), **more)


CHAT = octavo.Chat(messages=[octavo.ChatMessage(role="system", content="Be brief."),
                             octavo.ChatMessage(role="user", content=TEXT, name="x")])
OCTAVO, VLLM, KSERVE = "octavo.v1.Inference/", "vllm.grpc.engine.VllmEngine/", "inference.GRPCInferenceService/"
METADATA = [("octavo-retention", RETENTION), ("octavo-session", "vllm")]
HEALTH, REFLECTION = "grpc.health.v1.Health/", "grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"

# The method, the request and the metadata.
CALLS = {
    "a stream": (OCTAVO + "Generate", octavo_request(prompt=TEXT)),
    "a prompt of ids": (OCTAVO + "Generate", octavo_request(token_ids=octavo.TokenIds(ids=tokens(300, 1)))),
    "a chat": (OCTAVO + "Generate", octavo_request(chat=CHAT)),
    "retention and a session": (OCTAVO + "Generate", octavo.GenerateRequest(
        prompt=TEXT, retention_json=RETENTION, session="s", cache_salt="salt",
        sampling=sampling(octavo.SamplingParams))),
    "tokens of a text": (OCTAVO + "Tokenize", octavo.TokenizeRequest(prompt=TEXT)),
    "tokens of a chat": (OCTAVO + "Tokenize", octavo.TokenizeRequest(chat=CHAT)),
    "text of tokens": (OCTAVO + "Detokenize", octavo.DetokenizeRequest(token_ids=tokens(40, 3))),
    "the model": (OCTAVO + "ModelInfo", octavo.ModelInfoRequest()),
    "the server": (OCTAVO + "ServerInfo", octavo.ServerInfoRequest()),
    "the load": (OCTAVO + "Loads", octavo.LoadsRequest()),
    "an abort": (OCTAVO + "Abort", octavo.AbortRequest(request_ids=["none", "neither"])),
    "a flush": (OCTAVO + "FlushCache", octavo.FlushCacheRequest()),
    "vllm's stream": (VLLM + "Generate", vllm_request(True)),
    "vllm's whole answer": (VLLM + "Generate", vllm_request(False)),
    "vllm's, with retention": (VLLM + "Generate", vllm.GenerateRequest(
        tokenized=vllm.TokenizedInput(input_ids=tokens(200, 7)), sampling_params=sampling(
            vllm.SamplingParams, top_p=1, repetition_penalty=1, n=1)), METADATA),
    "vllm's model": (VLLM + "GetModelInfo", vllm.GetModelInfoRequest()),
    "vllm's server": (VLLM + "GetServerInfo", vllm.GetServerInfoRequest()),
    "vllm's load": (VLLM + "GetLoads", vllm.GetLoadsRequest()),
    "vllm's tokenizer": (VLLM + "GetTokenizer", smg.GetTokenizerRequest()),
    "an inference": (KSERVE + "ModelInfer", infer(id="mine")),
    "an inference by tokens": (KSERVE + "ModelStreamInfer", infer_stream()),
    "the model's tensors": (KSERVE + "ModelMetadata", kserve.ModelMetadataRequest(name="demo")),
    "events": (OCTAVO + "SubscribeKvEvents", octavo.SubscribeKvEventsRequest(start_sequence_number=1)),
    "vllm's events": (VLLM + "SubscribeKvEvents", smg.SubscribeKvEventsRequest(start_sequence_number=1)),
    "health": (HEALTH + "Check", health.HealthCheckRequest()),
    "health from now on": (HEALTH + "Watch", health.HealthCheckRequest()),
    "services": (REFLECTION, alpha.ServerReflectionRequest(list_services="*")),
    "a file": (REFLECTION, alpha.ServerReflectionRequest(file_containing_symbol="octavo.v1.Inference")),
}
STREAMS = ("Generate", "ModelStreamInfer") # several messages of each choice
ENDLESS = ("SubscribeKvEvents", "Watch") # cancelled after their first message
# Calls that allocate memory of this program; the others answer from what exists.
TAKE = {name for name, row in CALLS.items() if row[0].endswith(("Generate", "ize", "Infer"))}


class EveryAllocation(FailingServer):
    """Allocation number 0, 1, 2 … of a call fails, the others succeed."""

    @staticmethod
    def response_of(path):
        """The class of a method's responses."""
        service, method = path.split("/")
        for module in (octavo, vllm, kserve, health, alpha):
            for s in module.DESCRIPTOR.services_by_name.values():
                if s.full_name == service:
                    return json_format.message_factory.GetMessageClass(s.methods_by_name[method].output_type)
        raise LookupError(path)

    def call(self, channel, path, request, metadata=()):
        """(code, details, answer)"""
        ask = channel.stream_stream("/" + path, lambda m: m.SerializeToString(), self.response_of(path).FromString)
        call = ask(iter([request]), timeout=PATIENCE, metadata=metadata)
        try:
            if path.endswith(ENDLESS):
                first = as_json(next(call))
                call.cancel()
                return "OK", "", [[first], None]
            answer = [as_json(m) for m in call]
            if path.endswith(STREAMS) and not any("errorMessage" in m for m in answer):
                answer = whole(answer)
        except grpc.RpcError as e:
            return e.code().name, e.details(), None
        return "OK", "", [answer, lasting(trailers(call).get("octavo-report"))]

    def judge(self, code, details, answer, expected):
        """A whole answer, or one that says that memory is out."""
        if code != "OK":
            self.assertIn(code, ("RESOURCE_EXHAUSTED", "UNAVAILABLE"), details)
            self.assertIn("memory", details)
            return
        errors = [m["errorMessage"] for m in answer[0] if "errorMessage" in m]
        if errors:
            self.assertIn("memory", errors[0])
            return
        self.assertEqual(answer, expected)

    def expected(self, channel, name):
        """The answer, once what is made on first use is there."""
        for _ in range(3):
            code, details, answer = self.call(channel, *CALLS[name])
            self.assertEqual(code, "OK", details)
        return answer

    def sweep(self, server, channel, name):
        """Returns the number of allocations that could fail."""
        expected = self.expected(channel, name)
        for at in range(10000):
            before = self.failures()
            self.arm(at)
            code, details, answer = self.call(channel, *CALLS[name])
            self.arm(-1)
            self.assertIsNone(server.process.poll(), server.log()[-10000:])
            with self.subTest(name, at=at):
                self.judge(code, details, answer, expected)
            if self.is_remade(server, str((details, answer))):
                expected = self.expected(channel, name)
            if self.failures() == before:
                return at
        return 10000

    def test_every_allocation(self):
        with self.server() as server, grpc.insecure_channel(server.target) as channel:
            for name in CALLS:
                n = self.sweep(server, channel, name)
                if name in TAKE:
                    self.assertGreater(n, 3, name)
                eventually("all calls have ended", lambda: server.metric("num_requests_live") == 0)


if __name__ == "__main__":
    main()
