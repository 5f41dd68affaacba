"""Train the demo model from scratch: a small Llama that finds what a long text hides.

    python3 train.py --out DIR --text FILE [--device cpu|cuda] [--minutes 120] [--resume]

The curriculum runs over tasks and length; answers weigh ten times a text token. Writes DIR/ckpt.pt
often and, at the end, a Hugging Face folder (config.json, generation_config.json, model.safetensors
in bf16, tokenizer.json, tokenizer_config.json) by export.py.
"""
import argparse, json, math, os, pickle, random, sys, time
import torch, torch.nn.functional as F
import tokenizer as bpe, data
from model import LM, Cfg

# Stages: sequence length, tokens a step, share of the minutes, task weights (niah, passkey, kv,
# copy). A stage also ends once answers are nearly always right.
STAGES = [(128, 8192, .15, (2, 0, 2, 6)), (256, 8192, .25, (5, 1, 4, 2)), (512, 8192, .15, (6, 1, 3, .5)),
          (1024, 16384, .15, (6, 1, 3, .2)), (2048, 16384, .15, (6, 1, 3, .1)), (4096, 16384, .15, (6, 1, 3, .1))]
GOOD = .985

class Muon(torch.optim.Optimizer):
    """Momentum, orthogonalised by five Newton-Schulz steps (K. Jordan, 2024), in fp32 because most
    CPUs are slow in bf16."""
    def __init__(s, params, lr, momentum=.95, weight_decay=.01): super().__init__(params, dict(lr=lr, momentum=momentum, weight_decay=weight_decay))
    @torch.no_grad()
    def step(s):
        for grp in s.param_groups:
            for p in grp["params"]:
                m = s.state[p].setdefault("m", torch.zeros_like(p)); m.mul_(grp["momentum"]).add_(p.grad)
                x = p.grad + grp["momentum"] * m; wide = x.shape[0] < x.shape[1]; x = x if wide else x.T
                x = x / (x.norm() + 1e-7)
                for _ in range(5): a = x @ x.T; x = 3.4445 * x + (-4.775 * a + 2.0315 * a @ a) @ x
                p.mul_(1 - grp["lr"] * grp["weight_decay"]).add_(x if wide else x.T, alpha=-grp["lr"] * max(1, p.shape[0] / p.shape[1]) ** .5)

class Stream(torch.utils.data.IterableDataset):
    def __init__(s, *a): s.a = a  # text, tokenizer, length, seed, rows, task weights
    def __iter__(s):
        text, tok, T, seed, rows, weights = s.a
        w = torch.utils.data.get_worker_info()
        g = data.Gen(text, tok, seed * 1000 + (w.id if w else 0))
        while True:
            ids, m = zip(*(g.row(T, weights) for _ in range(rows)))
            yield torch.tensor(ids), torch.tensor(m)

@torch.no_grad()
def evaluate(net, g, tok, T, n, device, amp):
    """Share of questions whose answer is exactly right under greedy teacher-forced decoding, by
    task."""
    res = {}
    for name in ("niah", "passkey", "kv"):
        ok = tot = 0
        for _ in range(n):
            ids, m = [], []
            for t, k in getattr(g, name)(T):
                e = tok.encode(t); ids += e; m += [k] * len(e)
            x = torch.tensor([ids[:-1]], device=device)
            with amp(): p = net(x)[0].float().argmax(-1).tolist()
            i = 0
            while i < len(ids):
                if m[i]:
                    j = i
                    while j < len(ids) and m[j]: j += 1
                    tot += 1; ok += all(p[q - 1] == ids[q] for q in range(i, j)); i = j
                else: i += 1
        res[name] = ok / max(tot, 1)
    return res

