"""Trains a small byte-level BPE and writes a Hugging Face tokenizer.json (Qwen2-style split,
ByteLevel)."""
import json, re, collections
def bytes_to_unicode():
    bs=list(range(33,127))+list(range(161,173))+list(range(174,256)); cs=bs[:]; n=0
    for b in range(256):
        if b not in bs: bs.append(b); cs.append(256+n); n+=1
    return dict(zip(bs,map(chr,cs)))
B2U=bytes_to_unicode()
# ASCII rendering of the Qwen2 split regex (training data is ASCII)
PAT=re.compile(r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\nA-Za-z0-9]?[A-Za-z]+|[0-9]| ?[^\sA-Za-z0-9]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
HF_PAT=r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
SPECIALS=["<|endoftext|>","<|im_start|>","<|im_end|>"]
def train(text, vocab_size):
    freq=collections.Counter(PAT.findall(text))
    words=[([B2U[b] for b in w.encode()],c) for w,c in freq.items()]
    vocab=sorted(B2U.values(), key=lambda c: ord(c)); merges=[]
    pairs=collections.Counter(); where=collections.defaultdict(set)
    for i,(w,c) in enumerate(words):
        for a,b in zip(w,w[1:]): pairs[a,b]+=c; where[a,b].add(i)
    while len(vocab)+len(SPECIALS)<vocab_size:
        (a,b),n=max(pairs.items(), key=lambda kv:(kv[1],kv[0]))
        if n<2: break
        merges.append((a,b)); vocab.append(a+b)
        for i in list(where[a,b]):
            w,c=words[i]
            for x,y in zip(w,w[1:]):
                pairs[x,y]-=c
                if pairs[x,y]<=0: del pairs[x,y]
            o=[];j=0
            while j<len(w):
                if j+1<len(w) and w[j]==a and w[j+1]==b: o.append(a+b); j+=2
                else: o.append(w[j]); j+=1
            words[i]=(o,c)
            for x,y in zip(o,o[1:]): pairs[x,y]+=c; where[x,y].add(i)
        where.pop((a,b),None); pairs.pop((a,b),None)
    return vocab, merges
class Tok:
    def __init__(s, vocab, merges):
        s.vocab=vocab; s.id={t:i for i,t in enumerate(vocab+SPECIALS)}; s.rank={m:i for i,m in enumerate(merges)}; s.cache={}
        s.U2B={u:b for b,u in B2U.items()}; s.n=len(vocab)+len(SPECIALS)
    def word(s,w):
        r=s.cache.get(w)
        if r is None:
            p=[B2U[b] for b in w.encode()]
            while len(p)>1:
                k=min(range(len(p)-1), key=lambda i:s.rank.get((p[i],p[i+1]),1<<30))
                if (p[k],p[k+1]) not in s.rank: break
                p[k:k+2]=[p[k]+p[k+1]]
            r=s.cache[w]=[s.id[t] for t in p]
        return r
    def encode(s,text):
        out=[]
        for part in re.split(r"(<\|endoftext\|>|<\|im_start\|>|<\|im_end\|>)",text):
            if part in SPECIALS: out.append(s.id[part])
            else:
                for w in PAT.findall(part): out+=s.word(w)
        return out
    def decode(s,ids):
        toks=s.vocab+SPECIALS
        return b"".join(t.encode() if t in SPECIALS else bytes(s.U2B[c] for c in t) for t in (toks[i] for i in ids)).decode("utf8","replace")
def load(path):
    """Reads (vocab, merges), as train() returns them, from a tokenizer.json that save() wrote."""
    m=json.load(open(path))["model"]; return sorted(m["vocab"],key=m["vocab"].get), [tuple(x.split(" ")) for x in m["merges"]]
def save(path, vocab, merges):
    toks=vocab+SPECIALS
    j={"version":"1.0","truncation":None,"padding":None,
     "added_tokens":[{"id":len(vocab)+i,"content":t,"single_word":False,"lstrip":False,"rstrip":False,"normalized":False,"special":True} for i,t in enumerate(SPECIALS)],
     "normalizer":{"type":"NFC"},
     "pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"Regex":HF_PAT},"behavior":"Isolated","invert":False},{"type":"ByteLevel","add_prefix_space":False,"trim_offsets":False,"use_regex":False}]},
     "post_processor":{"type":"ByteLevel","add_prefix_space":False,"trim_offsets":False,"use_regex":False},
     "decoder":{"type":"ByteLevel","add_prefix_space":False,"trim_offsets":False,"use_regex":False},
     "model":{"type":"BPE","dropout":None,"unk_token":None,"continuing_subword_prefix":"","end_of_word_suffix":"","fuse_unk":False,"byte_fallback":False,"ignore_merges":False,
       "vocab":{t:i for i,t in enumerate(vocab)},"merges":[a+" "+b for a,b in merges]}}
    json.dump(j,open(path,"w"),ensure_ascii=False,indent=1)