def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--out", required=True); ap.add_argument("--text", required=True, help="plain text: the haystack and the language (ours: tinyshakespeare.txt of karpathy/char-rnn)")
    ap.add_argument("--device", default="cpu"); ap.add_argument("--minutes", type=float, default=120); ap.add_argument("--lr", type=float, default=3e-3); ap.add_argument("--muon", type=float, default=.02)
    ap.add_argument("--workers", type=int, default=0); ap.add_argument("--resume", action="store_true"); ap.add_argument("--extend", type=float, default=0, help="resume and give the last length so many minutes more"); ap.add_argument("--threads", type=int, default=0)
    a = ap.parse_args()
    os.makedirs(a.out, exist_ok=True); torch.manual_seed(1)
    if a.threads: torch.set_num_threads(a.threads)
    text = open(a.text).read(); tp = os.path.join(a.out, "tok.pkl")
    if os.path.exists(tp): vocab, merges = pickle.load(open(tp, "rb"))
    else:
        vocab, merges = data.train_tokenizer(text, Cfg.vocab); pickle.dump((vocab, merges), open(tp, "wb"))
    tok = bpe.Tok(vocab, merges)
    net = LM(Cfg).to(a.device); n = sum(p.numel() for p in net.parameters()); print("parameters", n, flush=True)
    mats = [p for n, p in net.named_parameters() if p.dim() > 1 and "emb" not in n]; rest = [p for n, p in net.named_parameters() if p.dim() <= 1 or "emb" in n]
    opts = [Muon(mats, lr=a.muon), torch.optim.AdamW(rest, lr=a.lr, betas=(.9, .98), weight_decay=0)]
    for o in opts:
        for grp in o.param_groups: grp["base"] = grp["lr"]
    used = 0.; done = []; ck = os.path.join(a.out, "ckpt.pt")
    if (a.resume or a.extend) and os.path.exists(ck):
        d = torch.load(ck, map_location=a.device); net.load_state_dict(d["net"]); [o.load_state_dict(x) for o, x in zip(opts, d["opt"])]; used, done = d["used"], d["done"]; print("resumed at minute", used)
    half = a.device == "cuda" or "avx512_bf16" in (open("/proc/cpuinfo").read() if os.path.exists("/proc/cpuinfo") else "")
    amp = lambda: torch.autocast(a.device, dtype=torch.bfloat16, enabled=half)
    def save(T): torch.save({"done": done, "net": net.state_dict(), "opt": [o.state_dict() for o in opts], "used": used}, ck + ".new"); os.replace(ck + ".new", ck)
    def schedule(m):  # warm-up 1 %, flat, linear to a tenth over the last 60 %
        f = m / a.minutes
        return min(1, f / .01 + .01) * (.1 + .9 * min(1, max(0, 1 - f) / .6))
    if a.extend: begin0 = used; schedule = lambda m: .05 + .3 * (1 - min(1, (m - begin0) / a.extend)); done = [T for T, *_ in STAGES[:-1]]; STAGES[-1] = (STAGES[-1][0], STAGES[-1][1] // 2, a.extend / a.minutes, STAGES[-1][3])
    bound = 0.; seed = random.randrange(1 << 20)
    for T, batch, share, weights in STAGES:
        if T in done: continue
        rows = batch // T; bound = max(used, bound) + share * a.minutes
        dl = iter(torch.utils.data.DataLoader(Stream(text, tok, T, seed + T, rows, weights), batch_size=None, num_workers=a.workers))
        g = data.Gen(text, tok, 777); step = 0; t0 = time.time(); start = used; ema = acc = None; seen = 0; last = t0
        while used < bound and not (step > 100 and acc > GOOD):
            ids, m = next(dl); ids, m = ids.to(a.device), m.to(a.device); f = schedule(used)
            for o in opts:
                for grp in o.param_groups: grp["lr"] = grp["base"] * f
            with amp(): lo = net(ids[:, :-1])
            tgt, w = ids[:, 1:], .1 + m[:, 1:].float()
            ce = F.cross_entropy(lo.float().view(-1, lo.shape[-1]), tgt.reshape(-1), reduction="none")
            loss = (ce * w.reshape(-1)).sum() / w.sum()
            for o in opts: o.zero_grad(set_to_none=True)
            loss.backward(); torch.nn.utils.clip_grad_norm_(net.parameters(), 1.)
            for o in opts: o.step()
            step += 1; seen += ids.numel(); used = start + (time.time() - t0) / 60
            with torch.no_grad(): hit = (lo.argmax(-1) == tgt)[m[:, 1:] > 0].float().mean().item()
            ema = loss.item() if ema is None else .97 * ema + .03 * loss.item(); acc = hit if acc is None else .97 * acc + .03 * hit
            if time.time() - last > 30:
                last = time.time(); print(f"T={T} min={used:.1f} step={step} loss={ema:.3f} answer tokens right={acc:.3f} tok/s={seen/(time.time()-t0):.0f}", flush=True); save(T)
        done.append(T); save(T); net.eval(); print("EVAL", T, f"min={used:.1f} step={step} acc={acc:.3f}", evaluate(net, g, tok, T, 20, a.device, amp), flush=True); net.train(); bound = used
    net.eval(); g = data.Gen(text, tok, 4242)
    for T in (512, 1024, 2048, 4096): print("FINAL", T, evaluate(net, g, tok, T, 25, a.device, amp), flush=True)
    import export; export.write(a.out, net, vocab, merges, tok)

if __name__ == "__main__": main()
